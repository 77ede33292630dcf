"""One request at its driver: its tokens, its slot in a lane, and the progress of an evaluation."""

import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from node.core.axes import Axes
from node.core.errors import PippinError
from node.core.evaluation import ChunkRequest, ChunkResult, EvaluateRequest, Evaluation, Score
from node.core.frames import SequenceId
from node.core.generation import Finish, GenerateRequest, PromptProgress, TokenEvent
from node.core.guesses import Guesser, PassageMemory
from node.engine.sampling import Draw, History
from node.engine.tower import Seen
from node.engine.verdict import RowResult
from node.ring.prefixes import BYTES, pack
from node.ring.running_mean import RunningMean
from node.text.constraint import Constraint

HEADROOM = 64
"""Tokens of KV set aside ahead of a growing session, so that its growth is seen before it happens."""
SOON = 512
"""Tokens of text before a picture that wait for it: a step of their own would cost more than the wait."""


@dataclass(eq=False)
class Session:
    """All of a request but its KV. `tokens` holds the prompt and the generated tokens."""

    request: GenerateRequest
    constraint: Constraint | None = None
    """Made of the request's grammar; used in the compute thread."""
    vocabulary: int = sys.maxsize
    """Of the model; higher numbers in the prompt are places of pictures."""
    axes: Axes | None = None
    """Where its pictures are, if they have positions in three axes, or may not be divided."""
    tokens: list[int] = field(init=False)
    beginning: bytes = field(init=False)
    """The tokens at its start, packed."""
    slot: "Slot | None" = None
    """None while the session waits."""
    finished: bool = False
    thinks: bool = True
    """Whether its thinking budget may force a token yet."""
    lost: int = 0
    """Tokens whose KV it had when it lost its slot."""
    sought: bool = False
    """Its KV was looked for on disks."""
    cached_tokens: int = 0
    """Tokens whose KV an earlier session left."""
    memory: PassageMemory | None = None
    """Where guesses come from. None: from its own tokens only."""
    evaluate_request: EvaluateRequest | None = None
    """Set for a request that only evaluates its prompt."""
    events: asyncio.Queue[TokenEvent | PromptProgress | Evaluation | PippinError] = field(default_factory=asyncio.Queue)
    """Events that the gateway has not read yet; bounded by max_tokens. A reader below READ_RATE is disconnected."""

    least_s: RunningMean = field(default_factory=RunningMean, init=False)
    """Seconds of a step of the least number of tokens while it has the ring to itself."""

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.resume]
        self.beginning = pack(self.tokens)

    @classmethod
    def of_evaluation(cls, request: EvaluateRequest) -> "Session":
        """A session that ends with its prompt."""
        prompt = GenerateRequest(request.id, request.model, request.prompt, max_tokens=0, client=request.client)
        return cls(prompt, evaluate_request=request)

    @property
    def pixel_bytes(self) -> int:
        return sum(len(picture.pixels) for picture in self.request.pictures)

    @property
    def client(self) -> str:
        return self.request.client

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens, prompt included."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def reserved(self) -> int:
        """Tokens of KV set aside for the session; grows with it."""
        return min(len(self.tokens) + HEADROOM, self.max_length)

    def begins_with(self, other: "Slot", tokens: int) -> bool:
        """Whether it begins with so many tokens of another session, and has more."""
        beginning = other.session.beginning[: tokens * BYTES]
        has_more = tokens < len(self.tokens) and tokens * BYTES == len(beginning)
        return has_more and self.beginning.startswith(beginning)

    @property
    def tokens_ahead(self) -> int:
        """Maximum number of tokens after the next one."""
        return self.request.max_tokens - self.generated - 1

    @property
    def is_bound(self) -> bool:
        """Whether a grammar may force the token after the next one."""
        return self.constraint is not None and self.constraint.binds

    def next_guesses(self, guessed: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that may come after these guesses at the next ones."""
        path = list(guessed)
        while len(path) < len(guessed) + most and (token := self.next_guess(path)) is not None:
            path.append(token)
        return path[len(guessed) :]

    def learn(self, most: int) -> None:
        """Have the sources of guesses learn so many tokens of the prompt, or somewhat more."""
        self.guesser.catch_up(self.tokens, most)

    def guess_rate(self, guessed: Sequence[int] = ()) -> float:
        """How likely the guess at the token after these guesses at the next ones is right; 0 if there is none."""
        return 1.0 if self._forced_after(guessed) is not None else self.guesser.rate(self.tokens, guessed)

    def next_guess(self, guessed: Sequence[int]) -> int | None:
        """The token that may come after these guesses at the next ones; None if there is no guess, or it would be the
        last token.
        """
        if not self._may_guess_after(guessed):
            return None
        if (forced := self._forced_after(guessed)) is not None:
            return forced
        token = self.guesser.after(self.tokens, guessed)
        return None if token is None or self.ends_with(token) or token >= self.vocabulary else token

    def guesses_to_draft_after(self, guessed: Sequence[int], most: int) -> list[int] | None:
        """These guesses at the next tokens and those that follow them, after which the draft model is to be asked.

        None if it is not to be asked for any of `most` tokens.
        """
        path = list(guessed)
        while len(path) < most and self._may_guess_after(path):
            if self._forced_after(path) is None and self.guesser.lacks_draft(self.tokens, path):
                return path
            if (token := self.next_guess(path)) is None:
                return None
            path.append(token)
        return None

    def add_draft(self, tokens: Sequence[int], verified: int, token: int) -> None:
        """The draft model has drawn a token after `tokens`, of which the first `verified` were this session's at that time."""
        present = len(self.tokens)
        if present <= len(tokens) and self.tokens[verified:] == tokens[verified:present]:
            self.guesser.add_draft(self.tokens, tokens[present:], token)
        else:
            self.guesser.drafted_too_late()

    def _forced_after(self, guessed: Sequence[int]) -> int | None:
        """The token that the grammar forces after these guesses."""
        forced = self.constraint.forced if self.constraint else []
        is_known = len(forced) > len(guessed) and forced[: len(guessed)] == list(guessed)
        return forced[len(guessed)] if is_known else None

    def _may_guess_after(self, guessed: Sequence[int]) -> bool:
        """Whether the token after these guesses is not the last one, of which there is no step, and there is KV for it."""
        return self.generated + len(guessed) + 1 < self.request.max_tokens and len(guessed) < HEADROOM

    @cached_property
    def guesser(self) -> Guesser:
        """Made when it is needed first: most sessions of a busy ring guess nothing."""
        request = self.request
        owner = (request.client or request.id, request.model)
        return Guesser(request.prompt, request.prediction, memory=self.memory or PassageMemory(), owner=owner)

    @cached_property
    def _words(self) -> Sequence[int]:
        """The prompt without places of pictures."""
        prompt = self.request.prompt
        return [token for token in prompt if token < self.vocabulary] if self.request.pictures else prompt

    def ends_with(self, token: int) -> bool:
        """Whether this token ends the session, wherever it comes."""
        return token in self.request.stop_tokens

    def draw(self, guessed: Sequence[int] = ()) -> Draw:
        """The sampler's input for the token after these guesses at the next ones."""
        sampling, prompt, history = self.request.sampling, len(self.request.prompt), History()
        thinking = self.request.thinking if self.thinks else None
        if sampling.penalizes or self.constraint or thinking:
            generated = self.tokens[prompt:]
            looks = len(generated) < 1024 or len(generated) % 64 == 0  # it takes time where thoughts are long
            if thinking and looks and thinking.is_over(generated):
                self.thinks, thinking = False, None
            generated += guessed
            history = History(self._words if sampling.penalizes else (), generated)
        return Draw(sampling, self.generated + len(guessed), history, self.ends_with, self.constraint, thinking)

    def accept(self, token: int, logprob: float | None = None, top: Sequence[tuple[int, float]] = ()) -> TokenEvent:
        """Append a sampled token. The event tells whether it is the last."""
        position = self.generated
        self.tokens.append(token)
        first = position == len(self.request.resume)
        cached = min(self.cached_tokens, len(self.request.prompt)) if first else 0
        finish: Finish | None = "length" if position + 1 >= self.request.max_tokens else None
        if token in self.request.stop_tokens:
            finish = "stop"
        accepted = self.guesser.accepted(self.tokens) if self.request.prediction else 0
        return TokenEvent(position, token, logprob, top, finish, cached, accepted)


@dataclass(slots=True, eq=False)
class Slot:
    """A session's stay in a lane: from the step of its first token until its KV is freed or moved out of the way."""

    session: Session
    lane: SequenceId = 0
    """Number of the lane in which it begins; later ones have higher numbers."""
    number: SequenceId = 0
    """The stages know its KV by it, whichever lane it moves to: the number of `lane`, or of the prefix that became the session's."""
    stored: int = 0
    """Blocks whose names the stages know, for their disks."""
    state_at: int = 0
    """Where caches can't be cut: the tokens after which their state is to be on the disks; 0 for nowhere."""
    sent: int = 0
    """Tokens whose KV the stages have, once all steps in flight have passed them."""
    cached: int = 0
    """Tokens whose KV was there when the slot began."""
    gone: bool = False
    """The row is to be freed; results that still come back for it are ignored."""
    keep: bool = False
    """The KV is worth keeping for a later session with the same beginning."""
    seen: Seen | None = field(default=None, init=False)
    """The embeddings of the pictures that come next, until all of their places are sent."""
    sight: int = field(init=False)
    """Position of the first place of a picture that the tower has yet to see; sys.maxsize for none."""
    evaluation: "PartialEvaluation | None" = field(default=None, init=False)
    """Of a session that evaluates its prompt."""

    def __post_init__(self) -> None:
        self._look(self.sent)
        if self.session.evaluate_request:
            self.evaluation = PartialEvaluation(self.session.evaluate_request)

    def see(self, seen: Seen) -> None:
        """Take the embeddings of the next pictures."""
        self.seen = seen
        self._look(seen.end)

    def _look(self, begin: int) -> None:
        tokens = self.session.tokens if self.session.request.pictures else ()
        places = (position for position in range(begin, len(tokens)) if tokens[position] >= self.session.vocabulary)
        self.sight = next(places, sys.maxsize)

    @property
    def has_pictures(self) -> bool:
        """Whether places of pictures are yet to be sent."""
        return self.seen is not None or self.sight < sys.maxsize

    @property
    def is_blind(self) -> bool:
        """Whether the tower has to see a picture first: it comes next, or so soon that one step computes it with the text before."""
        has_seen = self.seen is not None and self.sent < self.seen.end
        return self.sent >= self.sight or (not has_seen and self.sight - self.sent < SOON)

    @property
    def unsent(self) -> int:
        """Tokens that have yet to be sent to the stages."""
        return len(self.session.tokens) - self.sent

    def accept(self, result: RowResult) -> TokenEvent | Evaluation | PippinError | None:
        """Add the result of the slot's row in a step; returns the event that the session gets, if any."""
        if isinstance(result, PippinError):
            return result
        if isinstance(result, ChunkResult):
            return self.evaluation.add(result) if self.evaluation else None
        return self.session.accept(result.token, result.logprob, result.top)


class PartialEvaluation:
    """Collects the results of a text's chunks.

    It belongs to a slot: when KV is lost, the next slot begins at the first token, so nothing is counted twice.
    """

    def __init__(self, request: EvaluateRequest) -> None:
        self._request = request
        self._done = 0
        """Tokens."""
        self._scores: list[Score] = []
        self._total: list[float] = []

    def request(self, tokens: int) -> ChunkRequest:
        """The request for the next chunk, of so many tokens."""
        first = self._done + 1
        if self._request.among:
            is_last = self._done + tokens == len(self._request.prompt)
            return ChunkRequest(tokens, top=0, among=self._request.among if is_last else ())
        return ChunkRequest(tokens, self._request.prompt[first : first + tokens], self._request.top)

    def add(self, result: ChunkResult) -> Evaluation | None:
        """Add a chunk's result; returns the evaluation after the last chunk."""
        self._done += result.tokens
        self._scores += result.scores
        before = self._total or [0.0] * len(result.total)
        self._total = [a + b for a, b in zip(before, result.total, strict=True)]
        if self._done < len(self._request.prompt):
            return None
        length = math.hypot(*self._total) or 1.0
        return Evaluation(self._scores, [value / length for value in self._total], result.among)
