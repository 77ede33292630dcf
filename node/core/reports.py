"""What nodes tell about themselves. Messages on the wire have the same fields."""

from dataclasses import dataclass
from enum import StrEnum

from node.core.models import Alias, DraftChoice, HeldModel, Preset, Shard
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.rings import Fence, Placement
from node.core.row_family import RowFamily
from node.core.units import format_download


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
    families: tuple[RowFamily, ...] = ()
    """Of a stage that is ready: the numbers of tokens of one session that its steps may have. Empty stands for one token."""

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
    head_s: float = 0.0
    """Seconds of the LM head in a step of one token; 0 unless the shard has the first layer, and with it the head."""


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
    used_at: int = 0
    """Unix seconds at which it began, or a request last began or ended."""
    foretold: float = 0.0
    """Of recent tokens of sessions that had the ring to themselves, the share that was foretold, whether a guess was made or not."""
    token_ms: float = 0.0
    """Milliseconds that each of those took; 0 while that is not known."""
    prompt_tokens: int = 0
    """Of the prompts that are computed in several chunks and have begun."""
    prompt_done: int = 0
    """How many of these have their KV."""
    prompt_tokens_per_second: float = 0.0
    """0 before their second chunk."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A fault that ended a node's process while it loaded a model."""

    model: str
    """Its id."""
    revision: str
    cause: str = ""
    """Such as "Segmentation fault"."""
    at: int = 0
    """Unix seconds, by the node's clock, of its next start."""


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
class Path:
    """A node's path to another node: the address in use and its measured round trip."""

    to: str
    address: str
    rtt_ms: float
    interface: str = ""
    kind: str = ""
    """ethernet, wi-fi, thunderbolt, loopback, or empty if unknown."""
    bytes_per_s: float = 0.0
    """Measured bandwidth; 0 if it is not measured."""


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
    """One of node.core.warning_codes.Code; a node of another version may report others."""
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
    paths: tuple[Path, ...] = ()
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
    issues: tuple[Issue, ...] = ()
    """Of its machine and of its options, found by itself."""
    aliases: tuple[Alias, ...] = ()
    presets: tuple[Preset, ...] = ()
    crashed: tuple[Crash, ...] = ()
    """In which it has loaded the model successfully since, are not among them."""
    kv_disk: int = 0
    """Bytes of KV on its disk, to two digits: it changes with every answer."""
    kv_budget: int = 0
    """Most bytes of KV on its disk; 0 if it keeps none, also of other nodes."""
    kv_uncopied: int = 0
    """Bytes of KV that another node is yet to have a copy of, to two digits."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Message that two nodes exchange. It has only what the receiver lacks.

    It includes the head's placement if the receiver's is older, and to a new head the placement of the previous head.
    """

    report: NodeReport | None = None
    """None if the receiver has it."""
    placement: Placement | None = None
    node: str = ""
    """Id of the sender, if there is no report."""
    digest: int = 0
    """Of the sender's report; 0 if it is not to be kept."""
    held: int = 0
    """Digest of the receiver's report that the sender has; 0 if it has none."""

    @property
    def sender(self) -> str:
        return self.report.info.id if self.report else self.node
