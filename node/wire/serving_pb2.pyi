from node.wire import bounds_pb2 as _bounds_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvQuery(_message.Message):
    __slots__ = ("chain", "first", "end")
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    chain: bytes
    first: int
    end: int
    def __init__(self, chain: _Optional[bytes] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class KvSpan(_message.Message):
    __slots__ = ("block", "first", "end")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    block: int
    first: int
    end: int
    def __init__(self, block: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class KvFound(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[KvSpan]
    def __init__(self, spans: _Optional[_Iterable[_Union[KvSpan, _Mapping]]] = ...) -> None: ...

class KvPart(_message.Message):
    __slots__ = ("data", "ends")
    DATA_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    ends: bool
    def __init__(self, data: _Optional[bytes] = ..., ends: _Optional[bool] = ...) -> None: ...

class KvCopy(_message.Message):
    __slots__ = ("model", "chain", "data")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    model: str
    chain: bytes
    data: bytes
    def __init__(self, model: _Optional[str] = ..., chain: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class KvKept(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "min_tokens", "late", "only")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    logprobs: int
    min_tokens: int
    late: _containers.RepeatedScalarFieldContainer[int]
    only: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., logprobs: _Optional[int] = ..., min_tokens: _Optional[int] = ..., late: _Optional[_Iterable[int]] = ..., only: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("id", "ring", "model", "prompt", "resume", "max_tokens", "stop_tokens", "sampling", "grammar", "client", "revision", "prediction", "thinking", "pictures")
    ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    id: str
    ring: str
    model: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    resume: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    grammar: str
    client: str
    revision: str
    prediction: _containers.RepeatedScalarFieldContainer[int]
    thinking: ThinkingBudget
    pictures: _containers.RepeatedCompositeFieldContainer[Picture]
    def __init__(self, id: _Optional[str] = ..., ring: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., resume: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., grammar: _Optional[str] = ..., client: _Optional[str] = ..., revision: _Optional[str] = ..., prediction: _Optional[_Iterable[int]] = ..., thinking: _Optional[_Union[ThinkingBudget, _Mapping]] = ..., pictures: _Optional[_Iterable[_Union[Picture, _Mapping]]] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("width", "height", "pixels")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    pixels: bytes
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ..., pixels: _Optional[bytes] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("tokens", "begin", "ends", "closing")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    begin: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    closing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[int] = ..., begin: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., closing: _Optional[_Iterable[int]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenEvent(_message.Message):
    __slots__ = ("position", "token", "logprob", "top", "finish", "cached_tokens", "accepted_prediction_tokens")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PREDICTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[Candidate]
    finish: str
    cached_tokens: int
    accepted_prediction_tokens: int
    def __init__(self, position: _Optional[int] = ..., token: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., finish: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., accepted_prediction_tokens: _Optional[int] = ...) -> None: ...

class PromptProgress(_message.Message):
    __slots__ = ("done", "total")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class TokenEvents(_message.Message):
    __slots__ = ("events", "progress")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TokenEvent]
    progress: PromptProgress
    def __init__(self, events: _Optional[_Iterable[_Union[TokenEvent, _Mapping]]] = ..., progress: _Optional[_Union[PromptProgress, _Mapping]] = ...) -> None: ...

class EvaluateRequest(_message.Message):
    __slots__ = ("id", "ring", "model", "prompt", "top", "client", "revision", "among")
    ID_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AMONG_FIELD_NUMBER: _ClassVar[int]
    id: str
    ring: str
    model: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    top: int
    client: str
    revision: str
    among: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., ring: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., top: _Optional[int] = ..., client: _Optional[str] = ..., revision: _Optional[str] = ..., among: _Optional[_Iterable[int]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("scores", "embedding", "among")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    AMONG_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[Score]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    among: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, scores: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., embedding: _Optional[_Iterable[float]] = ..., among: _Optional[_Iterable[float]] = ...) -> None: ...

class FileRequest(_message.Message):
    __slots__ = ("model", "name", "offset", "revision", "length")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    offset: int
    revision: str
    length: int
    def __init__(self, model: _Optional[str] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., revision: _Optional[str] = ..., length: _Optional[int] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "size", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    digest: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Listing(_message.Message):
    __slots__ = ("files", "fetching")
    FILES_FIELD_NUMBER: _ClassVar[int]
    FETCHING_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[File]
    fetching: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., fetching: _Optional[_Iterable[str]] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("data", "sha256")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    sha256: str
    def __init__(self, data: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...
