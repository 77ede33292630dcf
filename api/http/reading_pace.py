"""How quickly a client reads an answer, while bytes of it wait for the client. Pure."""

from api.http.limits import READ_RATE


class ReadingPace:
    def __init__(self, span_s: float) -> None:
        """`span_s`: seconds of waiting after which the pace is judged, and measured anew."""
        self._span_s = span_s
        self._left = 0
        """Bytes that waited at the last look; 0 if none did, so that no time has passed since."""
        self._at = 0.0
        self._waited_s = 0.0
        self._taken = 0
        self.is_too_slow = False
        """Whether it took less than READ_RATE in the last span."""

    def look(self, now: float, left: int) -> None:
        """At this time so many bytes wait. Between two looks they only become fewer."""
        if self._left:
            self._waited_s += now - self._at
            self._taken += self._left - left
        self._at, self._left = now, left
        if self._waited_s >= self._span_s:
            self.is_too_slow = self._taken < READ_RATE * self._waited_s
            self._waited_s, self._taken = 0.0, 0

    @property
    def next_look_s(self) -> float:
        return self._span_s - self._waited_s
