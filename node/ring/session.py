"""One sequence being generated, as its driver keeps it."""

import asyncio
from dataclasses import dataclass, field

from node.core.errors import PippinError
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import Finish, GenerateRequest, TokenEvent
from node.engine.runner import Draw
from node.engine.sampling import History
from node.ring.reading import Reading
from node.text.constraint import Constraint

HEADROOM = 64
"""Tokens of KV set aside ahead of a growing session, so that its growth is seen before it happens."""


@dataclass(slots=True, eq=False)
class Session:
    """Everything about a generation but its KV. `tokens` is the prompt and all that was generated since."""

    request: GenerateRequest
    constraint: Constraint | None = None
    """Of the request's grammar; used in the compute thread."""
    tokens: list[int] = field(init=False)
    slot: "Slot | None" = None
    """None while it waits."""
    finished: bool = False
    spared: int = 0
    """Tokens whose KV an earlier session left."""
    evaluates: EvaluateRequest | None = None
    """All that is wanted is an evaluation of the prompt."""
    events: asyncio.Queue[TokenEvent | Evaluation | PippinError] = field(default_factory=asyncio.Queue)
    """What its gateway has not read yet; bounded by max_tokens, so a slow reader costs only itself."""

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.resume]

    @classmethod
    def of_evaluation(cls, request: EvaluateRequest) -> "Session":
        """One that ends with its prompt."""
        asked = GenerateRequest(request.id, request.model, request.prompt, max_tokens=0, client=request.client)
        return cls(asked, evaluates=request)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def longest(self) -> int:
        """Tokens that it may come to have."""
        return len(self.request.prompt) + self.request.max_tokens

    @property
    def reserved(self) -> int:
        """Tokens of KV that are set aside for it now; grows with it."""
        return min(len(self.tokens) + HEADROOM, self.longest)

    def ends_with(self, token: int) -> bool:
        """Whether this token, as the next one, is the last."""
        return token in self.request.stop_tokens or self.generated + 1 >= self.request.max_tokens

    def draw(self) -> Draw:
        """What sampling needs for the next token."""
        sampling, prompt = self.request.sampling, len(self.request.prompt)
        history = History()
        if sampling.penalizes or self.constraint:
            history = History(self.tokens[:prompt] if sampling.penalizes else (), self.tokens[prompt:])
        return Draw(sampling, self.generated, history, self.ends_with, self.constraint)

    def accept(self, token: int) -> TokenEvent:
        """Append a sampled token; tells whether it was the last."""
        position = self.generated
        self.tokens.append(token)
        first = position == len(self.request.resume)
        cached = min(self.spared, len(self.request.prompt)) if first else 0
        if token in self.request.stop_tokens:
            return TokenEvent(position, token, finish="stop", cached_tokens=cached)
        finish: Finish | None = "length" if position + 1 >= self.request.max_tokens else None
        return TokenEvent(position, token, finish=finish, cached_tokens=cached)


@dataclass(slots=True, eq=False)
class Slot:
    """A session's stay in a lane: from its first token's step until its KV is freed or moved out of the way."""

    session: Session
    number: int = 0
    """Of the lane in which it begins: what the stages know its KV by, whichever lane it comes to be in."""
    sent: int = 0
    """Tokens whose KV the stages have, once all steps under way have passed them."""
    cached: int = 0
    """Those of them whose KV was there when it began."""
    gone: bool = False
    """The row is to be freed; what still comes back for it is ignored."""
    keep: bool = False
    """Its KV is worth keeping for a later session that begins alike."""
    reading: Reading | None = field(default=None, init=False)
    """Of a session that evaluates its prompt."""

    def __post_init__(self) -> None:
        if self.session.evaluates:
            self.reading = Reading(self.session.evaluates)

    @property
    def ahead(self) -> int:
        """Tokens that the stages have yet to be sent."""
        return len(self.session.tokens) - self.sent
