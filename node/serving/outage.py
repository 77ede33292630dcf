"""How long a ring has been broken, and when its driver gives up. Pure."""

from node.core.errors import PippinError, RingLost

RESTART_WINDOW_S = 15.0
"""How long a broken ring tries to start again before its requests are given back to their gateways."""
RESTART_ONCE_S = 0.2
"""The same when another ring is ready to take them: one fresh start mends a link that was reset; more are in the way."""
RESTART_DELAY_S = 0.3
"""Between two tries. The first one comes at once: most often, nothing but a connection was lost."""
MOST_BREAKS = 20
"""Of a session, without a token in between: then it may be what breaks the ring. A ring that can't be reached does not
count, as nothing is begun in it."""


class Outage:
    """From the first break until a step has come round again; a ring that does nothing is not missed."""

    def __init__(self) -> None:
        self.reason: PippinError | None = None
        """Of the last break; None once the ring has started again."""
        self._since: float | None = None
        self._tries = 0

    def next_try(self) -> float:
        """How long to wait before it, s."""
        self._tries += 1
        return RESTART_DELAY_S if self._tries > 1 else 0.0

    def begin(self, reason: PippinError, present: float) -> None:
        self.reason = reason
        if self._since is None:
            self._since = present

    def given_up(self, present: float, *, elsewhere: bool) -> RingLost | None:
        """Why the sessions should not wait any longer, if so. `elsewhere`: another ring could take them."""
        broken_s, window_s = present - (present if self._since is None else self._since), RESTART_WINDOW_S
        if elsewhere and broken_s > RESTART_ONCE_S:
            window_s = RESTART_ONCE_S
        if self.reason is None or broken_s <= window_s:
            return None
        return RingLost(f"The ring could not be restarted for {window_s:.1f} s: {self.reason.message}")

    def restarted(self) -> None:
        """It is tried again; whether it works is not known yet."""
        self.reason = None

    def over(self) -> None:
        self._since = None
        self._tries = 0
