"""The nouns that all parts share. Frozen, typed, without behaviour beyond what their fields imply."""

from dataclasses import dataclass
from enum import StrEnum

MAX_NAME_CHARS = 512
"""Characters of an id, a name or an address that nodes take from each other. A file's name has 255 at most, a model's id
two of them."""
COUNTER_LIMIT = 1 << 53
"""Terms, epochs and incarnations that nodes take from each other are below it."""
MAX_TEXT_CHARS = 65_536
"""Characters of an error that nodes take from each other."""
MAX_MODELS = 16_384
"""Models that a node may say it holds."""
MAX_NODES = 256
"""To keep in touch with. Anybody on the network can invent adverts."""
MAX_ADDRESSES = 32
"""Of a node, that are called: its best ones come first. A Mac has some ten, a liar any number."""


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Numbers a decision of a head. Compared as (term, epoch); a message with a lower one is refused."""

    term: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """A model's layers [start, end)."""

    model: str
    start: int
    end: int
    revision: str = ""


# --- models ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class HeldModel:
    """A model whose files are complete on a node.

    The revision names the content of its files: the commit of a model of the hub, a fingerprint of a local directory.
    Layers, tokenizer and KV of different revisions never come together.
    """

    id: str
    revision: str = ""


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of one layer's cache for one session: `fixed + per_token * min(tokens, window)`; window 0 means no bound."""

    per_token: int
    fixed: int = 0
    window: int = 0

    def bytes_for(self, tokens: int) -> int:
        return self.fixed + self.per_token * (min(tokens, self.window) if self.window else tokens)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """All that placement needs to know of a model; made from its config and its files' headers, without its weights."""

    id: str
    layer_bytes: tuple[int, ...]
    """Weights of each layer."""
    ends_bytes: int
    """Weights of embedding, final norm, LM head and all else that is no layer: the driver's."""
    kv: tuple[KvCost, ...]
    """Cache cost of each layer."""
    cuts: tuple[int, ...]
    """The layers before which a stage may start, ascending, without 0."""
    max_context: int
    """Longest sequence in tokens that the model was made for."""
    shared_ends: bool = False
    """Layers read weights that are no layer's (per-layer embeddings), so every stage holds the ends."""
    head_bytes: int = 0
    """What the driver reads of the ends for each token: the LM head. Of an embedding beside it, it reads a row."""
    revision: str = ""

    @property
    def layers(self) -> int:
        return len(self.layer_bytes)


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a model's files, as the header of its file describes it."""

    file: str
    dtype: str
    """As safetensors names it, such as `BF16`."""
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that the cluster can serve, as `GET /v1/models` lists it."""

    id: str
    created: int
    """Unix seconds."""
    owned_by: str


# --- nodes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `usable` is what this node may use for models, all told; `used` is what its loaded stages take of it."""

    total: int
    usable: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Who a node is; constant while it runs."""

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


class LoadState(StrEnum):
    FETCHING = "fetching"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    ENDED = "ended"
    """The layers are here, but the ring lost a link or a step: the head makes a new one."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a node says of one stage that it holds or is about to hold."""

    ring: str
    shard: Shard
    state: LoadState
    progress: float = 0.0
    error: str = ""
    """Code and text of the failure, as `code: text`; empty unless failed or ended."""


@dataclass(frozen=True, slots=True)
class RingLoad:
    """What a driver says of its ring's work."""

    ring: str
    running: int = 0
    queued: int = 0
    tokens_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does at the moment, and what befell its requests since it started."""

    rings: tuple[RingLoad, ...] = ()
    """Those that it drives."""
    kv_bytes: int = 0
    memory_bytes: int = 0
    """Weights and KV."""
    recoveries: int = 0
    """How often a request of this gateway lost its ring and went on."""
    lag_s: float = 0.0
    """Recent maximum of the event loop's lag."""
    job_s: float = 0.0
    """How long the compute thread has been at one job; 0 if that began within the last second."""


