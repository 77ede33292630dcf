"""Mutual TLS from one shared secret: whoever knows it can make certificates that the others accept, and nobody else.

Nothing is stored or handed out. Each node computes the cluster's certificate authority from the secret and the cluster's
name, and signs a certificate for itself with it. All of it is as strong as the secret: see docs/threat-model.md.
"""

import datetime as dt
import hashlib
import hmac
from dataclasses import dataclass, field

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CURVE = ec.SECP256R1()  # gRPC's TLS (BoringSSL) accepts no Ed25519 certificates
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve P-256, by FIPS 186-4: private keys are 1 to this less 1."""
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 << 20}
"""RFC 7914; 64 MiB and some 0.2 s: once at a node's start, but for each guess of who tries to find the secret."""

# For all time: a Mac whose clock was lost wakes up years ago, and its node must still be let in.
_BEGIN = dt.datetime(1950, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)  # "never", by RFC 5280, section 4.1.2.5


@dataclass(frozen=True, slots=True)
class Security:
    """By what a node proves that it knows the secret, and by what it sees whether others do. PEM."""

    fingerprint: str
    """Tells secrets apart, for adverts: made by the same slow function, and of no use for a certificate."""
    server_name: str
    """What all certificates of the cluster are for: addresses come and go."""
    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.authority, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


def secure(secret: bytes, cluster: str) -> Security:
    """Takes some 0.2 s of computing. The same secret gives another authority for a cluster of another name."""
    root = hashlib.scrypt(secret, salt=b"pippin " + cluster.encode(), dklen=32, **_SCRYPT)
    fingerprint = _derived(root, b"fingerprint")[:8].hex()
    authority = ec.derive_private_key(1 + int.from_bytes(_derived(root, b"authority")) % (_ORDER - 1), _CURVE)
    own = ec.generate_private_key(_CURVE)
    server_name = f"{cluster}.pippin.internal"
    return Security(
        fingerprint,
        server_name,
        _authority_certificate(authority, fingerprint),
        _node_certificate(own.public_key(), server_name, authority, fingerprint),
        own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _derived(root: bytes, purpose: bytes) -> bytes:
    """One of several independent keys: HKDF-Expand (RFC 5869) of a single block."""
    return hmac.digest(root, b"pippin " + purpose + b"\x01", "sha256")


def _authority_certificate(key: ec.EllipticCurvePrivateKey, fingerprint: str) -> bytes:
    usage = _usage(key_cert_sign=True)
    builder = _builder(_authority_name(fingerprint), key.public_key(), fingerprint).serial_number(1)
    return _signed(builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True), usage, key)


def _node_certificate(
    public: ec.EllipticCurvePublicKey, server_name: str, authority: ec.EllipticCurvePrivateKey, fingerprint: str
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pippin node")])
    builder = (
        _builder(subject, public, fingerprint)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name)]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
    )
    return _signed(builder, _usage(digital_signature=True), authority)


def _authority_name(fingerprint: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"pippin {fingerprint}")])


def _builder(subject: x509.Name, public: ec.EllipticCurvePublicKey, fingerprint: str) -> x509.CertificateBuilder:
    issuer = _authority_name(fingerprint)
    named = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    return named.not_valid_before(_BEGIN).not_valid_after(_END)


def _usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, usage: x509.KeyUsage, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
