"""Schema of requests to /v1/chat/completions, which the other surfaces translate theirs to."""

from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from api.chat.adapter import Adapter
from api.chat.message import Message, StrictModel, Whole
from api.chat.parameters import IGNORED, Refused
from api.chat.schema import MAX_INT, GenerationRequest, MaxTokens, Verbosity
from api.chat.tools import AnyTool, FunctionCallChoice, FunctionTool, ToolChoice, ToolUse, tool_use
from api.http.errors import Unsupported
from api.http.json_object import Counts
from api.http.limits import MAX_MESSAGES, MAX_PICTURES, MAX_TOOLS, MAX_VARIABLES
from node.core.errors import BadRequest

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class OpenRouterReasoning(StrictModel):
    """As OpenRouter has it."""

    effort: Effort | None = None
    max_tokens: Whole | None = Field(default=None, ge=0, le=MAX_INT)


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
    max_tokens: MaxTokens = Field(default=None, ge=1, le=MAX_INT)
    max_completion_tokens: MaxTokens = Field(default=None, ge=1, le=MAX_INT)
    logprobs: bool = False
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    tools: list[AnyTool] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    functions: list[FunctionTool] = Field(default=[], max_length=MAX_TOOLS, fail_fast=True)
    function_call: FunctionCallChoice | None = None
    modalities: list[Literal["text", "audio"]] = Field(default=["text"], max_length=MAX_VARIABLES, fail_fast=True)
    echo: Annotated[bool, Refused()] = False
    chat_template: Annotated[str, Refused("the model's own template makes the prompt")] = ""
    audio: Annotated[Any, Refused("models give only text here")] = None
    chat_template_kwargs: dict[str, Any] = Field(default={}, max_length=MAX_VARIABLES)
    reasoning_effort: Effort | None = None
    reasoning: OpenRouterReasoning = OpenRouterReasoning()
    # Maximum tokens of thoughts, by the names of mlx-vlm, of Qwen's API and of vLLM.
    max_thinking_tokens: Whole | None = Field(default=None, ge=0, le=MAX_INT)
    thinking_budget: Whole | None = Field(default=None, ge=0, le=MAX_INT)
    thinking_token_budget: Whole | None = Field(default=None, ge=0, le=MAX_INT)
    verbosity: Annotated[Verbosity, IGNORED] = "medium"
    adapter: Adapter | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    """Not of OpenAI's chat, but of its Responses: whether the oldest messages are left out of a chat that is too long."""
    _for_template: list[dict[str, Any]] = PrivateAttr(default=[])
    _pictures: list[bytes] = PrivateAttr(default=[])

    @property
    def answer_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def thinking_tokens(self) -> int | None:
        """Maximum tokens of thoughts; None: as many as the model likes."""
        said = (self.max_thinking_tokens, self.thinking_budget, self.thinking_token_budget, self.reasoning.max_tokens)
        return min((each for each in said if each is not None), default=None)

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the template. `reasoning_effort` is one, which some models' templates use."""
        said = self.reasoning_effort or self.reasoning.effort
        effort = {} if said is None else {"reasoning_effort": said}
        return {**effort, **self.chat_template_kwargs}

    @property
    def messages_for_template(self) -> list[dict[str, Any]]:
        """Messages in the form that templates expect; empty if there is an adapter, which replaces the template."""
        return self._for_template

    @property
    def pictures(self) -> list[bytes]:
        """The files of the messages' pictures, in their order."""
        return self._pictures

    @property
    def tool_use(self) -> ToolUse:
        """Raises BadRequest."""
        if (self.functions or self.function_call) and not self.tools:
            return tool_use(self.functions, self.function_call, many=False, legacy=True)
        return tool_use(self.tools, self.tool_choice, many=self.parallel_tool_calls, legacy=False)

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
        for name in NOT_FOR_TEMPLATES.intersection(self.chat_template_kwargs):
            raise BadRequest(
                f"Invalid 'chat_template_kwargs': '{name}' is no variable of a template.", param="chat_template_kwargs"
            )
        self._pictures = [picture for message in self.messages for picture in message.pictures]
        if (sent := len(self._pictures)) > MAX_PICTURES:
            raise BadRequest(f"The messages have {sent} pictures; {MAX_PICTURES} are the most.", param="messages")
        calls = [call for message in self.messages for call in message.calls]
        if self.adapter:
            if self.tools or self.functions or calls or self._pictures:
                raise BadRequest("An 'adapter' cannot be combined with tools, tool calls or pictures.", param="adapter")
            self.stop = [*self.stop, *self.adapter.stops]
        if "audio" in self.modalities:
            raise Unsupported("Only text is supported in 'modalities'.", param="modalities")
        if self.adapter is None:
            # Here, as validation runs in a thread for large requests.
            Counts.of_all([call.arguments.encode() for call in calls]).check()
            numbers = accumulate((len(message.pictures) for message in self.messages), initial=0)
            self._for_template = [
                message.for_template(first) for message, first in zip(self.messages, numbers, strict=False)
            ]
        return self
