"""Constrains an answer to a grammar: computes the tokens allowed next.

They depend only on the grammar and the tokens generated so far, so a session can be replayed, also by another driver.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from node.core.errors import BadRequest, PippinError
from node.text.grammar import split_mark
from node.text.grammar_job import LIMITS, error_of
from node.text.tokenizer import Symbol, Tokenizer
from node.text.tokenizer_files import CleanFolder


class GrammarLost(PippinError):
    """A grammar exceeded the limits of computation for one token."""

    code = "grammar_lost"


class Constraint:
    """The constraint of one session. Not thread-safe."""

    def __init__(self, matcher: LLMatcher, mark: bytes = b"", tokens: Sequence[bytes] = ()) -> None:
        """`mark`: the answer is free up to the end of these bytes; empty: the grammar binds from the beginning. `tokens`:
        the bytes of each. A control token has others than its text spelled out, which is no mark to a reader either.
        """
        self._matcher: LLMatcher | None = matcher
        self._consumed = 0
        self._first_mark = self._mark = mark
        self._tokens = tokens
        self._tail = b""
        """The longest end of the free text that is a beginning of the mark."""
        self._masks: dict[bytes, bytes | None] = {}
        """By `_tail`: see `_without_overshoot`."""
        self.memory = 0
        """Bytes that it counts towards the limit of all grammars."""
        self.error: PippinError | None = None
        """The error that ends the session; tokens drawn after it are invalid."""
        self.forced: list[int] = []
        """The tokens that must come after the last one that was drawn; may be read in any thread."""

    @property
    def binds(self) -> bool:
        """Whether the answer is free no longer; may be read in any thread."""
        return not self._mark

    def allowed(self, generated: Sequence[int]) -> bytes | None:
        """Bit mask of the tokens allowed next, one bit each, lowest bit of each byte first; None if all are, and after an
        error or `close`.

        `generated`: all tokens of the session so far.
        """
        matcher = self._matcher
        if matcher is None:
            return None
        if self._consumed > len(generated):  # guesses were right, but the session was preempted before it got them
            matcher.reset()
            self._mark, self._tail, self._consumed = self._first_mark, b"", 0
        while self._mark and self._consumed < len(generated):
            text = self._tail + self._tokens[generated[self._consumed]]
            if text.endswith(self._mark):
                self._mark = b""  # the grammar binds from here to the end
            else:
                sizes = range(min(len(text), len(self._mark) - 1), -1, -1)
                self._tail = self._mark[: next(size for size in sizes if text.endswith(self._mark[:size]))]
            self._consumed += 1
        if self._mark:
            return self._without_overshoot()
        if matcher.consume_tokens(list(generated[self._consumed :])):
            self._consumed = len(generated)
            bits: bytes = matcher.compute_bitmask()
            if not matcher.is_error():
                return bits
        self.error = GrammarLost(f"The grammar can't be followed after {len(generated)} tokens: {error_of(matcher)}")
        return None

    def look_ahead(self, token: int) -> None:
        """Find `forced` after a token that was drawn from those of the last call of `allowed`.

        They are certain: for a text that a grammar forces, llguidance allows only the tokens of `_Tokens.__call__`.
        """
        matcher = self._matcher  # `close` may be called meanwhile
        if matcher and not self._mark and matcher.consume_token(token):
            self.forced = matcher.compute_ff_tokens()
            matcher.rollback(1)

    def _without_overshoot(self) -> bytes | None:
        """Mask of the tokens that do not go on behind the end of a mark that has begun, where the grammar must bind;
        None: all.
        """
        if not self._tail:
            return None
        if self._tail not in self._masks:
            rest = self._mark[len(self._tail) :]
            beyond = [
                token for token, text in enumerate(self._tokens) if len(text) > len(rest) and text.startswith(rest)
            ]
            bits = bytearray(b"\xff" * (-(-len(self._tokens) // 32) * 4))  # as llguidance: whole words of 32 bits
            for token in beyond:
                bits[token // 8] &= ~(1 << token % 8)
            self._masks[self._tail] = bytes(bits) if beyond else None
        return self._masks[self._tail]

    def close(self) -> None:
        """Free its memory. A step that is still running may call `allowed` once more."""
        self._matcher = None
        self.memory = 0


class Constraints:
    """Creates the constraints of one model's sessions. Call `read` before the first one; most models never need it.

    If the tokenizer is unusable, that is remembered, too.
    """

    def __init__(self, directory: Path, vocabulary: int) -> None:
        """`vocabulary`: number of the model's logits."""
        self.directory = directory
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._tokens: Sequence[bytes] = ()
        self._symbols: Callable[[str], Sequence[Symbol]] = list
        self._unusable = ""
        """Why this model can follow no grammar; empty while unknown."""

    @property
    def is_read(self) -> bool:
        return self._tokenizer is not None or bool(self._unusable)

    def read(self, folder: CleanFolder) -> None:
        """Read the tokenizer, from the cleaned copy of its files, which takes up to a second. Raises ModelBroken."""
        tokenizer = Tokenizer(folder)
        ends = sorted(token for token in tokenizer.eos if token < self._vocabulary)
        if not tokenizer.has_fixed_bytes:
            self._unusable = "This model's tokens have no fixed bytes, so it cannot follow a grammar."
        elif not ends:
            self._unusable = "This model has no token that ends an answer, so it cannot follow a grammar."
        else:
            tokens = _Tokens(tokenizer, ends[0], self._vocabulary)
            control = tokenizer.control
            self._tokens = [_written([at]) if at in control else text for at, text in enumerate(tokens.tokens)]
            self._symbols = tokenizer.symbols
            self._tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=ends, slices=None)

    def begin(self, grammar: str, generated: Sequence[int] = ()) -> Constraint:
        """Create the constraint of a session with these tokens. A sandbox must have tried the grammar: see
        `Grammars.begin`.

        Raises BadRequest for an invalid grammar and for tokens that do not follow it.
        """
        if self._tokenizer is None:
            raise BadRequest(self._unusable)
        mark, bound = split_mark(grammar)
        matcher = LLMatcher(self._tokenizer, bound, log_level=0, limits=LIMITS)
        constraint = Constraint(matcher, _written(self._symbols(mark)) if mark else b"", self._tokens)
        constraint.allowed(generated)
        if matcher.is_error() or constraint.error:
            raise BadRequest(f"The grammar can't be followed: {error_of(matcher)}")
        return constraint


def _written(symbols: Iterable[Symbol]) -> bytes:
    """The bytes of a text, in which those of a control token are no text."""
    return b"".join(b"\xff%d\xff" % each if isinstance(each, int) else each.encode() for each in symbols)


class _Tokens:
    """The interface of a tokenizer that llguidance expects."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, end: int, vocabulary: int) -> None:
        self.eos_token_id = end
        self._encode = tokenizer.encode_fragment
        self.tokens = [tokenizer.token_bytes(token) for token in range(vocabulary)]
        self.special_token_ids = sorted(token for token in tokenizer.markup if token < vocabulary)

    def __call__(self, text: str) -> list[int]:
        """Tokenize a text that a grammar forces, as the model would; llguidance allows only these tokens there."""
        if not isinstance(text, str):
            raise TypeError("the text is bytes")  # llguidance tries bytes first, then str
        return self._encode(text)
