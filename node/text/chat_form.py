"""What chat templates want to read of a chat, where they differ: found in a template's text, once."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

Message = dict[str, Any]

_CALL_NAME = re.compile(r"""(?:function|call)(?:['"]\])?(?:\.name|\[['"]name['"]\])""")
_NONE = re.compile(r"""(?<=assistant['"] and )(message(?:\.content|\[['"]content['"]\])) is (not )?none""")


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How a template reads a chat; by default as OpenAI's API has it, with `reasoning_content`."""

    developer: bool = True
    """Whether it knows this role."""
    enable_thinking: bool = True
    """Whether it knows this variable."""
    either: bool = False
    """Whether it refuses both thoughts and text beside calls (gpt-oss)."""
    short_ids: bool = False
    """Whether it demands ids of 9 letters and digits (Mistral)."""
    named_ids: bool = False
    """Whether nothing but its id tells which function a call is of (Kimi K2)."""

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, template: str) -> "ChatForm":
        return cls(
            developer="developer" in template,
            enable_thinking="enable_thinking" in template,
            either="both content and thinking" in template,
            short_ids="length != 9" in template,
            named_ids="<|tool_call_begin|>" in template and not _CALL_NAME.search(template),
        )

    def messages(self, messages: Iterable[Mapping[str, Any]]) -> list[Message]:
        """The messages of a chat in this form. Results get the names of their calls, which some templates want."""
        made: list[Message] = []
        numbers, called = count(), dict[str, Message]()
        for each in messages:
            message = self._worded(each)
            if calls := message.get("tool_calls"):
                message["tool_calls"] = [{**call, "id": self._id(call, next(numbers))} for call in calls]
                called |= zip((call["id"] for call in calls), message["tool_calls"], strict=True)
            elif (given := message.get("tool_call_id")) is not None:
                call = called.get(given)
                message["tool_call_id"] = call["id"] if call else self._short(given)
                if call:
                    message.setdefault("name", call["function"]["name"])
            made.append(message)
        return made

    def _worded(self, given: Mapping[str, Any]) -> Message:
        """A message with the role and thoughts of this form."""
        message = dict(given)
        if message.get("role") == "developer" and not self.developer:
            message["role"] = "system"  # `developer` is OpenAI's new name for it
        thoughts, content = message.get("reasoning_content"), message.get("content")
        if self.either and message.get("tool_calls") and thoughts and content:
            message |= {"reasoning_content": f"{thoughts}\n\n{content}", "content": ""}
        return message

    def _id(self, call: Mapping[str, Any], number: int) -> str:
        return f"functions.{call['function']['name']}:{number}" if self.named_ids else self._short(call["id"])

    def _short(self, given: str) -> str:
        if not self.short_ids or re.fullmatch("[0-9A-Za-z]{9}", given):
            return given
        return hashlib.sha256(given.encode()).hexdigest()[:9]


def without_none(template: str) -> str:
    """DeepSeek's first templates show calls only where the content is None, which transformers leaves out of a message: made to show
    them where there is no text.
    """

    def tested(found: re.Match[str]) -> str:
        content, is_text = found.groups()
        return f"({content} or not message.tool_calls)" if is_text else f"not {content} and message.tool_calls"

    return _NONE.sub(tested, template)


def with_text_arguments(messages: Iterable[Message]) -> list[Message]:
    """The messages with the arguments of their calls as JSON texts."""

    def written(call: Message) -> Message:
        function, arguments = call["function"], call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**each, "tool_calls": [*map(written, each["tool_calls"])]} if each.get("tool_calls") else each
        for each in messages
    ]
