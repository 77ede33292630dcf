"""What is left out of a chat that is longer than the model's context, where a client asks for that: the oldest turns, as Ollama
does and OpenAI's Responses with `truncation`. Pure, but for the search, which has each attempt encoded.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from node.core.errors import ContextExceeded

STRIDE = 4
"""As long as more turns than these are there, so many are left out at a time: then most turns begin as the one before did, and its KV
serves them.
"""
PARTS = 16
"""The last user's text loses so many parts, one after the other, from its beginning, once nothing else is left."""
ANSWER_SHARE = 8
"""Of the context, one such part is kept free for the answer."""

T = TypeVar("T")
Chat = Sequence[dict[str, Any]]


class Shortening(NamedTuple):
    start: int = 0
    """The first message that is kept, but for those of the system and the last user's, which all are."""
    parts: int = 0
    """Of the last user's text, so many of PARTS are left out."""

    def of(self, messages: Chat) -> list[dict[str, Any]]:
        """The messages that are kept."""
        last = _last_user([each["role"] for each in messages])
        kept = []
        for index, each in enumerate(messages):
            if index == last and self.parts:
                kept.append({**each, "content": _ending(each["content"], self.parts)})
            elif index >= self.start or index == last or each["role"] in ("system", "developer"):
                kept.append(each)
        return kept


def shortenings(roles: Sequence[str]) -> list[Shortening]:
    """From the whole chat to the least of it. A chat begins with a turn of the user, as many templates want it; of the last turn,
    the user's text and the last step of an agent are kept: what called the tools, and their results.
    """
    last = _last_user(roles)
    turns = [index for index, role in enumerate(roles) if role == "user"]
    steps = [index for index, role in enumerate(roles) if role == "assistant" and index > last]
    coarse = turns[STRIDE::STRIDE]
    fine = [turn for turn in turns[1:] if turn > max(coarse, default=0)]
    starts = [0, *coarse, *fine, *steps[1:]]
    parts = range(1, PARTS) if turns else ()
    return [*map(Shortening, starts), *(Shortening(starts[-1], part) for part in parts)]


def prompt_room(context: int, answer_tokens: int | None) -> int:
    """Most tokens of a shortened prompt, so that there is room for an answer of so many, or for a good part of it."""
    return context - max(1, min(answer_tokens or context, context // ANSWER_SHARE))


def _ending(content: Any, part: int) -> Any:
    """A content without so many parts of its text, or of each of its texts beside pictures."""
    if isinstance(content, str):
        return endings(content)[part]
    return [{**each, "text": endings(each["text"])[part]} if "text" in each else each for each in content]


def endings(text: str) -> list[str]:
    """A text, and what is left of it without its beginning, the longest first."""
    return [text[len(text) * part // PARTS :] for part in range(PARTS)]


def beginnings(text: str) -> list[str]:
    """A text, and what is left of it without its end, the longest first."""
    return [text[: len(text) - len(text) * part // PARTS] for part in range(PARTS)]


async def fitting(
    candidates: Sequence[T], encode: Callable[[T], Awaitable[Sequence[int]]], most: int
) -> tuple[T, Sequence[int]]:
    """The first of these candidates, each shorter than the one before, whose prompt has `most` tokens or fewer, and the prompt.

    Raises ContextExceeded if none has, and what `encode` raises.
    """
    found: tuple[T, Sequence[int]] | None = None
    low, high, place = 0, len(candidates), 0
    while low < high:
        try:
            prompt = await encode(candidates[place])
            excess = len(prompt) - most
        except ContextExceeded:
            if place == len(candidates) - 1:
                raise
            excess = 1
        if excess <= 0:
            found, high = (candidates[place], prompt), place
        else:
            low = place + 1
        place = (low + high) // 2
    if found is None:
        raise ContextExceeded(
            f"The prompt has {most + excess} tokens, with all left out that can be; {most} leave room for an answer.",
            param="messages",
        )
    return found


def _last_user(roles: Sequence[str]) -> int:
    return max((index for index, role in enumerate(roles) if role == "user"), default=-1)
