"""Certificates for tests, each its own authority."""

import datetime as dt
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


def write(chain: Path, key: Path, password: bytes = b"") -> str:
    """Write a certificate for this machine and its key. Returns its SHA-256."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pippin test")])
    present = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    made = made.not_valid_before(present - dt.timedelta(days=1)).not_valid_after(present + dt.timedelta(days=9))
    signed = made.add_extension(names, critical=False).sign(private, hashes.SHA256())
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    chain.write_bytes(signed.public_bytes(Encoding.PEM))
    key.touch(mode=0o600)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return signed.fingerprint(hashes.SHA256()).hex()
