"""Schemas of requests to /v1/messages. Parameters that are shared with chat are validated by the chat schema."""

import reprlib
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from api.anthropic.content import chat_messages, system_text
from api.chat.forms import format_of
from api.chat.message import Name, Whole, WithoutNulls
from api.chat.parameters import IGNORED, Refused
from api.chat.request import Effort
from api.chat.schema import LOCAL_PARAMETERS, MAX_INT, PEER_PARAMETERS, ModelName
from api.http.json_object import Json
from api.http.limits import MAX_STOP_CHARS, MAX_STOPS, MAX_TOOLS
from node.core.errors import BadRequest

EXTENSIONS = (*LOCAL_PARAMETERS, "adapter", "max_thinking_tokens", "thinking_budget", "thinking_token_budget")
"""Parameters that Anthropic's API lacks."""
CHAT_PARAMETERS = ("temperature", "top_p", "top_k", *EXTENSIONS, *PEER_PARAMETERS)
"""Parameters passed to chat by the same names."""
AT_ANTHROPIC = Refused("Anthropic runs it")
MIN_BUDGET = 1024
"""The smallest `budget_tokens` that Anthropic accepts."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""`tool_choice.type`, and chat's `tool_choice`."""


class OfferedTool(WithoutNulls):
    name: str
    description: str | None = None
    input_schema: Json
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_custom(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in (None, "custom"):
            raise PydanticCustomError(
                "unsupported",
                "Tools of type {kind} are not supported, only those with an input_schema of their own",
                {"kind": reprlib.repr(kind)},
            )
        return value

    def for_chat(self) -> Json:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {**function, "strict": self.strict}}


class ToolChoice(WithoutNulls):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _names_its_tool(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise BadRequest("Missing required parameter: 'tool_choice.name'.", param="tool_choice.name")
        return self

    def for_chat(self) -> Json:
        named = {"type": "function", "function": {"name": self.name}}
        choice = named if self.type == "tool" else CHOICES[self.type]
        return {"tool_choice": choice, "parallel_tool_calls": not self.disable_parallel_tool_use}


class ThinkingConfig(WithoutNulls):
    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Whole | None = Field(default=None, ge=MIN_BUDGET, le=MAX_INT)
    display: Literal["summarized", "omitted"] = "summarized"

    @model_validator(mode="after")
    def _has_its_budget(self) -> Self:
        if self.type == "enabled" and self.budget_tokens is None:
            raise BadRequest("Missing required parameter: 'thinking.budget_tokens'.", param="thinking.budget_tokens")
        return self


class OutputFormat(WithoutNulls):
    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")


class OutputConfig(WithoutNulls):
    effort: Effort | None = None
    format: OutputFormat | None = None


class MessageMetadata(WithoutNulls):
    user_id: Name | None = None


class PromptRequest(WithoutNulls):
    """What a prompt is made of. By itself, a request to count its tokens."""

    model: ModelName
    messages: Annotated[list[Json], PlainValidator(chat_messages)]
    """As chat messages."""
    system: Annotated[str, PlainValidator(system_text)] = ""
    tools: list[OfferedTool] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    thinking: ThinkingConfig = ThinkingConfig(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`."""
    chat_template_kwargs: Json = Field(default_factory=dict)
    """Variables for the template: not in Anthropic's API."""
    response_format: Annotated[Any, Refused("it is output_config.format in this API")] = None
    mcp_servers: Annotated[Any, AT_ANTHROPIC] = None
    container: Annotated[Any, AT_ANTHROPIC] = None

    def for_chat(self, given: Json) -> Json:
        """Body of the equivalent chat request; None is not given. `given`: the original body of this request."""
        form = self.output_config.format or self.output_format
        schema = {"name": "answer", "schema": form.schema_} if form else None
        # A demanded format or call leaves no room for thoughts.
        forced = self.tool_choice.type in ("any", "tool")
        demanded = form or forced or format_of(given)
        thinks = self.thinking.type in ("enabled", "adaptive") and not demanded
        messages, texts = self.messages, [self.system]
        if messages and messages[0]["role"] == "system":
            texts.append(messages[0]["content"])
            messages = messages[1:]
        if system := "\n".join(filter(None, texts)):
            messages = [{"role": "system", "content": system}, *messages]
        return {
            **{name: given.get(name) for name in CHAT_PARAMETERS},
            "model": self.model,
            "messages": messages,
            "tools": [tool.for_chat() for tool in self.tools],
            **(self.tool_choice.for_chat() if self.tools or forced else {}),
            "response_format": {"type": "json_schema", "json_schema": schema} if schema else None,
            "reasoning_effort": self.output_config.effort,
            "chat_template_kwargs": {"enable_thinking": thinks, **self.chat_template_kwargs},
            "reasoning": {"max_tokens": self.thinking.budget_tokens if thinks else None},
        }


class MessagesRequest(PromptRequest):
    max_tokens: Whole = Field(ge=0, le=MAX_INT)
    """0 only computes the prompt, so that later requests can use it."""
    stop_sequences: list[Annotated[str, Field(max_length=MAX_STOP_CHARS)]] = Field(
        default=[], max_length=MAX_STOPS, fail_fast=True
    )
    stream: bool = False
    metadata: Annotated[MessageMetadata, IGNORED] = MessageMetadata()
    service_tier: Annotated[Literal["auto", "standard_only"], IGNORED] = "auto"

    @model_validator(mode="after")
    def _thoughts_fit(self) -> Self:
        budget = self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise BadRequest(
                f"Invalid 'thinking.budget_tokens': {budget} is not less than 'max_tokens' ({self.max_tokens}).",
                param="thinking.budget_tokens",
            )
        return self

    def for_chat(self, given: Json) -> Json:
        # The driver computes a prompt only for a token.
        most = max(self.max_tokens, 1)
        own = {"max_completion_tokens": most, "stream": self.stream, "stop": self.stop_sequences}
        return {**super().for_chat(given), **own}
