"""Guesses at the next tokens of an answer: where the client's prediction would go on, what followed the answer's last tokens
when they occurred before, or what a draft model has drawn. Pure.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import NamedTuple

LENGTHS = (1, 2, 4, 8, 16, 32)
"""Numbers of last tokens that are looked for in what was said before."""
LONGEST = LENGTHS[-1]
PASSAGE_RATES = (0.25, 0.5, 0.7, 0.85, 0.95, 0.95)
"""Rates of right guesses after so many tokens, until an answer tells its own; see docs/bench/guesses.json."""
SLOTS = 1 << 21
"""Entries of a memory, of 8 bytes. Half of what was said some 300,000 tokens ago is forgotten."""
SOUGHT = 4
"""Most of the answer's last tokens that are looked for in a prediction."""
WINDOW = 32_768
"""Tokens after its place in which a prediction is searched for the answer's last tokens."""
NEARBY = 32
"""Tokens after its place in which a prediction is searched for a single token."""
RATE_DECAY = 0.85
"""Weight of a source's former rate of right guesses, for each token: half of the rate is that of the last four tokens."""
MIN_RATE = 0.05
"""Rate of right guesses below which none is made."""
MIN_DRAFT_RATE = 0.15
"""Rate of right guesses below which a draft model, which needs time to draw one, is not asked."""
DRAFT_RATE = 0.5
"""Rate of a draft model that has foretold no token yet."""
PATIENCE = 8
"""Tokens for which a draft model that is right more often than another guess is waited for."""
RECOVERY = 0.01
"""Share by which a rate returns to its first value with each token for which there was no guess: a source that was often
wrong is asked again some time later.
"""
CATCH_UP = 256
"""Maximum tokens of an answer that are followed at once: a token takes some 0.1 ms in a prediction of 100,000."""
PIECE = 1024
"""New tokens of a prompt that are learnt at once, in some 5 ms, or as many as a step has computed."""
_TOKEN_BITS = 20
"""Vocabularies are smaller; larger token ids would be taken for others, so that some guesses would be wrong."""
_TOKEN = (1 << _TOKEN_BITS) - 1
_HASH = (1 << 64) - 1


class Guess(NamedTuple):
    token: int
    rate: float
    """How many guesses of its kind were right lately, of all."""


class HitRate:
    """The recent rate of tokens that were foretold, among those for which there was a guess."""

    def __init__(self, first: float) -> None:
        self.value = self._first = first

    def count(self, right: bool | None) -> None:
        """Whether the guess at a token was right that is known now; None: there was none."""
        if right is None:
            self.value += RECOVERY * (self._first - self.value)
        else:
            self.value = RATE_DECAY * self.value + (1 - RATE_DECAY) * right


class PassageMemory:
    """What followed passages of LENGTHS tokens when they occurred last, in the texts of many owners.

    A table of fixed size that holds no texts. The place of an entry, and the mark by which it is known, come from a hash of
    its owner, of the passage and of Python's random seed, so no owner finds what followed in texts of another one. An entry
    takes the place of an older one: that is how old texts are forgotten.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        """`slots`: a power of two."""
        self._entries = memoryview(mmap(-1, 8 * slots)).cast("Q")  # takes memory once it is used
        self._last_slot = slots - 1

    def get(self, owner: Hashable, passage: Sequence[int]) -> int | None:
        """The token that followed, if it is known."""
        mark = hash((owner, *passage)) & _HASH
        entry = self._entries[mark & self._last_slot]
        return entry & _TOKEN if (entry ^ mark) <= _TOKEN else None

    def put(self, owner: Hashable, passage: Sequence[int], token: int) -> int | None:
        """Replace the token that followed, and return it."""
        mark = hash((owner, *passage)) & _HASH
        slot = mark & self._last_slot
        entry = self._entries[slot]
        self._entries[slot] = mark & ~_TOKEN | token & _TOKEN
        return entry & _TOKEN if (entry ^ mark) <= _TOKEN else None


class Prediction:
    """A text that the client expects, and the place in it where the answer is.

    After a token that it did not foretell, it goes on where the answer's last tokens occur; else it takes the token for
    a replaced one. It is kept as a string, one character for each token, because `str.find` finds a passage of 100,000
    tokens in some 50 µs and needs no index.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.accepted = 0
        """Tokens of the answer that it has foretold; never more than it has."""
        self._text = _text(tokens)
        self._rate = HitRate(1.0)
        self._place = 0
        self._lost_at = 0
        """The place at the first token that it did not foretell since the last one that it did."""
        self._recent = ""
        """The answer's last tokens."""

    def after(self, guessed: Sequence[int]) -> Guess | None:
        end = self._place + len(guessed)
        goes_on = end < len(self._text) and self._text[self._place : end] == _text(guessed)
        return Guess(ord(self._text[end]), self._rate.value) if goes_on else None

    def take(self, token: int) -> None:
        """Follow the answer by one token."""
        guess = self.after(())
        self._rate.count(guess and guess.token == token)
        self._recent = (self._recent + _text([token]))[-SOUGHT:]
        if guess and guess.token == token:
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


