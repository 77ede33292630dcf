"""Guesses a model's next tokens with its MTP layer (see node.engine.mtp), whole on the driver. All methods run in the compute
thread.

For the token after the next one the layer needs the hidden states of the step before, which come back to the driver anyway.
Beyond that it goes on from its own output. Like a draft model it draws as the model will, with the same random numbers.

It follows one session at a time. Its KV has an entry for each position of which it got the hidden states; those of a prefix that
was reused may be missing, so that its guesses are a little worse. It is never part of what a session's text depends on.
"""

from bisect import bisect_left
from collections.abc import Sequence

import mlx.core as mx

from node.core.errors import PippinError
from node.core.frames import Open, Tensor
from node.core.mlx_errors import MLX_ERRORS, fault_of
from node.engine.draft import DraftFailed, common, drawn
from node.engine.mtp import Ends, ends_of
from node.engine.sampling import Draw
from node.engine.stage import Stage
from node.engine.tensor_codec import unpack

_LANE = 0
_MOST_ROWS = 16
"""Most positions whose hidden states are kept without an entry: none is made as long as nobody asks for guesses."""


class MtpGuesser:
    """It guesses as soon as it is asked, so it never has to catch up."""

    observes = True
    is_catching_up = False
    beyond = 0

    def __init__(self, stage: Stage, model: Stage) -> None:
        """`stage`: the MTP layer. `model`: the driver's layers of the model, whose embedding and LM head it uses."""
        self._stage = stage
        self._model = model
        self._ends: Ends = stage.model.ends
        self._shared = ends_of(model.model)
        self._tokens: list[int] = []
        """Of the session, as far as they are verified."""
        self._entries: list[int] = []
        """The positions that have an entry in the KV, ascending."""
        self._waiting: list[tuple[int, mx.array]] = []
        """Hidden states [1, length, width] without an entry yet, each with the position of the first."""
        self._output: tuple[mx.array, ...] = ()
        """Of the last entry that was made."""
        self._guessed: list[tuple[int, tuple[mx.array, ...]]] = []
        """The guesses after `_tokens` that have an entry, too, each with the output."""
        self._error: Exception | None = None
        self.max_context = stage.plan.max_context
        self.kv_bytes = 0
        """May be read in any thread."""

    def observe(self, tokens: Sequence[int], end: int, tensors: Sequence[Tensor], count: int = 0) -> None:
        """The last stage's result of a step of a session, of which its first `count` tokens are verified, or all for 0. They are
        those before position `end`. `tokens`: all of the session that are verified. An error is told at the next guess, but for one of the
        device.
        """
        try:
            self._observe(tokens, end, unpack(tensors), count)
        except (PippinError, *MLX_ERRORS) as error:
            self.clear()
            self._error = error
            if fault_of(error):  # whatever work it comes from, no KV is to be trusted
                raise
        finally:
            self.kv_bytes = self._stage.lanes.kv_bytes

    def guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        """The token that may come after `tokens`, of which the first `verified` are certain, and the others guesses. None if
        the hidden states are missing. Raises DraftFailed; all KV is then freed.
        """
        try:
            if self._error:
                raise self._error
            return self._guess(tokens, verified, draw)
        except (PippinError, *MLX_ERRORS) as error:
            self.clear()
            raise DraftFailed(f"The MTP layer failed: {error}") from error
        finally:
            self.kv_bytes = self._stage.lanes.kv_bytes

    def clear(self) -> None:
        """Free all KV."""
        self._tokens, self._entries, self._waiting, self._output, self._guessed = [], [], [], (), []
        self._stage.lanes.clear()
        self.kv_bytes = 0

    def _observe(self, tokens: Sequence[int], end: int, tensors: Sequence[mx.array], count: int) -> None:
        hidden = self._model.hidden(tensors) if self._ends.takes_normed else tensors[0]
        hidden = _first(hidden, count or hidden.shape[1])
        begin = end - hidden.shape[1]
        self._ends.embed, self._ends.score = self._shared
        self._follow(tokens)
        self._cut(begin, begin)
        self._waiting.append((begin, hidden))
        if sum(states.shape[1] for _, states in self._waiting) > _MOST_ROWS:
            self._make_entries(tokens)

    def _guess(self, tokens: Sequence[int], verified: int, draw: Draw) -> int | None:
        self._ends.embed, self._ends.score = self._shared  # rings of the model share the layer
        certain = tokens[:verified]
        known = [token for token, _ in self._guessed]
        if self._waiting or certain != self._tokens or tokens[verified : verified + len(known)] != known:
            self._follow(certain)
            self._make_entries(certain)
        if not self._entries or self._entries[-1] != verified - 2 or not self._output:
            return None
        for place in range(verified + len(self._guessed), len(tokens)):
            output = self._guessed[-1][1] if self._guessed else self._output
            hidden = self._stage.hidden(output) if self._ends.takes_normed else output[0]
            output = self._run(tokens[place : place + 1], hidden, unverified=place + 1 - verified)
            self._guessed.append((tokens[place], output))
        return drawn(self._stage.finish(self._guessed[-1][1] if self._guessed else self._output), draw)

    def _follow(self, tokens: Sequence[int]) -> None:
        """Go on with a session of these tokens, and keep what it has in common with the one before."""
        if self._guessed:
            self._stage.lanes.lane(_LANE).back(len(self._guessed))
            self._guessed = []
        shared = common(self._tokens, tokens)
        self._tokens = list(tokens)
        self._cut(shared - 1, shared)

    def _cut(self, entries: int, states: int) -> None:
        """Keep the entries before one position, and the hidden states before another."""
        self._waiting = [(begin, _first(hidden, states - begin)) for begin, hidden in self._waiting if begin < states]
        kept = bisect_left(self._entries, entries)
        excess = len(self._entries) - kept
        if not excess:
            return
        self._output = ()
        if kept and self._stage.plan.trimmable:
            self._stage.lanes.lane(_LANE).trim(excess)
            del self._entries[kept:]
        else:
            self._entries = []

    def _make_entries(self, tokens: Sequence[int]) -> None:
        """Make the entries of all positions whose hidden states are here, and whose next token is among these."""
        waiting, self._waiting = self._waiting, []
        most = self._stage.plan.max_chunk or len(tokens)
        for begin, hidden in waiting:
            end = min(begin + hidden.shape[1], len(tokens) - 1)
            for first in range(begin, end, most):
                last = min(first + most, end)
                if not self._entries:
                    self._stage.lanes.apply(Open(_LANE))
                output = self._run(tokens[first + 1 : last + 1], hidden[:, first - begin : last - begin])
                self._output = self._stage.last(output)
                self._entries += range(first, last)
            if end < begin + hidden.shape[1]:
                self._waiting.append((max(begin, end), hidden[:, max(0, end - begin) :]))

    def _run(self, tokens: Sequence[int], hidden: mx.array, unverified: int = 0) -> tuple[mx.array, ...]:
        self._ends.hidden = hidden
        try:
            return self._stage.run(_LANE, mx.array([list(tokens)], mx.int32), unverified=unverified)
        finally:
            self._ends.hidden = None


def _first(hidden: mx.array, length: int) -> mx.array:
    return hidden if hidden.shape[1] <= length else hidden[:, :length]
