"""Mutual TLS from a shared secret, which proves membership, and each node's own key, which proves its identity.

Each node computes the cluster's certificate authority from the secret and the cluster's name, and certifies its own key
with it. That key, whose public half is the node's id, signs the certificate that the node shows:

    authority of the cluster ── signs ──► the node's key ── signs ──► the certificate shown, of the same key

A server requires a chain up to the authority: so its callers are members, and the key they show is their id. As every
member can compute the authority, and so certify any key, a client that means one node trusts only that node's key: it
makes a certificate of that key from the id, and uses it as its only root. See docs/adr/0018-an-id-is-a-public-key.md
and docs/threat-model.md.
"""

import datetime as dt
import hashlib
import hmac
from dataclasses import dataclass, field

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from node.core.errors import PeerUnavailable
from node.host.node_key import CURVE, NodeKey, id_of, public_key_of, to_pem

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the curve P-256 (FIPS 186-4): private keys are from 1 to this minus 1."""
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 << 20}
"""Parameters of scrypt (RFC 7914): 64 MiB and some 0.2 s, once at a node's start, but for each guess of the secret."""

# Valid forever: a Mac that lost its clock may start with a date years ago, and its node must still be admitted.
_BEGIN = dt.datetime(1950, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)  # "never", by RFC 5280, section 4.1.2.5


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials of a node, and what it needs to verify others. Certificates are PEM."""

    fingerprint: str
    """Identifies the secret in adverts. Derived by the same slow function, but of no use to make certificates."""
    server_name: str
    """Host name in all certificates of the cluster, as addresses change."""
    authority: bytes
    chain: bytes
    """The certificate that this node shows, then that of its signing key by the authority."""
    key: NodeKey = field(repr=False)

    def server_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(to_pem(self.key), self.chain)], self.authority, require_client_auth=True)

    def channel_credentials(self, node: str) -> grpc.ChannelCredentials:
        """Credentials for calls that only the node of this id can answer; with an empty id, any member can.

        Raises PeerUnavailable for a text that is not an id.
        """
        trusted = self.authority
        if node:
            try:
                public = public_key_of(node)
            except ValueError as error:
                raise PeerUnavailable(
                    f"With a secret, only a node that proves its id can be called: {error}."
                ) from error
            # Of a root only name and key matter, not its signature; it must not be self-issued.
            trusted = _certificate(_name(node), _name("pippin anchor"), public, self.key, path_length=0)
        return grpc.ssl_channel_credentials(trusted, to_pem(self.key), self.chain)


def secure(secret: bytes, cluster: str, key: NodeKey) -> Security:
    """Derive the credentials. Takes some 0.2 s of CPU time.

    The same secret gives another authority for a cluster with another name.
    """
    root = hashlib.scrypt(secret, salt=b"pippin " + cluster.encode(), dklen=32, **_SCRYPT)
    fingerprint = _derived(root, b"fingerprint")[:8].hex()
    authority = ec.derive_private_key(1 + int.from_bytes(_derived(root, b"authority")) % (_ORDER - 1), CURVE)
    server_name = f"{cluster}.pippin.internal"
    public, top, own = key.public_key(), _name(f"pippin {fingerprint}"), _name(id_of(key.public_key()))
    shown = _certificate(_name("pippin node"), own, public, key, server_name=server_name)
    return Security(
        fingerprint,
        server_name,
        _certificate(top, top, authority.public_key(), authority, path_length=1),
        shown + _certificate(own, top, public, authority, path_length=0),
        key,
    )


def node_of(certificate: bytes) -> str:
    """Id of the node that showed a certificate (PEM); "" if its key is of a type that nodes do not use.

    TLS has verified that the node has the private key.
    """
    public = x509.load_pem_x509_certificate(certificate).public_key()
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return id_of(public)
    return ""


def _derived(root: bytes, purpose: bytes) -> bytes:
    """Derive one of several independent keys: HKDF-Expand (RFC 5869) of a single block."""
    return hmac.digest(root, b"pippin " + purpose + b"\x01", "sha256")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: NodeKey,
    *,
    path_length: int | None = None,
    server_name: str = "",
) -> bytes:
    """Make a certificate: of a CA with this path length, or with `server_name` one for both servers and clients."""
    is_authority = path_length is not None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=path_length), critical=True)
        .add_extension(_usage(key_cert_sign=is_authority, digital_signature=not is_authority), critical=True)
    )
    if server_name:
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


def _usage(*, key_cert_sign: bool, digital_signature: bool) -> x509.KeyUsage:
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
