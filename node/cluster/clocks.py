"""Compares the clocks of other nodes with this one's, by the time that each heartbeat carries. Pure."""

from collections.abc import Mapping

from node.core.limits import MAX_NODES


class Clocks:
    def __init__(self) -> None:
        self._ahead: dict[str, tuple[float, float]] = {}
        """Seconds by which each node's clock seemed to be ahead, the last two times."""

    def note(self, node: str, clock_ms: int, present_ms: int) -> None:
        """Record a heartbeat. `clock_ms`: Unix milliseconds by the sender's clock; 0 if it tells none."""
        if not clock_ms:
            return
        seen = (clock_ms - present_ms) / 1000
        _, before = self._ahead.pop(node, (seen, seen))
        if len(self._ahead) >= MAX_NODES:
            del self._ahead[next(iter(self._ahead))]
        self._ahead[node] = before, seen

    def ahead_s(self) -> Mapping[str, float]:
        """Seconds by which each node's clock is ahead of this one's: a message that is late makes it seem behind, so the larger
        of the last two counts.
        """
        return {node: max(last) for node, last in self._ahead.items()}