@dataclass(frozen=True, slots=True)
class Link:
    """How a node reaches another: the address in use and its measured round trip."""

    to: str
    address: str
    rtt_ms: float
    interface: str = ""
    kind: str = ""
    """ethernet, wi-fi, thunderbolt, loopback, or empty when unknown."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node is called, and which node is meant: with a secret, no other one there can answer."""

    target: str
    """`host:port` of a gRPC server."""
    node: str = ""
    """Its id; empty while it is not known who is there."""

    def __str__(self) -> str:
        return self.target


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call it is."""

    address: str
    """IP address."""
    node: str = ""
    """The node's id, as its certificate proves it; empty without a secret, where nothing is proven."""


@dataclass(frozen=True, slots=True)
class PeerHint:
    """An address at which a node may be found; never a sign of life."""

    id: str
    addresses: tuple[str, ...]
    grpc_port: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What two nodes tell each other.

    The head's placement rides along when the other's is older; to a new head, that of the one before.
    """

    report: "NodeReport"
    placement: "Placement | None" = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself in each heartbeat."""

    info: NodeInfo
    memory: Memory
    term: int = 0
    head: str = ""
    """The head it follows; empty if none."""
    fence: Fence = Fence()
    """Of the placement that it has adopted."""
    loads: tuple[LoadReport, ...] = ()
    rings: tuple[RingLoad, ...] = ()
    models: tuple[HeldModel, ...] = ()
    preload: tuple[str, ...] = ()
    """Ids of the models that its user asked to have loaded."""
    min_stages: int = 1
    """Its user wants each model spread over at least this many nodes."""
    links: tuple[Link, ...] = ()
    peers: tuple[PeerHint, ...] = ()
    draining: bool = False
    """Somebody asked that its work be moved away, or it is about to leave: nothing new is placed on it."""
    lag_s: float = 0.0
    """Recent maximum of its event loop's lag."""
    job_s: float = 0.0
    """How long its compute thread has been at one job; 0 if that began within the last second."""
    idle: tuple[Shard, ...] = ()
    """Layers that it has in memory though no ring needs them; they make room for any that one needs."""
    disk_error: str = ""
    """Why it can't save the terms of elections; empty if it can. Meanwhile it follows heads, but does not become one."""


class NodeState(StrEnum):
    """What a node thinks of a peer."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"
    LEFT = "left"
    REFUSED = "refused"
    """It speaks another protocol version, or has another secret."""


# --- placement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A node's place in a ring: which layers it holds."""

    node: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Nodes that together hold one whole copy of a model. The first is the driver."""

    id: str
    model: str
    stages: tuple[StageSpec, ...]
    context: int
    """Longest sequence in tokens that it accepts."""
    max_sessions: int
    """Sessions of that length for which memory is set aside."""
    shared_ends: bool = False
    """Every stage needs the files of the model's ends."""
    fence: Fence = Fence()
    """Of the placement that made it; its frames carry it as long as it lives, through placements that keep it."""
    retiring: bool = False
    """Another ring takes its place: it serves until that one is ready, then finishes or hands over what it has."""
    revision: str = ""

    @property
    def driver(self) -> str:
        return self.stages[0].node


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a wanted model has no ring."""

    model: str
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The head's decision."""

    fence: Fence = Fence()
    head: str = ""
    rings: tuple[Ring, ...] = ()
    refused: tuple[Refusal, ...] = ()
    specs: tuple[ModelSpec, ...] = ()
    """What the head knows of the models that are wanted: the next head may not find it out, if no node has a whole model."""


# --- the cluster as one node sees it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerView:
    """One node, as seen from here."""

    report: NodeReport
    state: NodeState
    last_seen_s: float = 0.0
    """Seconds since it was last heard; 0 for the node itself."""
    reason: str = ""
    """Why it is refused or failed, for people."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that a node knows of its cluster at one moment."""

    self_id: str
    term: int
    head: str
    """Id of the head, empty while there is none."""
    peers: tuple[PeerView, ...]
    """Every node known, this one included."""
    placement: Placement
    duplicate: str = ""
    """Name of another node that was recently started with a copy of this one's key."""