class Passages:
    """What followed the last tokens of prompt and answer when they occurred before, in these or in the owner's other texts:
    the most tokens of LENGTHS that did.
    """

    def __init__(self, memory: PassageMemory, owner: Hashable) -> None:
        self._memory, self._owner = memory, owner
        self._rates = [(length, HitRate(first)) for length, first in zip(LENGTHS, PASSAGE_RATES, strict=True)]
        self._recent: list[int] = []
        """The last tokens, at most LONGEST."""

    def after(self, guessed: Sequence[int]) -> Guess | None:
        text = [*self._recent, *guessed]
        for length, rate in reversed(self._rates):
            if length <= len(text) and rate.value >= MIN_RATE:
                token = self._memory.get(self._owner, text[-length:])
                if token is not None:
                    return Guess(token, rate.value)
        return None

    def take(self, token: int) -> None:
        """Follow the answer by one token."""
        for length, rate in self._rates:
            if length <= len(self._recent):
                guess = self._memory.put(self._owner, self._recent[-length:], token)
                rate.count(None if guess is None else guess == token)
        self._recent = [*self._recent, token][-LONGEST:]

    def learn(self, prompt: Sequence[int], begin: int, most: int) -> int:
        """Learn a prompt from there on, up to `most` tokens that were not said before. Returns how far it has come."""
        new = 0
        for place in range(begin, len(prompt), LONGEST):
            if new >= most:
                return place
            piece = prompt[place : place + LONGEST]
            text = [*self._recent, *piece]
            if self._memory.get(self._owner, text[-LONGEST - 1 : -1]) != piece[-1]:
                new += len(piece)
                for end in range(len(self._recent), len(text)):
                    for length in LENGTHS:
                        if length <= end:
                            self._memory.put(self._owner, text[end - length : end], text[end])
            self._recent = text[-LONGEST:]
        return len(prompt)


class Drafted:
    """What a draft model has drawn for the tokens to come."""

    def __init__(self) -> None:
        self.rate = HitRate(DRAFT_RATE)
        self.silent = PATIENCE
        """Tokens that have come since the draft model drew one."""
        self.depth = 0
        """Guesses after which it drew that one."""
        self._tokens: list[int] = []

    def after(self, guessed: Sequence[int]) -> Guess | None:
        goes_on = len(guessed) < len(self._tokens) and self._tokens[: len(guessed)] == list(guessed)
        return Guess(self._tokens[len(guessed)], self.rate.value) if goes_on else None

    def take(self, token: int) -> None:
        """Follow the answer by one token."""
        guess = self.after(())
        self.rate.count(guess and guess.token == token)
        self.silent += 1
        self._tokens = self._tokens[1:] if guess and guess.token == token else []

    def add(self, guessed: Sequence[int], token: int) -> None:
        """The draft model has drawn a token after these guesses at the next ones."""
        self._tokens = [*guessed, token]
        self.silent, self.depth = 0, len(guessed)


@dataclass(slots=True)
class _Source:
    """A source of guesses, and how many tokens it has followed."""

    guesses: Prediction | Passages | Drafted
    followed: int

    def follow(self, tokens: Sequence[int], most: int) -> bool:
        """Follow the answer by at most so many tokens. Returns whether that was to its end."""
        for token in tokens[self.followed : self.followed + most]:
            self.guesses.take(token)
        self.followed = min(len(tokens), self.followed + most)
        return self.followed == len(tokens)


