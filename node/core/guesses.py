"""Guesses at the next tokens of an answer: where the client's prediction, an earlier answer or an earlier passage would go
on, or what a draft model has drawn. Pure.

Texts of tokens are kept as strings, one character for each token, because `str.find` finds a passage of 100,000 tokens in
some 50 µs and needs no index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST = 4
"""Tokens of the longest passage that is looked for."""
WINDOW = 32_768
"""Tokens after its place in which a prediction is searched for the answer's last tokens."""
NEARBY = 32
"""Tokens after its place in which a prediction is searched for a single token."""
RATE_DECAY = 0.85
"""Weight of a source's former rate of right guesses, for each token: half of the rate is that of the last four tokens."""
MIN_RATE = 0.15
"""Rate of right guesses below which a source is not asked."""
FIRST_RATE = 0.5
"""Rate of a source that has foretold no token yet."""
RECOVERY = 0.01
"""Share by which a rate returns to FIRST_RATE with each token for which the source had no guess: a source that was often
wrong is asked again some time later.
"""
CATCH_UP = 256
"""Maximum tokens of an answer that are followed at once: a token takes some 0.1 ms in a text of 100,000."""
_CHARACTERS = 1 << 20
"""Vocabularies are smaller; larger token ids would share characters, so that some guesses would be wrong."""


def _text(tokens: Iterable[int]) -> str:
    return "".join(chr(token % _CHARACTERS) for token in tokens)


class Prediction:
    """A text that is expected, such as the client's, and the place in it where the answer is.

    After a token that it did not foretell, it goes on where the answer's last tokens occur; else it takes the token for
    a replaced one.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self.tokens = tuple(tokens)
        self.accepted = 0
        """Tokens of the answer that it has foretold; never more than it has."""
        self._text = _text(self.tokens)
        self._place = 0
        self._lost_at = 0
        """The place at the first token that it did not foretell since the last one that it did."""
        self._recent = ""
        """The answer's last tokens."""

    def guesses(self, count: int) -> str:
        return self._text[self._place : self._place + count]

    def follow(self, token: int) -> None:
        """Follow the answer by one token."""
        self.take(_text([token]))

    def take(self, token: str) -> None:
        """Follow the answer by one token, as the character that stands for it."""
        self._recent = (self._recent + token)[-LONGEST:]
        if self.guesses(1) == token:
            self.accepted += 1
            self._place += 1
            self._lost_at = self._place
        else:
            self._place = self._found() or self._place + 1

    def _found(self) -> int:
        """The place after the answer's last tokens, as many of them as occur; 0 if not even the last one does."""
        for size in range(len(self._recent), 1, -1):
            begin = max(0, self._lost_at - size)
            if (start := self._text.find(self._recent[-size:], begin, begin + WINDOW)) >= 0:
                return start + size
        return self._text.find(self._recent[-1], self._lost_at, self._lost_at + NEARBY) + 1


