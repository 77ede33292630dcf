"""Schema of requests to /v1/responses; parameters shared with chat are validated by the chat schema."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from api.chat.message import Name, Whole, WithoutNulls
from api.chat.parameters import IGNORED, RETURNED, Refused
from api.chat.request import Effort
from api.chat.schema import LOCAL_PARAMETERS, MAX_INT, PEER_PARAMETERS, MaxTokens, ModelName, ServiceTier, Verbosity
from api.http.limits import MAX_METADATA, MAX_TOOLS, MAX_VARIABLES
from api.responses.items import Item, items_of
from api.responses.tools import Place, PlacedFunction, flat_name, functions_of
from node.core.errors import BadRequest

EXTENSIONS = (
    *("top_k", *LOCAL_PARAMETERS, "stop", "chat_template_kwargs", "adapter"),
    *("reasoning_effort", "max_thinking_tokens", "thinking_budget", "thinking_token_budget"),
)
"""Parameters that OpenAI's Responses API lacks."""
CHAT_PARAMETERS = ("temperature", "top_p", "parallel_tool_calls", "truncation", *EXTENSIONS, *PEER_PARAMETERS)
"""Parameters passed to chat by the same names."""

PARAMS = (
    (r"^messages\b.*", "input"),
    (r"^max_completion_tokens$", "max_output_tokens"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^reasoning_effort$", "reasoning.effort"),
)
"""Patterns of chat's parameter names, and the names of the same parameters here; those of functions depend on the request."""
AT_OPENAI = Refused("it refers to data stored at OpenAI")
LOGPROBS = "message.output_text.logprobs"
Includable = Literal[
    "message.output_text.logprobs",
    # Of no effect here:
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class Format(WithoutNulls):
    """Format of the answer. Unlike in chat, the name and schema of a `json_schema` are on this level."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        given = self.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return {"type": self.type, "json_schema": given}


class TextConfig(WithoutNulls):
    format: Format = Format()
    verbosity: Verbosity = "medium"


class Reasoning(WithoutNulls):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    max_tokens: Whole | None = Field(default=None, ge=0, le=MAX_INT)


def _check_count(metadata: Any) -> Any:
    """Check the number of entries first: pydantic would report an error for each wrong entry."""
    if isinstance(metadata, dict) and len(metadata) > MAX_METADATA:
        raise PydanticCustomError("metadata", f"Input should have at most {MAX_METADATA} entries, not {len(metadata)}")
    return metadata


class ResponseRequest(WithoutNulls):
    model: ModelName
    input: Annotated[list[Item], BeforeValidator(items_of)]
    instructions: str | None = None
    previous_response_id: Name | None = None
    store: bool = True
    stream: bool = False
    background: bool = False
    max_output_tokens: MaxTokens = Field(default=None, ge=1, le=MAX_INT)
    include: list[Includable] = Field(default=[], max_length=MAX_VARIABLES, fail_fast=True)
    top_logprobs: Whole = Field(default=0, ge=0, le=20)
    text: TextConfig = TextConfig()
    tools: list[dict[str, Any]] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: Annotated[Whole | None, RETURNED] = Field(default=None, ge=1, le=MAX_INT)
    reasoning: Reasoning = Reasoning()
    metadata: Annotated[dict[str, Name], BeforeValidator(_check_count)] = Field(default_factory=dict)
    truncation: Literal["auto", "disabled"] = "disabled"
    service_tier: Annotated[ServiceTier, IGNORED] = "auto"
    user: Annotated[Name | None, RETURNED] = None
    safety_identifier: Annotated[Name | None, RETURNED] = None
    prompt_cache_key: Annotated[Name | None, RETURNED] = None
    response_format: Annotated[Any, Refused("it is text.format in this API")] = None
    conversation: Annotated[Any, AT_OPENAI] = None
    prompt: Annotated[Any, AT_OPENAI] = None
    _functions: list[PlacedFunction] = PrivateAttr(default=[])

    @property
    def logprobs(self) -> int | None:
        """Number of alternatives reported for each token; None: no log-probabilities."""
        return self.top_logprobs if LOGPROBS in self.include else None

    @model_validator(mode="after")
    def _only_what_is_supported(self) -> Self:
        if self.background and not self.store:
            raise BadRequest("A background response must be stored.", param="store")
        self._functions = functions_of(self.tools)
        if any(len(key) > 64 for key in self.metadata):
            raise BadRequest("Invalid 'metadata': a key may have at most 64 characters.", param="metadata")
        return self

    @property
    def params(self) -> Sequence[tuple[str, str]]:
        """Patterns of chat's parameter names, and the names of the same parameters here."""
        functions = enumerate(self._functions)
        places = [
            pattern
            for index, each in functions
            for pattern in (
                (rf"^tools\[{index}\]\.custom\.format\.grammar", f"{each.param}.format"),
                (rf"^tools\[{index}\]\.(function|custom)", each.param),
            )
        ]
        return (*places, *PARAMS)

    def place_of(self, name: str) -> Place:
        """Where the request has the function that chat knows by this name."""
        return next((each.place for each in self._functions if flat_name(each.place) == name), Place(None, name))

    def for_chat(self, messages: list[dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
        """Body of the equivalent chat request; None is not given. `given`: the original body of this request."""
        choice: Any = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            choice = {"type": "allowed_tools", "allowed_tools": choice}
        needs_choice = self._functions or choice not in ("auto", "none")
        return {
            **{name: given.get(name) for name in CHAT_PARAMETERS},
            "model": self.model,
            "messages": messages,
            "stream": self.stream and not self.background,
            "max_completion_tokens": self.max_output_tokens,
            "logprobs": self.logprobs is not None,
            "top_logprobs": self.logprobs,
            "response_format": self.text.format.for_chat(),
            "reasoning_effort": self.reasoning.effort or given.get("reasoning_effort"),
            "reasoning": {"max_tokens": self.reasoning.max_tokens},
            "tools": [each.for_chat for each in self._functions],
            "tool_choice": choice if needs_choice else None,
        }
