"""A node's key pair, which is its identity: its id is the public key, so ids need no registry and no certificates.

The id is the public key as a compressed point (SEC 1, section 2.3.3; 33 bytes) in base32, lower case, without padding:
53 characters, which fit a DNS label. A hash would be shorter, but the key would have to be sent along with every id.
"""

import base64

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

CURVE = ec.SECP256R1()
"""P-256: gRPC's TLS (BoringSSL) accepts no Ed25519 certificates."""

NodeKey = ec.EllipticCurvePrivateKey


def new_key() -> NodeKey:
    return ec.generate_private_key(CURVE)


def id_of(public: ec.EllipticCurvePublicKey) -> str:
    point = public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return base64.b32encode(point).decode().rstrip("=").lower()


def public_key_of(node_id: str) -> ec.EllipticCurvePublicKey:
    """The public key of a node's id. Raises ValueError for a text that is not an id."""
    try:
        point = base64.b32decode(node_id.upper() + "=" * (-len(node_id) % 8))
        found = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, point)
    except ValueError as error:
        raise ValueError(f"{node_id[:60]!r} is not a node's id") from error
    if id_of(found) != node_id:  # the same key has other encodings, which would be other ids
        raise ValueError(f"{node_id[:60]!r} is not a node's id")
    return found


def to_pem(key: NodeKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def from_pem(pem: bytes) -> NodeKey:
    """Load a private key. Raises ValueError if it is not a key on the curve P-256."""
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise ValueError("it is encrypted") from error
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("it is not a key of the curve P-256")
