"""One answer, from tokens to the text a client sees. Pure: no I/O, no clocks; plain answers and streams share it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from api.text import StopMatcher
from node.core.generation import Finish, TokenEvent
from node.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token and the characters that it completes. All of an answer's tokens together give its text."""

    event: TokenEvent
    text: str
    start: int
    """Where in the text its characters begin."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What an answer has grown by."""

    text: str = ""
    tokens: tuple[TokenText, ...] = ()
    """Those whose text has now been given out; filled only if log-probabilities are wanted."""
    finish: Finish | None = None


class Answer:
    """Takes tokens, gives text that is never taken back: no half characters, no control tokens, nothing of a stop."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Iterable[str] = (), *, logprobs: bool = False, echo: str = ""
    ) -> None:
        self.completion_tokens = 0
        self.cached_tokens = 0
        self._control = tokenizer.control
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopMatcher(stops)
        self._logprobs = logprobs
        self._waiting: deque[TokenText] = deque()
        self._made = 0
        """Characters that the tokens so far stand for."""
        self._echo = echo
        """What goes before the answer."""
        self._offset = len(echo)

    def take(self, event: TokenEvent) -> Delta:
        """Account for one token. At the end, a character of which some bytes are missing is left out: it is none."""
        self.completion_tokens += 1
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        made = self._detokenizer.add(event.token)
        if self._logprobs and event.token not in self._control:
            self._waiting.append(TokenText(event, made, self._made))
        self._made += len(made)
        text = self._stops.push(made)
        if event.finish:
            text += self._stops.finish()
        finish = "stop" if self._stops.matched else event.finish
        if text or finish:
            text, self._echo = self._echo + text, ""
        return Delta(text, self._tokens_given(ended=finish is not None), finish)

    def without_tokens(self) -> Delta:
        """The whole of an answer for which no token was wanted."""
        return Delta(self._echo, finish="length")

    def _tokens_given(self, *, ended: bool) -> tuple[TokenText, ...]:
        given = self._stops.given
        tokens: list[TokenText] = []
        while self._waiting and self._waiting[0].start + len(self._waiting[0].text) <= given:
            tokens.append(self._waiting.popleft())
        if ended and self._waiting and self._waiting[0].start < given:
            # A stop string begins inside this token.
            cut = self._waiting.popleft()
            tokens.append(replace(cut, text=cut.text[: given - cut.start]))
        return tuple(replace(token, start=token.start + self._offset) for token in tokens)
