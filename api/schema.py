"""Request schemas. null means "not given", unknown parameters are ignored, known ones are validated."""

import re
import secrets
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from api.adapter import Adapter
from api.constraint import JsonFormat
from api.errors import Unsupported
from api.json_object import Counts
from api.limits import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_INPUTS,
    MAX_MESSAGES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_TOOLS,
    MAX_VARIABLES,
)
from api.message import Message, StrictModel, join_parts
from api.tools import NAME, FunctionCallChoice, FunctionTool, Tool, ToolChoice, ToolUse, tool_use
from node.core.errors import BadRequest
from node.core.generation import Sampling
from node.core.types import MAX_NAME_CHARS

MAX_INT = 2**31 - 1
SEEDS = 2**63
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TOKEN_ID = re.compile(r"[0-9]{1,9}")


def _stop_list(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        raise PydanticCustomError("stop", f"Input should have at most {MAX_STOPS} strings, not {len(stops)}")
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", "Input should be a string or a list of strings")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARS:
        raise PydanticCustomError("stop", f"A string should have at most {MAX_STOP_CHARS} characters, not {longest}")
    return stops


def _bias_by_token(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise PydanticCustomError("logit_bias", "Input should be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("logit_bias", f"Input should have at most {MAX_BIASES} tokens, not {len(value)}")
    for token, bias in value.items():
        if not TOKEN_ID.fullmatch(token):
            raise PydanticCustomError("logit_bias", "{token} is not a token id", {"token": repr(token[:40])})
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise PydanticCustomError(
                "logit_bias", "Token {token} should have a bias from -100 to 100", {"token": token}
            )
    return {int(token): float(bias) for token, bias in value.items()}


Stop = Annotated[list[str], BeforeValidator(_stop_list)]
LogitBias = Annotated[dict[int, float], BeforeValidator(_bias_by_token)]


class StreamOptions(StrictModel):
    include_usage: bool | None = None


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _predicted(value: Any) -> str | list[int]:
    content: str | list[int] | None = value if _are_tokens(value) else join_parts(value)
    if content is None:
        raise PydanticCustomError("content", "Input should be a string, a list of text parts, or a list of token ids")
    return content


class PredictedContent(StrictModel):
    """Text, or token ids, that the client expects the answer to be, in part or as a whole."""

    type: Literal["content"]
    content: Annotated[str | list[int], PlainValidator(_predicted)]


class GenerationRequest(BaseModel):
    """Parameters that chat and legacy completions share."""

    # OpenAI's names may begin with `model_`, which pydantic protects by default.
    model_config = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())

    model: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    stop: Stop = []
    seed: int | None = Field(default=None, ge=-SEEDS, lt=SEEDS)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: LogitBias = {}
    prediction: PredictedContent | None = None
    # Not OpenAI's, but common among local servers.
    top_k: int = Field(default=0, ge=-1, le=MAX_INT)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    ignore_eos: bool = False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def copies(self) -> int:
        """Number of answers generated for each prompt."""
        return self.n

    def sampling(self, logprobs: int | None) -> Sampling:
        """Sampling parameters. Without a seed, each request gets a random one."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),  # other servers take -1 for none, too
            min_p=self.min_p,
            seed=secrets.randbelow(SEEDS) if self.seed is None else self.seed % SEEDS,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            logprobs=logprobs,
        )

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        return self


class JsonSchema(StrictModel):
    name: str = Field(pattern=NAME)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def json_format(self) -> JsonFormat | None:
        """The format that the answer must have; None: any text."""
        if self.type == "text":
            return None
        if self.json_schema is None:
            return JsonFormat({"type": "object"})
        return JsonFormat(self.json_schema.schema_, strict=bool(self.json_schema.strict))

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise BadRequest(
                "Missing required parameter: 'response_format.json_schema'.", param="response_format.json_schema"
            )
        return self


# Parameters of `apply_chat_template` itself, which are not variables of the template.
NOT_FOR_TEMPLATES = frozenset(
    {
        *("messages", "conversation", "tools", "chat_template", "continue_final_message", "tokenize", "padding"),
        *("truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        *("sanitize_control_tokens", "tokenizer_kwargs", "self", "add_generation_prompt"),
    }
)


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_INT)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    functions: list[FunctionTool] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    function_call: FunctionCallChoice | None = None
    modalities: list[str] = Field(default=["text"], max_length=MAX_VARIABLES, fail_fast=True)
    audio: Any = None
    chat_template_kwargs: dict[str, Any] = Field(default={}, max_length=MAX_VARIABLES)
    reasoning_effort: Effort | None = None
    adapter: Adapter | None = None
    _for_template: list[dict[str, Any]] = PrivateAttr(default=[])

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the template. `reasoning_effort` is one, which some models' templates use."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {**effort, **self.chat_template_kwargs}

    @property
    def messages_for_template(self) -> list[dict[str, Any]]:
        """Messages in the form that templates expect; empty if there is an adapter, which replaces the template."""
        return self._for_template

    @property
    def json_format(self) -> JsonFormat | None:
        return self.response_format.json_format if self.response_format else None

    @property
    def tool_use(self) -> ToolUse:
        """Raises BadRequest."""
        if (self.functions or self.function_call) and not self.tools:
            return tool_use(self.functions, self.function_call, many=False, legacy=True)
        tools = [tool.function for tool in self.tools]
        return tool_use(tools, self.tool_choice, many=self.parallel_tool_calls, legacy=False)

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _parameters_agree(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
        for name in NOT_FOR_TEMPLATES.intersection(self.chat_template_kwargs):
            raise BadRequest(
                f"Invalid 'chat_template_kwargs': '{name}' is no variable of a template.", param="chat_template_kwargs"
            )
        return self

    @model_validator(mode="after")
    def _adapter_has_text_only(self) -> Self:
        if self.adapter is None:
            return self
        called = any(message.tool_calls or message.function_call for message in self.messages)
        if self.tools or self.functions or called:
            raise BadRequest("An 'adapter' cannot be combined with tools or tool calls.", param="adapter")
        self.stop = [*self.stop, *self.adapter.stops]
        return self

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if "audio" in self.modalities or self.audio is not None:
            raise Unsupported("Only text is supported in 'modalities'.", param="modalities")
        return self

    @model_validator(mode="after")
    def _write_for_template(self) -> Self:
        """Convert the messages. Done during validation, which runs in a thread for large requests."""
        if self.adapter is None:
            Counts.of_all([call.arguments.encode() for message in self.messages for call in message.calls]).check()
            self._for_template = [message.for_template() for message in self.messages]
        return self


def _text_list(value: Any, name: str) -> list[str | list[int]]:
    """One text or several, each a string or token ids, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if type(value[0]) is int and _are_tokens(value):
            return [value]
        if len(value) > MAX_INPUTS:
            raise PydanticCustomError(name, f"Input should have at most {MAX_INPUTS} texts, not {len(value)}")
        if all(isinstance(prompt, str) for prompt in value) or all(_are_tokens(prompt) for prompt in value):
            return value
    raise PydanticCustomError(name, "Input should be a string, a list of token ids, or a list of one of these")


class CompletionRequest(GenerationRequest):
    # A PlainValidator does all checks: pydantic's own validators would collect an error for each wrong element.
    prompt: Annotated[list[str | list[int]], PlainValidator(lambda value: _text_list(value, "prompt"))]
    max_tokens: int = Field(default=16, ge=0, le=MAX_INT)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    echo: bool = False
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    suffix: str | None = None

    @property
    def copies(self) -> int:
        return self.n if self.best_of is None else self.best_of

    @property
    def wanted_logprobs(self) -> int | None:
        """Number of alternatives per token, None for no log-probabilities.

        `best_of` needs them even if the client does not.
        """
        return 0 if self.logprobs is None and self.copies > self.n else self.logprobs

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if self.copies < self.n:
            raise BadRequest(f"'best_of' ({self.best_of}) must not be less than 'n' ({self.n}).", param="best_of")
        if self.copies > self.n and self.stream:
            raise BadRequest(
                f"'best_of' ({self.best_of}) greater than 'n' ({self.n}) cannot be streamed.", param="best_of"
            )
        if self.suffix:
            raise Unsupported("'suffix' is not supported.", param="suffix")
        return self


def _input_list(value: Any) -> list[str | list[int]]:
    inputs = _text_list(value, "input")
    if "" in inputs:
        raise PydanticCustomError("input", "Input should not be an empty string")
    return inputs


class EmbeddingRequest(BaseModel):
    model_config = ConfigDict(strict=True, protected_namespaces=())

    model: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    input: Annotated[list[str | list[int]], PlainValidator(_input_list)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=MAX_INT)

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if self.dimensions is not None:
            raise Unsupported(
                "'dimensions' is not supported: an embedding is as wide as the model's hidden states.",
                param="dimensions",
            )
        return self


class LoadRequest(BaseModel):
    """How to place a model; see node.core.models.Wish."""

    model_config = ConfigDict(strict=True)

    stages: int = Field(default=0, ge=1, le=1024)
    context: int = Field(default=0, ge=1, le=MAX_INT)


Request = TypeVar("Request", bound=BaseModel)


def parse(schema: type[Request], body: dict[str, Any]) -> Request:
    try:
        return schema.model_validate({name: value for name, value in body.items() if value is not None})
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error


def _refusal(error: ErrorDetails) -> BadRequest:
    """Error for the first fault found, in a sentence, with the parameter's name as OpenAI writes it."""
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] == "missing":
        return BadRequest(f"Missing required parameter: '{param}'.", param=param)
    said = "input should be an object" if error["type"] in ("model_type", "dict_type") else error["msg"]
    kind = Unsupported if error["type"] == "unsupported" else BadRequest
    return kind(f"Invalid '{param}': {said[:1].lower()}{said[1:]}.", param=param)
