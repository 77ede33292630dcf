"""Turns the tokens of one answer into the text a client sees, plain or streamed. Pure: no I/O, no clock."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Literal

from api.chat.channels import Glyph
from api.chat.reader import CallDelta, Reader
from api.chat.stop_strings import StopMatcher
from node.core.generation import Finish, TokenEvent
from node.text.tokenizer import Tokenizer

Ending = Finish | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token and the characters that it completes. Concatenated over an answer, they give its text."""

    event: TokenEvent
    text: str
    start: int
    """Offset of its first character in the text, in characters."""


@dataclass(frozen=True, slots=True)
class Delta:
    """An increment of an answer."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """Tokens whose text has now been given out; filled only if log-probabilities are wanted."""
    finish: Ending | None = None
    reasoning: str = ""
    calls: Sequence[CallDelta] = ()
    stop: str | None = None
    """The stop string that ended the answer."""


class Answer:
    """Incremental detokenizer. Text given out is final, without partial characters, control tokens and stop strings."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Iterable[str] = (),
        *,
        logprobs: bool = False,
        control_logprobs: bool = False,
        offset: int = 0,
        reader: Reader | None = None,
        silent: frozenset[int] = frozenset(),
    ) -> None:
        """`control_logprobs`: report log-probabilities of control tokens, too. `offset`: characters before the answer
        (an echoed prompt). `reader`: separates reasoning and tool calls from the text, to which stop strings and
        log-probabilities apply. `silent`: tokens whose text is not shown, besides control tokens.
        """
        self.made: list[int] = []
        """Ids of its tokens so far."""
        self.reasoning_tokens = 0
        self.logprob = 0.0
        """Sum of the log-probabilities of the tokens; 0 unless the driver was asked for them."""
        self.cached_tokens = 0
        self.accepted_prediction_tokens = 0
        self._control = tokenizer.control
        self._silent_ends = silent
        self._marks = tokenizer.control - tokenizer.eos if reader else frozenset()
        """Control tokens that are passed on to the reader."""
        self._reader = reader
        self._called = False
        self._unread: dict[int, TokenEvent] = {}
        """Of tokens that the reader may hold back, by position; filled only if log-probabilities are wanted."""
        self._silent: set[int] = set()
        """Positions of tokens without text so far; they are given out with the token that completes their character."""
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopMatcher(stops)
        self._logprobs = logprobs
        self._without_logprobs = frozenset[int]() if control_logprobs else tokenizer.control
        self._waiting: deque[TokenText] = deque()
        self._size = 0
        """Number of characters that the tokens so far stand for."""
        self._offset = offset

    @property
    def completion_tokens(self) -> int:
        return len(self.made)

    def take(self, event: TokenEvent) -> Delta:
        """Process one token. An incomplete UTF-8 character at the end of the answer is dropped."""
        self.made.append(event.token)
        self.logprob += event.logprob or 0.0
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        self.accepted_prediction_tokens = event.accepted_prediction_tokens
        made = "" if event.token in self._silent_ends else self._detokenizer.add(event.token)
        reader = self._reader
        if reader is None:
            if self._logprobs and event.token not in self._without_logprobs:
                self._waiting.append(TokenText(event, made, self._size))
            return self._take_text(made, event.finish)
        symbols = [event.token] if event.token in self._marks else made
        if self._logprobs:
            self._unread[event.position] = event
            self._silent |= {event.position} if not symbols and event.token not in self._control else set()
        parts = reader.push([Glyph(symbol, event.position) for symbol in symbols])
        if event.finish and not parts.ended:
            parts.add(reader.finish(cut=event.token not in self._control or event.finish == "length"))
        if self._logprobs:
            self._queue_tokens(parts.text)
        self.reasoning_tokens += parts.reasoning_tokens
        text = "".join(str(glyph.symbol) for glyph in parts.text)
        begins_call = any(call.id for call in parts.calls)
        delta = self._take_text(text, "stop" if parts.ended else event.finish, is_whole=begins_call)
        if begins_call and delta.stop is not None:  # it ended the answer before the call
            parts.calls, parts.cut = [call for call in parts.calls if not call.id], False
        self._called = self._called or bool(parts.calls)
        finish = "tool_calls" if self._called and delta.finish == "stop" else delta.finish
        finish = "length" if parts.cut else finish  # also by a token of `stop_token_ids`
        return replace(delta, finish=finish, reasoning=parts.reasoning, calls=tuple(parts.calls))

    def _queue_tokens(self, glyphs: Iterable[Glyph]) -> None:
        start = self._size
        for position, of_token in groupby(glyphs, key=attrgetter("position")):
            text = "".join(str(glyph.symbol) for glyph in of_token)
            before = takewhile(self._silent.__contains__, range(position - 1, -1, -1))
            self._waiting += [TokenText(self._unread[silent], "", start) for silent in reversed(list(before))]
            self._waiting.append(TokenText(self._unread[position], text, start))
            start += len(text)

    def _take_text(self, made: str, end: Finish | None, *, is_whole: bool = False) -> Delta:
        """Add a text. `is_whole`: none continues it, so that no stop string ends in a later one."""
        self._size += len(made)
        text = self._stops.push(made)
        if end or is_whole:
            text += self._stops.finish()
        stop, given = self._stops.matched, self._stops.given
        finish = end if stop is None else "stop"
        tokens: list[TokenText] = []
        while self._waiting and self._waiting[0].start + len(self._waiting[0].text) <= given:
            tokens.append(self._waiting.popleft())
        if finish and self._waiting and self._waiting[0].start < given:
            # A stop string begins inside this token.
            last = self._waiting.popleft()
            tokens.append(replace(last, text=last.text[: given - last.start]))
        placed = tuple(replace(token, start=token.start + self._offset) for token in tokens)
        return Delta(text, placed, finish, stop=stop)