class Guesser:
    """Guesses the tokens of one answer. Of the sources that have a guess, the one that was right most often is asked; in
    doubt first the client's prediction, then what was said before, then the draft model.

    Each source is followed along the answer whether it is asked or not.
    """

    def __init__(
        self, prompt: Sequence[int], prediction: Sequence[int] = (), *, memory: PassageMemory, owner: Hashable
    ) -> None:
        """`owner`: whose texts in the memory may be used, and get this one."""
        self._prompt = prompt
        self._learnt = 0
        """Tokens of the prompt."""
        self._predicted, self._passages, self._drafted = Prediction(prediction), Passages(memory, owner), Drafted()
        sources = (self._predicted, self._passages, self._drafted)
        self._sources = [_Source(source, len(prompt)) for source in sources]

    def accepted(self, tokens: Sequence[int]) -> int:
        """Number of the client's predicted tokens that the answer has so far. `tokens`: those of prompt and answer."""
        self._sources[0].follow(tokens, len(tokens))
        return self._predicted.accepted

    def after(self, tokens: Sequence[int], guessed: Sequence[int] = ()) -> int | None:
        """The token after the prompt and the answer so far, and these guesses at its next tokens.

        None if no source has it, while the sources have yet to catch up with the answer, and if the draft model will most
        likely have a better one: a worse one in its place would leave it nothing to follow.
        """
        guess = self._best(guessed) if self.catch_up(tokens) else None
        draws = self._drafted.silent < PATIENCE and len(guessed) <= self._drafted.depth
        return guess.token if guess and not (draws and self._draft_is_better(guessed, guess)) else None

    def rate(self, tokens: Sequence[int], guessed: Sequence[int] = ()) -> float:
        """How often guesses were right lately of the kind that tells the token after the prompt and the answer so far, and these
        guesses at its next tokens; 0 if there is none.
        """
        guess = self._best(guessed) if self.catch_up(tokens) else None
        return guess.rate if guess else 0.0

    @property
    def draft_rate(self) -> float:
        """How often the draft model was right lately; 0 where it is too seldom to be asked."""
        rate = self._drafted.rate.value
        return rate if rate >= MIN_DRAFT_RATE else 0.0

    def lacks_draft(self, tokens: Sequence[int], guessed: Sequence[int] = ()) -> bool:
        """Whether the draft model should draw the token after these: it was right more often than sources that have it."""
        return self.catch_up(tokens) and self._draft_is_better(guessed, self._best(guessed))

    def add_draft(self, tokens: Sequence[int], guessed: Sequence[int], token: int) -> None:
        """The draft model has drawn a token after these."""
        if self.catch_up(tokens):
            self._drafted.add(guessed, token)

    def drafted_too_late(self) -> None:
        """The draft model has drawn a token that was known by then, which helps as little as a wrong one."""
        self._drafted.rate.count(False)

    def catch_up(self, tokens: Sequence[int], most: int = PIECE) -> bool:
        """Learn up to `most` new tokens of the prompt, or PIECE, and follow the answer by a piece. Returns whether the sources
        have caught up with them.
        """
        if self._learnt < len(self._prompt):
            self._learnt = self._passages.learn(self._prompt, self._learnt, max(most, PIECE))
        is_learnt = self._learnt == len(self._prompt)
        return is_learnt and not [source for source in self._sources if not source.follow(tokens, CATCH_UP)]

    def _draft_is_better(self, guessed: Sequence[int], best: Guess | None) -> bool:
        """Whether the draft model has yet to draw the token after these guesses, and would more often be right than the best
        guess at it.
        """
        rate = self.draft_rate
        return bool(rate) and not self._drafted.after(guessed) and (best is None or best.rate < rate)

    def _best(self, guessed: Sequence[int]) -> Guess | None:
        """The guess at the token after these guesses that is most likely right."""
        guesses = [guess for source in self._sources if (guess := source.guesses.after(guessed))]
        return max((guess for guess in guesses if guess.rate >= MIN_RATE), key=lambda guess: guess.rate, default=None)


def _text(tokens: Sequence[int]) -> str:
    return "".join(chr(token & _TOKEN) for token in tokens)
