"""Nodes: who they are, and at which addresses they are found. Messages on the wire have the same fields."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `usable`: what the node may use for models, in total. `used`: what its stages use of it, and `kept` of that what no
    ring needs.
    """

    total: int
    usable: int
    used: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Identity of a node; constant while it runs, but for its addresses."""

    id: str
    incarnation: int
    name: str
    cluster: str
    version: str
    protocol: int
    addresses: tuple[str, ...]
    grpc_port: int
    api_port: int
    chip: str = ""
    started_at: int = 0
    """Unix milliseconds, by this node's clock."""
    system: str = ""
    """Operating system and its version."""
    libraries: str = ""
    """Versions of mlx and mlx-lm, which decide each bit of an answer; empty from nodes of earlier versions."""
    api_tls: bool = False

    @property
    def api_scheme(self) -> str:
        return "https" if self.api_tls else "http"


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a node. With a secret, only the node with this id can answer there."""

    target: str
    """`host:port` of a gRPC server."""
    node: str = ""
    """Id of the node; empty if it is not known."""

    def __str__(self) -> str:
        return self.target


@dataclass(frozen=True, slots=True)
class Caller:
    address: str
    """IP address."""
    node: str = ""
    """Id of the node, proved by its certificate; empty without a secret."""

    @property
    def name(self) -> str:
        """By which callers are told apart."""
        return self.node or self.address


@dataclass(frozen=True, slots=True)
class PeerHint:
    """Addresses at which a node may be found. Not a sign that it is alive."""

    id: str
    addresses: tuple[str, ...]
    grpc_port: int


@dataclass(frozen=True, slots=True)
class Advert:
    name: str
    hint: PeerHint
    since: float = 0.0
    """Time at which it was heard first."""
