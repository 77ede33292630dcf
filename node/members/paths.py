"""Chooses the best address of each peer by bandwidth and round trip. Pure: probes in, paths out."""

from dataclasses import dataclass, replace

from node.core.addresses import is_self_assigned
from node.core.reports import Path

_SMOOTHING = 0.25
"""Weight of a probe that took longer (moving average). A shorter one counts at once: busy machines only add."""
_FAILURES = 2
"""Consecutive lost probes before an address is dropped; Wi-Fi loses single ones."""
_GAIN = 0.8
"""Switch to another address only if its round trip is below this fraction: a stream must not hop between equals."""
_TYPICAL = {"loopback": 2e9, "thunderbolt": 1e9, "ethernet": 1e8, "wi-fi": 4e7}
"""Bytes per second of a path of a kind, until it is measured."""
_UNKNOWN = 1e7
"""The same for a path of unknown kind, such as a VPN's."""
_WIDER = 1.5
"""A path is preferred for its bandwidth if it has this many times as much: measurements vary."""
_FAR = 2.0
"""A path whose round trip is longer than this many times the shortest one is not used, whatever its bandwidth."""
_NOISE, _NOISE_MS = 0.2, 0.3
"""A round trip is reported anew if it differs by more than this share and this time: a new report goes to all nodes."""
_SOFTWARE_MS = 1.0
"""Share of two busy processes in a round trip: shorter ones say nothing about a path."""
BANDWIDTH_AGAIN_S = 600.0
"""Interval of the measurements of the bandwidth of the path in use. On another path a measurement counts for twice as long. Then
that path gets another chance: the machine may have been busy.
"""


@dataclass(slots=True)
class _Probed:
    path: Path
    seen: float
    failures: int = 0
    measured_at: float | None = None
    """When its bandwidth was measured, or when that failed."""


class Paths:
    """Measured paths to each peer. Feed it every probe of every address that the peer advertises."""

    def __init__(self, *, stale_after_s: float = 100.0) -> None:  # three rounds of probes
        self._stale_after = stale_after_s
        self._paths: dict[str, dict[str, _Probed]] = {}
        self._chosen: dict[str, str] = {}
        self._reported: tuple[Path, ...] = ()
        """As last reported."""

    def observe(
        self, peer: str, address: str, rtt_ms: float, now: float, *, interface: str = "", kind: str = ""
    ) -> None:
        """Record a successful probe."""
        paths = self._paths.setdefault(peer, {})
        known = paths.get(address)
        if known and now - known.seen < self._stale_after:
            rtt_ms = min(rtt_ms, known.path.rtt_ms + _SMOOTHING * (rtt_ms - known.path.rtt_ms))
        paths[address] = _Probed(Path(peer, address, rtt_ms, interface, kind), now)
        if known and known.measured_at is not None and known.path.interface == interface:
            in_use = self._chosen.get(peer) == address
            if in_use or now - known.measured_at < 2 * BANDWIDTH_AGAIN_S:
                self.observe_bandwidth(peer, address, known.path.bytes_per_s, known.measured_at)

    def observe_bandwidth(self, peer: str, address: str, bytes_per_s: float, at: float) -> None:
        """Record a measurement of bandwidth; 0 if it failed."""
        if probed := self._paths.get(peer, {}).get(address):
            probed.path, probed.measured_at = replace(probed.path, bytes_per_s=bytes_per_s), at

    def failed(self, peer: str, address: str) -> bool:
        """Record a lost probe. Returns whether the address now counts as unreachable."""
        path = self._paths.get(peer, {}).get(address)
        if path:
            path.failures += 1
            if path.failures >= _FAILURES:
                del self._paths[peer][address]
        return address not in self._paths.get(peer, {})

    def remove(self, peer: str, address: str) -> None:
        """Forget a path that is measured no more."""
        self._paths.get(peer, {}).pop(address, None)

    def forget(self, peer: str) -> None:
        """Forget a peer that is gone; when it is back, its addresses are measured anew."""
        self._paths.pop(peer, None)
        self._chosen.pop(peer, None)

    def best(self, peer: str, now: float) -> Path | None:
        """The best path to the peer with a recent probe; the one in use unless another is clearly better.

        The best one is the widest of those whose round trip is not much longer than the shortest; among equally wide
        ones, the quickest. Bandwidth is that of the path's kind until it is measured.
        """
        fresh = {a: p.path for a, p in self._paths.get(peer, {}).items() if now - p.seen < self._stale_after}
        if not fresh:
            return None
        limit_ms = _FAR * max(_SOFTWARE_MS, min(path.rtt_ms for path in fresh.values()))
        near = [path for path in fresh.values() if path.rtt_ms <= limit_ms]
        widest = max(map(_bandwidth, near))
        wide = [path for path in near if _bandwidth(path) * _WIDER > widest]
        best = min(wide, key=lambda path: (is_self_assigned(path.address), path.rtt_ms, path.address))
        chosen = fresh.get(self._chosen.get(peer, ""), best)
        if chosen.rtt_ms > limit_ms / _GAIN or _is_better(best, chosen):
            chosen = best
        self._chosen[peer] = chosen.address
        return chosen

    def unmeasured(self, peer: str, now: float) -> str | None:
        """The address in use if its bandwidth is to be measured."""
        best = self.best(peer, now)
        if best is None:
            return None
        measured_at = self._paths[peer][best.address].measured_at
        return best.address if measured_at is None or now - measured_at >= BANDWIDTH_AGAIN_S else None

    def to_peers(self, now: float) -> tuple[Path, ...]:
        """The best path to each reachable peer, without noise; for this node's report."""
        before = {path.to: path for path in self._reported}
        found = (self.best(peer, now) for peer in sorted(self._paths))
        self._reported = tuple(_without_noise(path, before.get(path.to)) for path in found if path)
        return self._reported


def _without_noise(path: Path, before: Path | None) -> Path:
    """The path, with the round trip of the one reported before if that has not changed."""
    if before is None or before.address != path.address:
        return path
    noise_ms = max(_NOISE_MS, _NOISE * before.rtt_ms)
    return replace(path, rtt_ms=before.rtt_ms) if abs(path.rtt_ms - before.rtt_ms) <= noise_ms else path


def _bandwidth(path: Path) -> float:
    return path.bytes_per_s or _TYPICAL.get(path.kind, _UNKNOWN)


def _is_better(path: Path, chosen: Path) -> bool:
    """Whether to leave the chosen path for another one."""
    if _bandwidth(path) >= _bandwidth(chosen) * _WIDER:
        return True
    if _bandwidth(path) * _WIDER <= _bandwidth(chosen):
        return False
    is_firm = is_self_assigned(chosen.address) and not is_self_assigned(path.address)
    return is_firm or path.rtt_ms < chosen.rtt_ms * _GAIN
