"""Which tokens an answer that follows a grammar may go on with.

What is allowed depends on the grammar and on the tokens so far alone: a session that is replayed, or taken up by another
driver, goes on as if nothing had happened.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from node.core.errors import BadRequest, PippinError
from node.text.grammar_job import LIMITS, error_of
from node.text.tokenizer import Tokenizer


class GrammarLost(PippinError):
    """A grammar grew beyond what may be computed for one token."""

    code = "grammar_lost"


class Constraint:
    """Of one session. One thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher: LLMatcher | None = matcher
        self._taken = 0
        self.memory = 0
        """Bytes that it counts for."""
        self.error: PippinError | None = None
        """Why the session can't go on; the tokens drawn from then on mean nothing."""

    def allowed(self, generated: Sequence[int]) -> bytes | None:
        """The tokens that may follow, a bit each from the lowest of each byte; `generated` are all of the session.

        None once there is an `error` or it is closed.
        """
        matcher = self._matcher
        if matcher is None:
            return None
        if matcher.consume_tokens(list(generated[self._taken :])):
            self._taken = len(generated)
            bits: bytes = matcher.compute_bitmask()
            if not matcher.is_error():
                return bits
        self.error = GrammarLost(f"The grammar can't be followed after {len(generated)} tokens: {error_of(matcher)}")
        return None

    def close(self) -> None:
        """Free its memory. What is allowed is asked no more, or by a step whose result nobody takes."""
        self._matcher = None
        self.memory = 0


class Constraints:
    """Makes the constraints of one model's sessions, in any thread.

    The tokenizer is read when the first one is wanted, which takes up to a second; most models are never asked for one.
    That it is of no use is remembered, too.
    """

    def __init__(self, directory: Path, vocabulary: int) -> None:
        """`vocabulary`: how many tokens the model has logits for."""
        self.directory = directory
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._unusable = ""
        """Why no grammar can guide this model."""
        self._lock = threading.Lock()

    def begin(self, grammar: str, generated: Sequence[int] = ()) -> Constraint:
        """A session's, from its grammar and the tokens that it has already. The grammar was proven: see `Grammars.begin`.

        Raises BadRequest when there is no such grammar, or when the tokens do not follow it; ModelBroken.
        """
        matcher = LLMatcher(self._read(), grammar, log_level=0, limits=LIMITS)
        constraint = Constraint(matcher)
        if matcher.is_error() or constraint.allowed(generated) is None:
            raise BadRequest(f"The grammar can't be followed: {error_of(matcher)}")
        return constraint

    def _read(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None and not self._unusable:
                try:
                    self._tokenizer = _read(self.directory, self._vocabulary)
                except BadRequest as error:
                    self._unusable = error.message
        if self._tokenizer is None:
            raise BadRequest(self._unusable)
        return self._tokenizer


def _read(directory: Path, vocabulary: int) -> LLTokenizer:
    tokenizer = Tokenizer(directory)
    if not tokenizer.spells:
        raise BadRequest("This model's tokens have no bytes of their own, so no grammar can guide them.")
    ends = sorted(token for token in tokenizer.eos if token < vocabulary)
    if not ends:
        raise BadRequest("This model has no token that ends an answer, so none can follow a grammar.")
    return LLTokenizer(TokenizerWrapper(_Tokens(tokenizer, ends[0], vocabulary)), eos_token=ends, slices=None)


class _Tokens:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, end: int, vocabulary: int) -> None:
        self.eos_token_id = end
        self._encode = tokenizer.encode_inside
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocabulary)]
        self.special_token_ids = sorted(token for token in tokenizer.markup if token < vocabulary)

    def __call__(self, text: str) -> list[int]:
        """How the model itself would write what a grammar forces; llguidance allows nothing else there."""
        if not isinstance(text, str):
            raise TypeError("bytes are text first")  # llguidance tries these first, and then sends text
        return self._encode(text)