class Repetition:
    """The prompt and the answer so far: a passage that has occurred before may go on as it did then."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._text = _text(tokens)
        self._place = -1
        """Where the next token is expected; -1: nowhere."""
        self._find()

    def guesses(self, count: int) -> str:
        return self._text[self._place : self._place + count] if self._place >= 0 else ""

    def take(self, token: str) -> None:
        """Follow the answer by one token."""
        hit = self.guesses(1) == token
        self._text += token
        if hit:
            self._place += 1
        else:
            self._find()

    def _find(self) -> None:
        """Find the last earlier place of the last LONGEST tokens, or else of fewer, down to two."""
        self._place = -1
        for size in range(2, LONGEST + 1):
            start = self._text.rfind(self._text[-size:], 0, len(self._text) - 1)
            if start < 0 or len(self._text) < size:
                return
            self._place = start + size


@dataclass(frozen=True, slots=True)
class Earlier:
    """How another session with the same beginning went on, such as with an earlier answer to the same prompt."""

    common: int
    """Number of tokens with which both began."""
    tokens: Sequence[int]
    """Those that followed."""

    def after(self, prompt: Sequence[int]) -> Prediction:
        """The answer to a prompt with the same beginning that is expected."""
        expected = Prediction(self.tokens)
        for token in prompt[self.common :][-CATCH_UP:]:
            expected.follow(token)
        return expected


class Drafted:
    """What a draft model has drawn for the tokens to come."""

    def __init__(self) -> None:
        self._tokens = ""

    def guesses(self, count: int) -> str:
        return self._tokens[:count]

    def take(self, token: str) -> None:
        """Follow the answer by one token."""
        self._tokens = self._tokens[1:] if self._tokens[:1] == token else ""

    def add(self, guessed: str, token: str) -> None:
        """The draft model has drawn a token after these guesses at the next ones."""
        self._tokens = guessed + token


class Guesser:
    """Guesses the tokens of one answer. Of the sources that have a guess, the one that was right most often is asked; in
    doubt first the client's prediction, then the earlier answer, then what was repeated, then the draft model.

    Each source is followed along the answer whether it is asked or not; it is asked as long as it was often right.
    """

    def __init__(self, prompt: Sequence[int], prediction: Sequence[int] = (), earlier: Earlier | None = None) -> None:
        self._predicted, self._drafted = Prediction(prediction), Drafted()
        expected = earlier.after(prompt) if earlier else Prediction(())
        self._prediction = _Rated(self._predicted, len(prompt), 1.0 if prediction else 0.0)
        self._draft = _Rated(self._drafted, len(prompt))
        others = [_Rated(source, len(prompt)) for source in (expected, Repetition(prompt))]
        self._sources = [self._prediction, *others, self._draft]

    def accepted(self, tokens: Sequence[int]) -> int:
        """Number of the client's predicted tokens that the answer has so far. `tokens`: those of prompt and answer."""
        self._prediction.follow(tokens, len(tokens))
        return self._predicted.accepted

    def after(self, tokens: Sequence[int], guessed: Sequence[int] = ()) -> int | None:
        """The token after the prompt and the answer so far, and these guesses at its next tokens.

        None if no source has it, or while the sources have yet to catch up with the answer.
        """
        if not self._follow(tokens):
            return None
        source = self._best(_text(guessed))
        return ord(source.guesses(len(guessed) + 1)[-1]) if source else None

    def rate(self, tokens: Sequence[int]) -> float:
        """How often the source was right recently that has the token after the prompt and the answer so far; 0 if none has."""
        source = self._best("") if self._follow(tokens) else None
        return source.rate if source else 0.0

    def lacks_draft(self, tokens: Sequence[int], guessed: Sequence[int] = ()) -> bool:
        """Whether the draft model should draw the token after these: it was right more often than sources that have it."""
        if not self._follow(tokens) or self._draft.rate < MIN_RATE:
            return False
        expected = _text(guessed)
        best = self._best(expected)
        return not self._draft.goes_on_after(expected) and (best is None or best.rate < self._draft.rate)

    def add_draft(self, tokens: Sequence[int], guessed: Sequence[int], token: int) -> None:
        """The draft model has drawn a token after these."""
        if self._follow(tokens):
            self._drafted.add(_text(guessed), _text([token]))

    def drafted_too_late(self) -> None:
        """The draft model has drawn a token that was known by then, which helps as little as a wrong one."""
        self._draft.rate *= RATE_DECAY

    def _follow(self, tokens: Sequence[int]) -> bool:
        """Follow the answer. Returns whether the sources have caught up with it."""
        return not [source for source in self._sources if not source.follow(tokens, CATCH_UP)]

    def _best(self, expected: str) -> "_Rated | None":
        """The source to ask for the token after these guesses."""
        having = [each for each in self._sources if each.rate >= MIN_RATE and each.goes_on_after(expected)]
        return max(having, key=lambda source: source.rate, default=None)


class _Rated:
    """A source, and the recent rate of tokens that it foretold among those for which it had a guess."""

    def __init__(self, source: Prediction | Repetition | Drafted, begin: int, rate: float = FIRST_RATE) -> None:
        """`begin`: number of tokens before the answer."""
        self._source = source
        self.guesses = source.guesses
        self.rate = rate
        self._followed = begin

    def goes_on_after(self, expected: str) -> bool:
        guesses = self.guesses(len(expected) + 1)
        return len(guesses) > len(expected) and guesses.startswith(expected)

    def follow(self, tokens: Sequence[int], most: int) -> bool:
        """Follow the answer by at most so many tokens. Returns whether that was to its end."""
        for token in _text(tokens[self._followed : self._followed + most]):
            if guess := self.guesses(1):
                self.rate = RATE_DECAY * self.rate + (1 - RATE_DECAY) * (guess == token)
            else:
                self.rate += RECOVERY * (FIRST_RATE - self.rate)
            self._source.take(token)
        self._followed = min(len(tokens), self._followed + most)
        return self._followed == len(tokens)
