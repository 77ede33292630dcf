"""Schemas of Ollama's requests; what they share with chat and completions is validated by the schemas of those."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from api.chat.message import StrictModel, Whole
from api.chat.parameters import WIDTH, Refused
from api.chat.schema import MAX_INT, ModelName, Stops, TokenList
from api.http.json_object import Json
from api.http.limits import MAX_INPUTS, MAX_MESSAGES, MAX_TOOLS
from api.ollama.messages import Images, OllamaMessage
from node.core.errors import BadRequest
from node.core.limits import MAX_NAME_CHARS

DEFAULTS: Mapping[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Sampling where neither the request nor the model says it: Ollama's. It has a `repeat_penalty` as well, but over 64 tokens only."""
SHARED = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")},
    **{name: name for name in ("seed", "typical_p")},
    "repeat_penalty": "repetition_penalty",
}
"""Options that chat and completions have, and their names there."""
NAMES = {chat: own for own, chat in SHARED.items()}
LEVELS = ("low", "medium", "high", "max")
_DURATION = re.compile(r"([-+]?)((?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|ms|s|m|h))+)")
_DURATION_PART = re.compile(r"([0-9.]+)([a-zµ]+)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")


def _seconds(value: Any) -> Any:
    """Seconds of a `keep_alive`: a number, or a text like "5m"; negative: for good."""
    if isinstance(value, str) and len(value) <= MAX_NAME_CHARS:
        if _NUMBER.fullmatch(value):
            return float(value)
        if found := _DURATION.fullmatch(value):
            total = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(found[2]))
            return -total if found[1] == "-" else total
    elif type(value) in (int, float):
        return value
    raise PydanticCustomError("keep_alive", 'Input should be a number of seconds or a duration like "5m"')


def _format(value: Any) -> Any:
    if value in ("", "json") or isinstance(value, dict):
        return value or None
    raise PydanticCustomError("format", 'Input should be "json" or a JSON schema')


def _think(value: Any) -> Any:
    if isinstance(value, bool) or value in LEVELS:
        return value
    raise PydanticCustomError("think", f"Input should be true, false or one of {', '.join(LEVELS)}")


def _texts(value: Any) -> Any:
    """One text or several, as a list; an empty one alone is none."""
    texts = [value] if isinstance(value, str) and value else value or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError("input", "Input should be a string or a list of strings")
    if len(texts) > MAX_INPUTS:
        raise PydanticCustomError("input", f"Input should have at most {MAX_INPUTS} texts, not {len(texts)}")
    return texts


class ModelOptions(StrictModel):
    """The options that change the answer; all others are ignored."""

    temperature: float | None = None
    top_k: Whole | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    """Refused unless 1, as in chat."""
    seed: Whole | None = None
    num_predict: Whole | None = None
    stop: Annotated[Stops, BeforeValidator(lambda value: value or [])] = Field(default=[])
    repeat_penalty: float | None = None
    repeat_last_n: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @property
    def max_tokens(self) -> int | None:
        """None: as many as fit into the context, which Ollama writes as 0, -1 or -2."""
        return self.num_predict if self.num_predict and self.num_predict > 0 else None

    def shared(self) -> Json:
        """The options that chat and completions have, by their names there."""
        given = self.model_dump(include=set(SHARED), exclude_none=True)
        if self.seed == -1:  # Ollama's way to write that any will do
            del given["seed"]
        if self.repeat_last_n == 0:
            given.pop("repeat_penalty", None)
        renamed = {SHARED[name]: value for name, value in given.items()}
        return {**renamed, "stop": self.stop, "sampling_defaults": DEFAULTS}


class ModelRequest(StrictModel):
    """A request that names a model; in older clients `name` does."""

    model: str = Field(default="", max_length=MAX_NAME_CHARS)
    name: str = Field(default="", max_length=MAX_NAME_CHARS)
    stream: bool = True

    @property
    def wanted(self) -> str:
        """Raises BadRequest if no model is named."""
        if wanted := self.model or self.name:
            return wanted
        raise BadRequest("Missing required parameter: 'model'.", param="model")


class _Asking(StrictModel):
    model: ModelName
    options: ModelOptions = ModelOptions()
    keep_alive: Annotated[float | None, BeforeValidator(_seconds)] = None


class Generation(_Asking):
    """What /api/chat and /api/generate share."""

    stream: bool = True
    format: Annotated[str | Json | None, BeforeValidator(_format)] = None
    think: Annotated[bool | str | None, BeforeValidator(_think)] = None
    logprobs: bool = False
    top_logprobs: Whole = Field(default=0, ge=0, le=20)
    truncate: bool = True

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of alternatives reported for each token; None: no log-probabilities."""
        return self.top_logprobs if self.logprobs else None

    def for_chat(self, messages: list[Json]) -> Json:
        """Body of the equivalent chat request; None is not given."""
        thinks = None if self.format or self.think is None else {"enable_thinking": self.think is not False}
        return {
            "model": self.model,
            "stream": self.stream,
            "messages": messages,
            **self.options.shared(),
            "max_completion_tokens": self.options.max_tokens,
            "logprobs": self.logprobs,
            "top_logprobs": self.wanted_logprobs,
            "reasoning_effort": self.think if isinstance(self.think, str) else None,
            "response_format": self.response_format,
            "chat_template_kwargs": thinks,
            "truncation": "auto" if self.truncate else "disabled",
        }

    @property
    def response_format(self) -> Json:
        if isinstance(self.format, dict):
            return {"type": "json_schema", "json_schema": {"name": "format", "schema": self.format}}
        return {"type": "json_object" if self.format else "text"}


class ChatBody(Generation):
    messages: list[OllamaMessage] = Field(default=[], max_length=MAX_MESSAGES, fail_fast=True)
    tools: list[Json] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)


class GenerateBody(Generation):
    prompt: str = ""
    system: str = ""
    raw: bool = False
    suffix: str = ""
    template: Annotated[str, Refused()] = ""
    context: TokenList = Field(default=[])
    """Tokens of the conversation before the prompt, from an earlier answer."""
    images: Images = Field(default=[])


class EmbedBody(_Asking):
    input: Annotated[list[str], BeforeValidator(_texts)] = Field(default=[])
    truncate: bool = True
    dimensions: Annotated[Whole, WIDTH] = Field(default=0, ge=0, le=MAX_INT)


class EmbeddingsBody(_Asking):
    """A request to /api/embeddings, the predecessor of /api/embed."""

    prompt: str = ""
