"""What a session gets that has the ring to itself: how often its tokens were foretold, and what one takes. Pure."""

WINDOW = 256
"""Tokens after which a token's weight is a third of a new one's."""
LEAST = 64
"""Tokens from which on the figures count."""


class AloneStream:
    """The recent tokens of sessions that had the ring to themselves."""

    def __init__(self) -> None:
        self._tokens = self._foretold = self._seconds = 0.0

    def note(self, tokens: int, foretold: int, seconds: float) -> None:
        """A step has given so many tokens. `foretold`: those that the best guess at each was right about."""
        kept = (1 - 1 / WINDOW) ** tokens
        self._tokens = kept * self._tokens + tokens
        self._foretold = kept * self._foretold + foretold
        self._seconds = kept * self._seconds + seconds

    @property
    def foretold(self) -> float:
        """The share of tokens that were foretold; 0 while too few are known."""
        return round(self._foretold / self._tokens, 2) if self._tokens >= LEAST else 0.0

    @property
    def token_ms(self) -> float:
        """Milliseconds a token; 0 while too few are known."""
        return float(f"{1e3 * self._seconds / self._tokens:.3g}") if self._tokens >= LEAST else 0.0
