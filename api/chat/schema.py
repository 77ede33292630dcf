"""Request schemas. null means "not given", unknown parameters are ignored, known ones are validated."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from api.chat.forms import KINDS, OFF, Format, check_off, format_of
from api.chat.message import StrictModel, Whole, join_parts
from api.chat.parameters import IGNORED
from api.chat.response_format import ResponseFormat
from api.http.errors import Unsupported
from api.http.json_object import Json
from api.http.limits import (
    MAX_ALLOWED_TOKENS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_INPUTS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)
from node.core.errors import BadRequest, PippinError
from node.core.generation import RANGES, Sampling
from node.core.limits import MAX_NAME_CHARS

MAX_INT = 2**31 - 1
SEEDS = 2**63
TOKEN_ID = re.compile(r"[0-9]{1,9}")


def _stop_list(value: Any) -> Any:
    """A stop string or a list of them, as a list."""
    stops = [value] if isinstance(value, str) else value
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        raise PydanticCustomError("stop", f"Input should have at most {MAX_STOPS} strings, not {len(stops)}")
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", "Input should be a string or a list of strings")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARS:
        raise PydanticCustomError("stop", f"A string should have at most {MAX_STOP_CHARS} characters, not {longest}")
    return stops


Stops = Annotated[list[str], BeforeValidator(_stop_list)]


def _bias_by_token(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise PydanticCustomError("logit_bias", "Input should be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("logit_bias", f"Input should have at most {MAX_BIASES} tokens, not {len(value)}")
    for token, bias in value.items():
        if not TOKEN_ID.fullmatch(token):
            raise PydanticCustomError("logit_bias", "{token} is not a token id", {"token": repr(token[:40])})
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            why = "Token {token} should have a bias from -100 to 100"
            raise PydanticCustomError("logit_bias", why, {"token": token})
    return {int(token): float(bias) for token, bias in value.items()}


def _within(name: str) -> Any:
    low, high = RANGES[name]
    return Field(default=None, ge=low, le=high)


MaxTokens = Annotated[Whole | None, BeforeValidator(lambda value: None if value == -1 else value)]
"""-1 is "no limit" to the clients of llama.cpp and Ollama."""


# A value that OpenAI lacks is a mistake, though it would have no effect.
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Verbosity = Literal["low", "medium", "high"]


PEER_NAMES = {"repeat_penalty": "repetition_penalty"}
"""Names of other servers, and those of the same parameters here."""
PEER_PARAMETERS = tuple(dict.fromkeys(name.partition(".")[0] for name in (*KINDS, *PEER_NAMES, *OFF)))
"""All that other servers call by names of their own, and is followed or refused."""
LOCAL_PARAMETERS = (
    *("min_p", "repetition_penalty", "ignore_eos", "seed", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("prediction", "stop_token_ids", "min_tokens", "allowed_token_ids"),
)
"""Parameters that the APIs of hosted models lack, which servers on one's own machines have."""


class StreamOptions(StrictModel):
    include_usage: bool | None = None


def are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _token_list(value: Any) -> list[int]:
    if value != [] and not are_tokens(value):
        raise PydanticCustomError("tokens", "Input should be a list of token ids")
    return list(value)


TokenList = Annotated[list[int], PlainValidator(_token_list)]


def _predicted(value: Any) -> str | list[int]:
    content: str | list[int] | None = value if are_tokens(value) else join_parts(value)
    if content is None:
        raise PydanticCustomError("content", "Input should be a string, a list of text parts, or a list of token ids")
    return content


class PredictedContent(StrictModel):
    """Text, or token ids, that the client expects the answer to be, in part or as a whole."""

    type: Literal["content"]
    content: Annotated[str | list[int], PlainValidator(_predicted)]


class SamplingFields(StrictModel):
    """How tokens are drawn, as far as it is said."""

    temperature: float | None = _within("temperature")
    top_p: float | None = _within("top_p")
    presence_penalty: float | None = _within("presence_penalty")
    frequency_penalty: float | None = _within("frequency_penalty")
    # Not OpenAI's, but common among local servers.
    top_k: Whole | None = _within("top_k")
    min_p: float | None = _within("min_p")
    repetition_penalty: float | None = _within("repetition_penalty")

    def said(self) -> dict[str, float]:
        return self.model_dump(include=set(RANGES), exclude_none=True)


