"""Chooses the best address of each peer by measured round trips. Pure: probes in, links out."""

from dataclasses import dataclass

from node.core.types import Link

_SMOOTHING = 0.25
"""Weight of a new probe (moving average): a plugged cable shows after a few probes, one late answer hardly does."""
_FAILURES = 2
"""Consecutive lost probes before an address is dropped; Wi-Fi loses single ones."""
_GAIN = 0.8
"""Switch to another address only if its round trip is below this fraction: a stream must not hop between equals."""


@dataclass(slots=True)
class _Path:
    link: Link
    seen: float
    failures: int = 0


class Paths:
    """Measured paths to each peer. Feed it every probe of every address that the peer advertises."""

    def __init__(self, *, stale_after_s: float = 15.0) -> None:  # a few rounds of probes; after a sleep all are redone
        self._stale_after = stale_after_s
        self._paths: dict[str, dict[str, _Path]] = {}
        self._chosen: dict[str, str] = {}

    def observe(
        self, peer: str, address: str, rtt_ms: float, now: float, *, interface: str = "", kind: str = ""
    ) -> None:
        """Record a successful probe."""
        paths = self._paths.setdefault(peer, {})
        known = paths.get(address)
        if known and now - known.seen < self._stale_after:
            rtt_ms = known.link.rtt_ms + _SMOOTHING * (rtt_ms - known.link.rtt_ms)
        paths[address] = _Path(Link(peer, address, rtt_ms, interface, kind), now)

    def failed(self, peer: str, address: str) -> bool:
        """Record a lost probe. Returns whether the address now counts as unreachable."""
        path = self._paths.get(peer, {}).get(address)
        if path:
            path.failures += 1
            if path.failures >= _FAILURES:
                del self._paths[peer][address]
        return address not in self._paths.get(peer, {})

    def forget(self, peer: str) -> None:
        """Forget a peer that is gone; when it is back, its addresses are measured anew."""
        self._paths.pop(peer, None)
        self._chosen.pop(peer, None)

    def best(self, peer: str, now: float) -> Link | None:
        """The quickest path to the peer with a recent probe; the one in use unless another is clearly quicker."""
        fresh = {a: p.link for a, p in self._paths.get(peer, {}).items() if now - p.seen < self._stale_after}
        if not fresh:
            return None
        best = min(fresh.values(), key=lambda link: (link.rtt_ms, link.address))
        chosen = fresh.get(self._chosen.get(peer, ""), best)
        if best.rtt_ms < chosen.rtt_ms * _GAIN:
            chosen = best
        self._chosen[peer] = chosen.address
        return chosen

    def links(self, now: float) -> tuple[Link, ...]:
        """The best path to each reachable peer; for this node's report."""
        found = (self.best(peer, now) for peer in sorted(self._paths))
        return tuple(link for link in found if link)
