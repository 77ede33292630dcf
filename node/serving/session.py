"""One sequence being generated, as its driver keeps it."""

import asyncio
from dataclasses import dataclass, field

from node.core.errors import PippinError
from node.core.types import GenerateRequest, TokenEvent


@dataclass(slots=True, eq=False)
class Session:
    """Everything about a generation but its KV. `tokens` is the prompt and all that was generated since."""

    request: GenerateRequest
    lane: int = -1
    tokens: list[int] = field(default_factory=list)
    sent: int = 0
    """Tokens whose step has been sent round the ring."""
    in_flight: int = 0
    """Steps that have not come back."""
    finished: bool = False
    events: asyncio.Queue[TokenEvent | PippinError] = field(default_factory=asyncio.Queue)
    """What its gateway has not read yet; bounded by max_tokens, so a slow reader costs only itself."""

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.resume]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def reserved(self) -> int:
        """Tokens of KV that it may come to need."""
        return len(self.request.prompt) + self.request.max_tokens

    def rewind(self) -> None:
        """Forget the KV: all tokens are to be sent again."""
        self.lane, self.sent, self.in_flight = -1, 0, 0

    def accept(self, token: int) -> TokenEvent:
        """Append a sampled token; tells whether it was the last."""
        position = self.generated
        self.tokens.append(token)
        if token in self.request.stop_tokens:
            return TokenEvent(position, token, finish="stop")
        return TokenEvent(position, token, finish="length" if position + 1 >= self.request.max_tokens else None)
