"""koboldcpp's `adapter` parameter: text placed around each role's messages, in place of the model's chat template."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from api.chat.message import Message, StrictModel
from api.http.limits import MAX_STOP_CHARS

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tools",
    "function": "tools",
}
"""Role of a message -> role whose texts wrap it; koboldcpp calls that of tool results `tools`."""


Text = Annotated[str, Field(max_length=MAX_STOP_CHARS)]


class Wrapper(StrictModel):
    """Text placed before and after a message."""

    start: Text = ""
    end: Text = ""


class Templates(StrictModel):
    """The texts of each role; those of a role that is not given are empty."""

    system: Wrapper = Wrapper()
    user: Wrapper = Wrapper()
    assistant: Wrapper = Wrapper()
    tools: Wrapper = Wrapper()
    after_last_message: str | None = None
    """Text that the answer follows; None: the assistant's `start`."""

    @model_validator(mode="before")
    @classmethod
    def _of_flat_names(cls, value: Any) -> Any:
        """Accept koboldcpp's flat names: `user_start` for `user.start`, `assistant_gen` for `after_last_message`."""
        if not isinstance(value, dict):
            return value
        given = {name: item for name, item in value.items() if item is not None}
        nested = {name: given[name] for name in ("after_last_message", *cls.model_fields) if name in given}
        nested |= {"after_last_message": given["assistant_gen"]} if "assistant_gen" in given else {}
        for role in ("system", "user", "assistant", "tools"):
            flat = {end: given[f"{role}_{end}"] for end in ("start", "end") if f"{role}_{end}" in given}
            own = nested.get(role, {})
            if isinstance(own, dict) and (role in nested or flat):
                nested[role] = {name: text for name, text in own.items() if text is not None} | flat
        return nested


class Adapter(StrictModel):
    templates: Templates

    @model_validator(mode="before")
    @classmethod
    def _with_templates(cls, value: Any) -> Any:
        return value if not isinstance(value, dict) or "templates" in value else {"templates": value}

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.templates.model_fields_set:
            why = 'Input should have texts, like {"user": {"start": "...", "end": "..."}}'
            raise PydanticCustomError("adapter", why)
        return self

    @property
    def stops(self) -> list[str]:
        """Stop strings: texts that end an answer or begin another turn. Control tokens end an answer in any case."""
        templates = self.templates
        texts = (templates.assistant.end, templates.user.start, templates.assistant.start)
        return list(dict.fromkeys(text.strip() for text in texts if text.strip()))

    def pieces(self, messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
        """Yield pieces of the prompt, and whether each is message content. A final assistant message is left open."""
        for message in messages:
            wrapper: Wrapper = getattr(self.templates, ROLES[message.role])
            continued = message is messages[-1] and message.role == "assistant" and message.content
            yield wrapper.start, False
            yield str(message.content or ""), True  # the request has no pictures
            if continued:
                return
            yield wrapper.end, False
        after = self.templates.after_last_message
        yield self.templates.assistant.start if after is None else after, False
