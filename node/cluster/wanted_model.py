"""A model that the cluster shall serve, as the head knows it."""

from dataclasses import dataclass, field

from node.core.clock import now
from node.core.errors import PippinError
from node.core.limits import MAX_TEXT_CHARS
from node.core.models import ModelSpec, Wish
from node.core.reports import Issue
from node.core.rings import Refusal

RETRY_S = 15.0
"""Time after which a model that could not be described or loaded is tried again without a request; doubled each time
that it fails again, up to MOST_RETRY_S."""
MOST_RETRY_S = 300.0
OPEN_WAIT_S = 60.0
"""A new request waits this long for its model to load; then the client is told to come back. For as long, a model that loads
for a request makes no room for another one, and one that cannot be served stays wanted: its nodes may come back.
"""
BEGIN_S = 10.0
"""Time from which a model is ready to its first request, for which it makes no room either: its text is made tokens, for which
the gateway may first have to read the tokenizer.
"""


@dataclass(slots=True)
class Retry:
    """When something that fails is tried again: ever less often."""

    failures: int = 0
    """How often it failed, one time after the other."""
    at: float = 0.0

    def fail(self) -> None:
        self.at = now() + min(RETRY_S * 2 ** min(self.failures, 10), MOST_RETRY_S)
        self.failures += 1


@dataclass(slots=True)
class WantedModel:
    """Wanted for good if it is named, otherwise until its memory is needed."""

    asked_at: float = 0.0
    """Time of the last request."""
    served_at: float = 0.0
    """Time at which it last had a ring."""
    placed_at: float = 0.0
    """Time at which it got its ring; refreshed while it has none."""
    loading_at: float = 0.0
    """Time at which it was last seen to load."""
    used_at: float = 0.0
    """Time at which it was last seen to answer requests."""
    preload: bool = False
    """Whether some node names it with --model."""
    wish: Wish = field(default_factory=Wish)
    spec: ModelSpec | None = None
    draft: str = ""
    """Id of the draft model that was last looked for; empty if none was."""
    draft_failure: Issue | None = None
    """Why the model has to do without it."""
    draft_retry: Retry = field(default_factory=Retry)
    failure: Refusal | None = None
    """Why it could not be described or loaded."""
    failed_at: float = 0.0
    retry: Retry = field(default_factory=Retry)

    @property
    def is_named(self) -> bool:
        """Whether it stays loaded although nobody asks for it."""
        return self.preload or self.wish.named

    @property
    def wanted_at(self) -> float:
        """Time at which it was last asked for, or seen to answer requests."""
        return max(self.asked_at, self.used_at)

    def is_idle(self, after_s: float) -> bool:
        """Whether it is to be unloaded, as it had no request for so long, or for as long as a request said."""
        keep_s = after_s if self.wish.keep_s is None else self.wish.keep_s
        return not self.is_named and now() - self.wanted_at >= keep_s


def refusal_of(model: str, error: PippinError) -> Refusal:
    """Truncate to a length that peers accept; they would refuse the whole heartbeat otherwise."""
    return Refusal(model, error.code, error.message[: MAX_TEXT_CHARS // 2], error.hint[: MAX_TEXT_CHARS // 2])
