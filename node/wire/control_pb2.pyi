from node.wire import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Departure(_message.Message):
    __slots__ = ("id", "incarnation")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: int
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("model", "revision", "kv_bits")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KV_BITS_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    kv_bits: int
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., kv_bits: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("model", "wish")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    model: str
    wish: Wish
    def __init__(self, model: _Optional[str] = ..., wish: _Optional[_Union[Wish, _Mapping]] = ...) -> None: ...

class Wish(_message.Message):
    __slots__ = ("named", "stages", "context", "despite", "keep_s")
    NAMED_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DESPITE_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    named: bool
    stages: int
    context: int
    despite: int
    keep_s: float
    def __init__(self, named: _Optional[bool] = ..., stages: _Optional[int] = ..., context: _Optional[int] = ..., despite: _Optional[int] = ..., keep_s: _Optional[float] = ...) -> None: ...

class KeepRequest(_message.Message):
    __slots__ = ("model", "keep_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    keep_s: float
    def __init__(self, model: _Optional[str] = ..., keep_s: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "draining")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    node: str
    draining: bool
    def __init__(self, node: _Optional[str] = ..., draining: _Optional[bool] = ...) -> None: ...

class ResponseRequest(_message.Message):
    __slots__ = ("id", "ask")
    ID_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    id: str
    ask: str
    def __init__(self, id: _Optional[str] = ..., ask: _Optional[str] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("id", "first")
    ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    id: str
    first: int
    def __init__(self, id: _Optional[str] = ..., first: _Optional[int] = ...) -> None: ...

class ResponsePart(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("lines", "follow")
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    lines: int
    follow: bool
    def __init__(self, lines: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("term", "epoch")
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    term: int
    epoch: int
    def __init__(self, term: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("model", "start", "end", "revision", "kv_bits")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KV_BITS_FIELD_NUMBER: _ClassVar[int]
    model: str
    start: int
    end: int
    revision: str
    kv_bits: int
    def __init__(self, model: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., revision: _Optional[str] = ..., kv_bits: _Optional[int] = ...) -> None: ...

class HeldModel(_message.Message):
    __slots__ = ("id", "revision", "bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    revision: str
    bytes: int
    def __init__(self, id: _Optional[str] = ..., revision: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class DraftChoice(_message.Message):
    __slots__ = ("model", "draft")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    model: str
    draft: str
    def __init__(self, model: _Optional[str] = ..., draft: _Optional[str] = ...) -> None: ...

class Alias(_message.Message):
    __slots__ = ("name", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class Preset(_message.Message):
    __slots__ = ("model", "sampling")
    class SamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    model: str
    sampling: _containers.ScalarMap[str, float]
    def __init__(self, model: _Optional[str] = ..., sampling: _Optional[_Mapping[str, float]] = ...) -> None: ...

class KvCost(_message.Message):
    __slots__ = ("per_token", "fixed", "window")
    PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIXED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    per_token: int
    fixed: int
    window: int
    def __init__(self, per_token: _Optional[int] = ..., fixed: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("model", "layer_bytes", "ends_bytes", "kv", "cuts", "max_context", "shared_ends", "head_bytes", "revision", "score_bytes", "kv_bits", "draft", "wish", "mtp", "picture_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SHARED_ENDS_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SCORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BITS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    WISH_FIELD_NUMBER: _ClassVar[int]
    MTP_FIELD_NUMBER: _ClassVar[int]
    PICTURE_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    layer_bytes: _containers.RepeatedScalarFieldContainer[int]
    ends_bytes: int
    kv: _containers.RepeatedCompositeFieldContainer[KvCost]
    cuts: _containers.RepeatedScalarFieldContainer[int]
    max_context: int
    shared_ends: bool
    head_bytes: int
    revision: str
    score_bytes: int
    kv_bits: int
    draft: ModelSpec
    wish: Wish
    mtp: ModelSpec
    picture_bytes: int
    def __init__(self, model: _Optional[str] = ..., layer_bytes: _Optional[_Iterable[int]] = ..., ends_bytes: _Optional[int] = ..., kv: _Optional[_Iterable[_Union[KvCost, _Mapping]]] = ..., cuts: _Optional[_Iterable[int]] = ..., max_context: _Optional[int] = ..., shared_ends: _Optional[bool] = ..., head_bytes: _Optional[int] = ..., revision: _Optional[str] = ..., score_bytes: _Optional[int] = ..., kv_bits: _Optional[int] = ..., draft: _Optional[_Union[ModelSpec, _Mapping]] = ..., wish: _Optional[_Union[Wish, _Mapping]] = ..., mtp: _Optional[_Union[ModelSpec, _Mapping]] = ..., picture_bytes: _Optional[int] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("total", "usable", "used", "kept")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    USABLE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    total: int
    usable: int
    used: int
    kept: int
    def __init__(self, total: _Optional[int] = ..., usable: _Optional[int] = ..., used: _Optional[int] = ..., kept: _Optional[int] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("id", "incarnation", "name", "cluster", "version", "protocol", "addresses", "grpc_port", "api_port", "chip", "started_at", "system", "libraries", "api_tls")
    ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    API_PORT_FIELD_NUMBER: _ClassVar[int]
    CHIP_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    API_TLS_FIELD_NUMBER: _ClassVar[int]
    id: str
    incarnation: int
    name: str
    cluster: str
    version: str
    protocol: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    grpc_port: int
    api_port: int
    chip: str
    started_at: int
    system: str
    libraries: str
    api_tls: bool
    def __init__(self, id: _Optional[str] = ..., incarnation: _Optional[int] = ..., name: _Optional[str] = ..., cluster: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., grpc_port: _Optional[int] = ..., api_port: _Optional[int] = ..., chip: _Optional[str] = ..., started_at: _Optional[int] = ..., system: _Optional[str] = ..., libraries: _Optional[str] = ..., api_tls: _Optional[bool] = ...) -> None: ...

class Download(_message.Message):
    __slots__ = ("done", "total", "bytes_per_s")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    bytes_per_s: float
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class StageReport(_message.Message):
    __slots__ = ("ring", "shard", "state", "progress", "error", "download", "families")
    RING_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    ring: str
    shard: Shard
    state: str
    progress: float
    error: str
    download: Download
    families: _containers.RepeatedCompositeFieldContainer[RowFamily]
    def __init__(self, ring: _Optional[str] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., state: _Optional[str] = ..., progress: _Optional[float] = ..., error: _Optional[str] = ..., download: _Optional[_Union[Download, _Mapping]] = ..., families: _Optional[_Iterable[_Union[RowFamily, _Mapping]]] = ...) -> None: ...

class RowFamily(_message.Message):
    __slots__ = ("costs",)
    COSTS_FIELD_NUMBER: _ClassVar[int]
    costs: _containers.RepeatedCompositeFieldContainer[RowCost]
    def __init__(self, costs: _Optional[_Iterable[_Union[RowCost, _Mapping]]] = ...) -> None: ...

class RowCost(_message.Message):
    __slots__ = ("rows", "cost")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    rows: int
    cost: float
    def __init__(self, rows: _Optional[int] = ..., cost: _Optional[float] = ...) -> None: ...

class Speed(_message.Message):
    __slots__ = ("shard", "bytes_per_s", "tokens_per_s", "head_s")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    HEAD_S_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    bytes_per_s: float
    tokens_per_s: float
    head_s: float
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ..., bytes_per_s: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., head_s: _Optional[float] = ...) -> None: ...

class RingTraffic(_message.Message):
    __slots__ = ("ring", "running", "queued", "tokens_per_second", "guesses", "right_guesses", "recomputed", "requests", "used_at", "foretold", "token_ms", "prompt_done", "prompt_tokens", "prompt_tokens_per_second")
    RING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GUESSES_FIELD_NUMBER: _ClassVar[int]
    RIGHT_GUESSES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    FORETOLD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_DONE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ring: str
    running: int
    queued: int
    tokens_per_second: float
    guesses: int
    right_guesses: int
    recomputed: int
    requests: int
    used_at: int
    foretold: float
    token_ms: float
    prompt_done: int
    prompt_tokens: int
    prompt_tokens_per_second: float
    def __init__(self, ring: _Optional[str] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., guesses: _Optional[int] = ..., right_guesses: _Optional[int] = ..., recomputed: _Optional[int] = ..., requests: _Optional[int] = ..., used_at: _Optional[int] = ..., foretold: _Optional[float] = ..., token_ms: _Optional[float] = ..., prompt_done: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., prompt_tokens_per_second: _Optional[float] = ...) -> None: ...

class Path(_message.Message):
    __slots__ = ("to", "address", "rtt_ms", "interface", "kind", "bytes_per_s")
    TO_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RTT_MS_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    to: str
    address: str
    rtt_ms: float
    interface: str
    kind: str
    bytes_per_s: float
    def __init__(self, to: _Optional[str] = ..., address: _Optional[str] = ..., rtt_ms: _Optional[float] = ..., interface: _Optional[str] = ..., kind: _Optional[str] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class PeerHint(_message.Message):
    __slots__ = ("id", "addresses", "grpc_port")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    id: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    grpc_port: int
    def __init__(self, id: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., grpc_port: _Optional[int] = ...) -> None: ...

class Issue(_message.Message):
    __slots__ = ("code", "severity", "text", "hint", "node")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    code: str
    severity: str
    text: str
    hint: str
    node: str
    def __init__(self, code: _Optional[str] = ..., severity: _Optional[str] = ..., text: _Optional[str] = ..., hint: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class Crash(_message.Message):
    __slots__ = ("model", "revision", "cause", "at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    cause: str
    at: int
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., cause: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("info", "memory", "term", "head", "fence", "stages", "traffic", "models", "preload", "min_stages", "paths", "peers", "draining", "lag_s", "job_s", "idle", "disk_error", "speeds", "drafts", "issues", "aliases", "presets", "crashed", "kv_disk", "kv_budget", "kv_uncopied")
    INFO_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    MIN_STAGES_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    JOB_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    DISK_ERROR_FIELD_NUMBER: _ClassVar[int]
    SPEEDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ISSUES_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    CRASHED_FIELD_NUMBER: _ClassVar[int]
    KV_DISK_FIELD_NUMBER: _ClassVar[int]
    KV_BUDGET_FIELD_NUMBER: _ClassVar[int]
    KV_UNCOPIED_FIELD_NUMBER: _ClassVar[int]
    info: NodeInfo
    memory: Memory
    term: int
    head: str
    fence: Fence
    stages: _containers.RepeatedCompositeFieldContainer[StageReport]
    traffic: _containers.RepeatedCompositeFieldContainer[RingTraffic]
    models: _containers.RepeatedCompositeFieldContainer[HeldModel]
    preload: _containers.RepeatedScalarFieldContainer[str]
    min_stages: int
    paths: _containers.RepeatedCompositeFieldContainer[Path]
    peers: _containers.RepeatedCompositeFieldContainer[PeerHint]
    draining: bool
    lag_s: float
    job_s: float
    idle: _containers.RepeatedCompositeFieldContainer[Shard]
    disk_error: str
    speeds: _containers.RepeatedCompositeFieldContainer[Speed]
    drafts: _containers.RepeatedCompositeFieldContainer[DraftChoice]
    issues: _containers.RepeatedCompositeFieldContainer[Issue]
    aliases: _containers.RepeatedCompositeFieldContainer[Alias]
    presets: _containers.RepeatedCompositeFieldContainer[Preset]
    crashed: _containers.RepeatedCompositeFieldContainer[Crash]
    kv_disk: int
    kv_budget: int
    kv_uncopied: int
    def __init__(self, info: _Optional[_Union[NodeInfo, _Mapping]] = ..., memory: _Optional[_Union[Memory, _Mapping]] = ..., term: _Optional[int] = ..., head: _Optional[str] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[StageReport, _Mapping]]] = ..., traffic: _Optional[_Iterable[_Union[RingTraffic, _Mapping]]] = ..., models: _Optional[_Iterable[_Union[HeldModel, _Mapping]]] = ..., preload: _Optional[_Iterable[str]] = ..., min_stages: _Optional[int] = ..., paths: _Optional[_Iterable[_Union[Path, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PeerHint, _Mapping]]] = ..., draining: _Optional[bool] = ..., lag_s: _Optional[float] = ..., job_s: _Optional[float] = ..., idle: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., disk_error: _Optional[str] = ..., speeds: _Optional[_Iterable[_Union[Speed, _Mapping]]] = ..., drafts: _Optional[_Iterable[_Union[DraftChoice, _Mapping]]] = ..., issues: _Optional[_Iterable[_Union[Issue, _Mapping]]] = ..., aliases: _Optional[_Iterable[_Union[Alias, _Mapping]]] = ..., presets: _Optional[_Iterable[_Union[Preset, _Mapping]]] = ..., crashed: _Optional[_Iterable[_Union[Crash, _Mapping]]] = ..., kv_disk: _Optional[int] = ..., kv_budget: _Optional[int] = ..., kv_uncopied: _Optional[int] = ...) -> None: ...

class StageSpec(_message.Message):
    __slots__ = ("node", "start", "end")
    NODE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    node: str
    start: int
    end: int
    def __init__(self, node: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Ring(_message.Message):
    __slots__ = ("id", "model", "stages", "context", "max_sessions", "fence", "shared_ends", "retiring", "revision", "kv_bits", "draft", "gain")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SHARED_ENDS_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KV_BITS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    stages: _containers.RepeatedCompositeFieldContainer[StageSpec]
    context: int
    max_sessions: int
    fence: Fence
    shared_ends: bool
    retiring: bool
    revision: str
    kv_bits: int
    draft: Shard
    gain: float
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageSpec, _Mapping]]] = ..., context: _Optional[int] = ..., max_sessions: _Optional[int] = ..., fence: _Optional[_Union[Fence, _Mapping]] = ..., shared_ends: _Optional[bool] = ..., retiring: _Optional[bool] = ..., revision: _Optional[str] = ..., kv_bits: _Optional[int] = ..., draft: _Optional[_Union[Shard, _Mapping]] = ..., gain: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("model", "code", "message", "hint")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    model: str
    code: str
    message: str
    hint: str
    def __init__(self, model: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("fence", "head", "rings", "refused", "specs")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    RINGS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SPECS_FIELD_NUMBER: _ClassVar[int]
    fence: Fence
    head: str
    rings: _containers.RepeatedCompositeFieldContainer[Ring]
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    specs: _containers.RepeatedCompositeFieldContainer[ModelSpec]
    def __init__(self, fence: _Optional[_Union[Fence, _Mapping]] = ..., head: _Optional[str] = ..., rings: _Optional[_Iterable[_Union[Ring, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., specs: _Optional[_Iterable[_Union[ModelSpec, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("report", "placement", "node", "digest", "held")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    report: NodeReport
    placement: Placement
    node: str
    digest: int
    held: int
    def __init__(self, report: _Optional[_Union[NodeReport, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., node: _Optional[str] = ..., digest: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...
