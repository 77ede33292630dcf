"""Nodes, placements, and views of the cluster. Messages on the wire have the same fields."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from node.core.models import Alias, DraftChoice, HeldModel, ModelSpec, Preset
from node.core.units import format_download

MAX_NAME_CHARS = 512
"""Maximum characters of an id, a name or an address from a peer: a model's id consists of up to two file names of 255."""
COUNTER_LIMIT = 1 << 53
"""Bound on terms, epochs and incarnations from a peer; they are below it."""
MAX_TEXT_CHARS = 65_536
"""Maximum characters of an error from a peer."""
MAX_MODELS = 16_384
"""Maximum models in the report of a peer."""
MAX_NODES = 256
"""Maximum nodes to keep contact with: anybody on the network can invent adverts."""
MAX_ADDRESSES = 32
"""Maximum addresses of a peer that are tried, best first; a Mac has some ten."""


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Number of a head's decision, ordered by (term, epoch). A stage refuses frames with another one than its ring's."""

    term: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """The layers [start, end) of a model."""

    model: str
    start: int
    end: int
    revision: str = ""
    kv_bits: int = 0
    """As in ModelSpec."""


# --- nodes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `usable`: what the node may use for models, in total. `used`: what its stages use of it."""

    total: int
    usable: int
    used: int = 0


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


class StageState(StrEnum):
    FETCHING = "fetching"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    ENDED = "ended"
    """The layers are loaded, but the ring has ended: the head makes a new one."""


