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
        self._first: float | None = None
        """The first break since a step came round last, however many requests were given up since."""
        self._gave_up = False
        self._tries = 0

    def next_try(self) -> float:
        """How long to wait before it, s."""
        self._tries += 1
        return RESTART_DELAY_S if self._tries > 1 else 0.0

    def begin(self, reason: PippinError, at: float) -> None:
        """`at`: when it broke, which may have been noticed only later."""
        self.reason = reason
        if self._since is None:
            self._since = at
        if self._first is None:
            self._first = at

    def given_up(self, present: float, *, elsewhere: bool) -> RingLost | None:
        """Why the sessions should not wait any longer, if so. `elsewhere`: another ring could take them."""
        broken_s, window_s = present - (present if self._since is None else self._since), RESTART_WINDOW_S
        if elsewhere and broken_s > RESTART_ONCE_S:
            window_s = RESTART_ONCE_S
        if self.reason is None or broken_s <= window_s:
            return None
        self._gave_up = True
        return RingLost(f"The ring could not be restarted for {window_s:.1f} s: {self.reason.message}")

    def restarted(self) -> None:
        """It is tried again; whether it works is not known yet."""
        self.reason = None

    def gave_up_one(self) -> None:
        """A session was given up, as the ring broke too often."""
        self._gave_up = True

    def is_lost(self, present: float) -> bool:
        """Whether the ring is of no use: requests were given up, and no step has come round for the whole window."""
        return self._gave_up and self._first is not None and present - self._first > RESTART_WINDOW_S

    def unmissed(self) -> None:
        """There is nothing to do. If requests were given up, that is no sign that the ring works."""
        self._since = None
        self._tries = 0
        if not self._gave_up:
            self._first = None

    def over(self) -> None:
        """A step has come round."""
        self._since = self._first = None
        self._gave_up = False
        self._tries = 0