ModelName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class GenerationRequest(SamplingFields):
    """Parameters that chat and legacy completions share."""

    model: ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Whole = Field(default=1, ge=1, le=MAX_CHOICES)
    stop: Stops = Field(default=[])
    seed: Whole | None = Field(default=None, ge=-SEEDS, lt=SEEDS)
    logit_bias: Annotated[dict[int, float], BeforeValidator(_bias_by_token)] = Field(default={})
    prediction: PredictedContent | None = None
    service_tier: Annotated[ServiceTier, IGNORED] = "auto"
    # Not OpenAI's, but common among local servers.
    ignore_eos: bool = False
    stop_token_ids: list[Whole] = Field(default=[], max_length=MAX_STOP_TOKENS, fail_fast=True)
    min_tokens: Whole = Field(default=0, ge=0, le=MAX_INT)
    allowed_token_ids: list[Whole] = Field(default=[], max_length=MAX_ALLOWED_TOKENS, fail_fast=True)
    # Of this server: what counts where neither the request nor the model says it, instead of OpenAI's defaults.
    sampling_defaults: SamplingFields = SamplingFields()
    response_format: ResponseFormat | None = None
    _peer_format: Format | None = PrivateAttr(default=None)
    """Where another server's name says it."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_peer_names(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """What vLLM, llama.cpp and SGLang call by other names."""
        if not isinstance(value, dict):
            return validate(value)
        check_off(value)
        renamed = {own: value[name] for name, own in PEER_NAMES.items() if name in value}
        asked = validate({**renamed, **value})
        asked._peer_format = peers = format_of(value)  # noqa: SLF001
        if peers and asked.format is not peers:
            raise BadRequest(
                f"'response_format' and '{peers.param}' can't both say the form of the answer.", param=peers.param
            )
        return asked

    @property
    def format(self) -> Format | None:
        """The form that the answer must have."""
        own = self.response_format.json_format if self.response_format else None
        return own or self._peer_format

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def copies(self) -> int:
        """Number of answers generated for each prompt."""
        return self.n

    @property
    def is_middle(self) -> bool:
        """Whether the answer is the text between two others."""
        return False

    @property
    def answer_tokens(self) -> int | None:
        """Maximum tokens of an answer; None: as many as fit in the context."""
        return None

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of alternatives reported for each token; None: no log-probabilities."""
        return None

    def sampling(self, of_model: Mapping[str, float]) -> Sampling:
        """Parameters of the request, else of the model, else of `sampling_defaults`, else OpenAI's; a random seed."""
        drawn: dict[str, Any] = {**self.sampling_defaults.said(), **of_model, **self.said()}
        drawn["top_k"] = max(int(drawn.get("top_k", 0)), 0)  # other servers take -1 for none, too
        return Sampling(
            **drawn,
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed % SEEDS,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            only=tuple(self.allowed_token_ids),
            logprobs=self.wanted_logprobs,
        )

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        return self

    @model_validator(mode="after")
    def _least_is_within_most(self) -> Self:
        if self.answer_tokens is not None and self.min_tokens > self.answer_tokens:
            most = f"the most tokens of an answer are {self.answer_tokens}"
            raise BadRequest(f"Invalid 'min_tokens': it is {self.min_tokens}, but {most}.", param="min_tokens")
        return self


def text_list(value: Any, name: str) -> list[str | list[int]]:
    """One text or several, each a string or token ids, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if type(value[0]) is int and are_tokens(value):
            return [value]
        if len(value) > MAX_INPUTS:
            raise PydanticCustomError(name, f"Input should have at most {MAX_INPUTS} texts, not {len(value)}")
        if all(isinstance(prompt, str) for prompt in value) or all(are_tokens(prompt) for prompt in value):
            return value
    raise PydanticCustomError(name, "Input should be a string, a list of token ids, or a list of one of these")


class CompletionRequest(GenerationRequest):
    # A PlainValidator does all checks: pydantic's own validators would collect an error for each wrong element.
    prompt: Annotated[list[str | list[int]], PlainValidator(lambda value: text_list(value, "prompt"))]
    max_tokens: MaxTokens = Field(default=16, ge=0, le=MAX_INT)
    logprobs: Whole | None = Field(default=None, ge=0, le=5)
    echo: bool = False
    best_of: Whole | None = Field(default=None, ge=1, le=MAX_CHOICES)
    suffix: str | None = None
    # Of vLLM: whether the prompt begins with the token that begins a text.
    add_special_tokens: bool = True

    @property
    def copies(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def is_middle(self) -> bool:
        return bool(self.suffix)

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """`best_of` needs them even if the client does not."""
        return 0 if self.logprobs is None and self.copies > self.n else self.logprobs

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if self.copies < self.n:
            raise BadRequest(f"'best_of' ({self.best_of}) must not be less than 'n' ({self.n}).", param="best_of")
        if self.copies > self.n and self.stream:
            raise BadRequest(
                f"'best_of' ({self.best_of}) greater than 'n' ({self.n}) cannot be streamed.", param="best_of"
            )
        if self.suffix and self.echo:
            raise Unsupported("'echo' is not supported together with 'suffix'.", param="echo")
        return self


Request = TypeVar("Request", bound=BaseModel)
Names = Sequence[tuple[str, str]]
"""Patterns of chat's parameter names, and the names of the same parameters on another surface."""


def parse(schema: type[Request], body: Json, names: Names = ()) -> Request:
    """Validate a body. `names`: if it was translated, as in `renamed_params`. Raises BadRequest."""
    with renamed_params(names):
        try:
            return schema.model_validate({name: value for name, value in body.items() if value is not None})
        except ValidationError as error:
            raise _refusal(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error


@contextmanager
def renamed_params(names: Names) -> Iterator[None]:
    """Errors of a request that was translated to a chat name the parameters that its sender used."""
    try:
        yield
    except PippinError as error:
        for pattern, name in names:
            if error.param and re.search(pattern, error.param):
                renamed = re.sub(pattern, name, error.param)
                error.message = error.message.replace(f"'{error.param}'", f"'{renamed}'")
                error.param = renamed
        raise


def _refusal(error: ErrorDetails) -> BadRequest:
    """Error for the first fault found, in a sentence, with the parameter's name as OpenAI writes it."""
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return BadRequest(f"Missing required parameter: '{param}'.", param=param)
    said = "input should be an object" if error["type"] in ("model_type", "dict_type") else error["msg"]
    kind = Unsupported if error["type"] == "unsupported" else BadRequest
    return kind(f"Invalid '{param}': {said[:1].lower()}{said[1:]}.", param=param)