@dataclass(frozen=True, slots=True)
class Download:
    """How far a download is, in bytes."""

    done: int = 0
    """Including those that were on the disk before."""
    total: int = 0
    bytes_per_s: float = 0.0
    """Of the last seconds; 0 while it is not known, or while nothing comes."""

    @property
    def share(self) -> float:
        return self.done / max(self.total, 1)

    @property
    def left_s(self) -> float | None:
        """Seconds until it is done at this rate; None without one."""
        return (self.total - self.done) / self.bytes_per_s if self.bytes_per_s else None

    def __str__(self) -> str:
        return format_download(self.done, self.total, self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class StageReport:
    """Report of a node on a stage that it holds, or that the placement assigns to it."""

    ring: str
    shard: Shard
    state: StageState
    progress: float = 0.0
    error: str = ""
    """Why it failed or ended, as `code: text`; empty otherwise."""
    download: Download | None = None
    """While it is being fetched, once the number of bytes is known."""

    @property
    def loads(self) -> bool:
        return self.state in (StageState.FETCHING, StageState.LOADING)


@dataclass(frozen=True, slots=True)
class Speed:
    """How quickly a node computes a shard, measured when it was loaded."""

    shard: Shard
    bytes_per_s: float
    """Bytes of the layers' weights, per second of a step of one token."""
    tokens_per_s: float
    """Tokens of a prompt that pass through these layers, per second of a chunk."""


@dataclass(frozen=True, slots=True)
class RingTraffic:
    """Requests of a ring, as its driver reports them."""

    ring: str
    running: int = 0
    queued: int = 0
    tokens_per_second: float = 0.0
    guesses: int = 0
    """Guessed tokens that were compared with the token that came, since the ring began."""
    right_guesses: int = 0
    recomputed: int = 0
    """Tokens computed again for sessions that had made room for others, since the ring began."""
    requests: int = 0
    """Requests that it has taken since it began."""


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Values of a node for `/metrics`, apart from those that its HTTP side counts."""

    rings: tuple[RingTraffic, ...] = ()
    """Rings that it drives."""
    kv_bytes: int = 0
    memory_bytes: int = 0
    """Weights and KV."""
    recoveries: int = 0
    """Number of times that a request of this gateway was resumed on another ring."""
    lag_s: float = 0.0
    """Recent maximum of the event loop's lag, in seconds."""
    job_s: float = 0.0
    """Seconds since the compute thread began its current job; 0 for less than one second."""


@dataclass(frozen=True, slots=True)
class Link:
    """A node's path to another node: the address in use and its measured round trip."""

    to: str
    address: str
    rtt_ms: float
    interface: str = ""
    kind: str = ""
    """ethernet, wi-fi, thunderbolt, loopback, or empty if unknown."""
    bytes_per_s: float = 0.0
    """Measured bandwidth; 0 if it is not measured."""


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
    """Sender of a call."""

    address: str
    """IP address."""
    node: str = ""
    """Id of the node, proved by its certificate; empty without a secret."""


@dataclass(frozen=True, slots=True)
class PeerHint:
    """Addresses at which a node may be found. Not a sign that it is alive."""

    id: str
    addresses: tuple[str, ...]
    grpc_port: int


@dataclass(frozen=True, slots=True)
class Advert:
    """Advert of a node in mDNS."""

    name: str
    hint: PeerHint
    since: float = 0.0
    """Time at which it was heard first."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Message that two nodes exchange. It has only what the receiver lacks.

    It includes the head's placement if the receiver's is older, and to a new head the placement of the previous head.
    """

    report: "NodeReport | None" = None
    """None if the receiver has it."""
    placement: "Placement | None" = None
    node: str = ""
    """Id of the sender, if there is no report."""
    digest: int = 0
    """Of the sender's report; 0 if it is not to be kept."""
    held: int = 0
    """Digest of the receiver's report that the sender has; 0 if it has none."""
    clock_ms: int = 0
    """Unix milliseconds by the sender's clock when it was sent; 0 if unknown."""

    @property
    def sender(self) -> str:
        return self.report.info.id if self.report else self.node


class Severity(StrEnum):
    ERROR = "error"
    """A request or a wanted model does not work."""
    WARNING = "warning"
    """The cluster works, but worse than it could."""
    INFO = "info"
    """Nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Issue:
    """A finding for the user: a text with numbers, and a hint what to do."""

    code: str
    """One of node.core.health.Code; a node of another version may report others."""
    severity: Severity
    text: str
    hint: str = ""
    node: str = ""
    """Id of the node that it is about; empty if it is about the cluster or a model."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's report on itself, in each heartbeat."""

    info: NodeInfo
    memory: Memory
    term: int = 0
    head: str = ""
    """Id of the head that it follows; empty if none."""
    fence: Fence = Fence()
    """Fence of the placement that it has adopted."""
    stages: tuple[StageReport, ...] = ()
    traffic: tuple[RingTraffic, ...] = ()
    """Of the rings that it drives."""
    models: tuple[HeldModel, ...] = ()
    preload: tuple[str, ...] = ()
    """Ids of the models named by --model."""
    drafts: tuple[DraftChoice, ...] = ()
    min_stages: int = 1
    """Minimum number of nodes for each model, from --stages."""
    links: tuple[Link, ...] = ()
    peers: tuple[PeerHint, ...] = ()
    draining: bool = False
    """Whether it is drained, or about to leave: nothing new is placed on it."""
    lag_s: float = 0.0
    """Recent maximum of its event loop's lag, in seconds."""
    job_s: float = 0.0
    """Seconds since its compute thread began its current job; 0 for less than one second."""
    idle: tuple[Shard, ...] = ()
    """Loaded layers that no ring uses; they are unloaded when a ring needs the memory."""
    disk_error: str = ""
    """Why it can't save the terms of elections; empty if it can. While it can't, it does not become head."""
    speeds: tuple[Speed, ...] = ()
    """One for each model that it loaded since its start."""
    suspects: tuple[str, ...] = ()
    """Ids of nodes that it does not hear at present."""
    issues: tuple[Issue, ...] = ()
    """Of its machine and of its options, found by itself."""
    aliases: tuple[Alias, ...] = ()
    presets: tuple[Preset, ...] = ()


class NodeState(StrEnum):
    """State of a peer, as a node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    FAILED = "failed"
    LEFT = "left"
    REFUSED = "refused"
    """It has another protocol version, or another secret."""


PROCESS_ENDED = "its process has ended"
"""Why a node has failed whose machine still answers."""


PRESENT = (NodeState.ALIVE, NodeState.SUSPECT)
"""States of a present node. Suspects count: most recover, and their rings work until they are declared failed."""


# --- placement ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The layers [start, end) that a node holds in a ring."""

    node: str
    start: int
    end: int


RingPlace = tuple[str, tuple[StageSpec, ...]]
"""Model and stages of a ring."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Nodes that together hold one whole copy of a model. The first is the driver."""

    id: str
    model: str
    stages: tuple[StageSpec, ...]
    context: int
    """Maximum sequence length that it accepts, in tokens."""
    max_sessions: int
    """Number of sessions of that length that memory is reserved for."""
    shared_ends: bool = False
    """As in ModelSpec: every stage needs the files of the model's ends."""
    fence: Fence = Fence()
    """Fence of the placement that created it. Later placements that keep the ring keep its fence, too."""
    retiring: bool = False
    """Whether another ring replaces it: it serves until that one is ready, then finishes or hands over its sessions."""
    revision: str = ""
    kv_bits: int = 0
    """As in ModelSpec."""
    draft: Shard | None = None
    """All layers of a draft model, which the driver holds, too; None without one, and with one stage."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(stage.node for stage in self.stages)

    @property
    def driver(self) -> str:
        return self.stages[0].node

    def after(self, node: str) -> str:
        """The next node of the ring; after the last comes the driver."""
        return self.nodes[(self.nodes.index(node) + 1) % len(self.nodes)]

    @property
    def place(self) -> RingPlace:
        """A ring finds the weights in memory that another ring of the same place has left, and its KV
        if both have the same context and sessions.
        """
        return self.model, self.stages


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why a wanted model has no ring."""

    model: str
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Decision of the head: the rings of each wanted model."""

    fence: Fence = Fence()
    head: str = ""
    rings: tuple[Ring, ...] = ()
    refused: tuple[Refusal, ...] = ()
    specs: tuple[ModelSpec, ...] = ()
    """Specs of the wanted models. The next head might not find them itself, if no node has a whole model."""

    @property
    def models(self) -> frozenset[str]:
        """Ids of the models that have a ring, or are refused."""
        return frozenset([ring.model for ring in self.rings] + [refusal.model for refusal in self.refused])


# --- the cluster as one node sees it -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerView:
    """A node, as seen by this one."""

    report: NodeReport
    state: NodeState
    last_seen_s: float = 0.0
    """Seconds since its last message, or since it was due to be asked if it rested; 0 for this node itself."""
    reason: str = ""
    """Why it is refused or failed, for users."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the cluster at one moment, as a node sees it."""

    self_id: str
    term: int
    head: str
    """Id of the head; empty if there is none."""
    peers: tuple[PeerView, ...]
    """All known nodes, including this one."""
    placement: Placement
    duplicate: str = ""
    """Name of another node that was recently started with a copy of this one's key."""
    clocks: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds by which the clocks of other nodes are ahead of this one's, by id."""
