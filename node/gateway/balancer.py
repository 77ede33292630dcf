"""Balances requests over a model's rings: a ring that served a prompt with the same beginning, unless others have less to do.

Pure: rings, their traffic and the time in, a ring out. The idea is that of SGLang's cache-aware router
(https://lmsys.org/blog/2024-12-04-sglang-v0-4/), with hashes of blocks instead of a tree.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from node.core.lru_cache import LruCache
from node.core.rings import Ring, RingPlace

BLOCK = 32
"""Tokens of a prompt that share one entry."""
BLOCKS = 16384
"""Entries: half a million tokens, some megabytes."""
IMBALANCE = 4
"""A ring is preferred for its prefix while it has at most this many requests more than the idlest: so much larger a batch
is hardly slower, but a long prompt takes long to compute."""
REPORT_S = 1.0
"""The traffic that drivers report may lack requests that are younger than this."""


class Balancer:
    """Remembers the requests that one gateway sent, and the places to which it sent them."""

    def __init__(self) -> None:
        self._served: LruCache[int, RingPlace] = LruCache(BLOCKS)
        """The last place of a prompt, by the prompt's hash up to the end of a block; in the order of use."""
        self._begun: deque[tuple[float, str]] = deque()
        """Time and ring of the latest requests."""

    def choose(
        self,
        rings: Sequence[Ring],
        tokens: Sequence[int],
        traffic: Mapping[str, int],
        now: float,
        suspect: Collection[str],
    ) -> Ring:
        """Choose among rings that are ready.

        `tokens`: of the prompt. `traffic`: requests of each ring, as its driver reports them. `suspect`: ids of nodes; a
        ring with one of them is chosen only if there is no other.
        """
        sound = [ring for ring in rings if not any(node in suspect for node in ring.nodes)] or rings
        while self._begun and now - self._begun[0][0] > REPORT_S:
            self._begun.popleft()
        began = [ring for _, ring in self._begun]
        work = {ring.id: traffic.get(ring.id, 0) + began.count(ring.id) for ring in sound}
        chosen = min(sound, key=lambda ring: (work[ring.id], len(ring.stages)))
        by_place, blocks = {ring.place: ring for ring in sound}, _blocks(tokens)
        # The ring that served the prompt with the longest common beginning, if it is among these.
        known: Ring | None = None
        for block in blocks:
            if (place := self._served.get(block)) is None:
                break
            known = by_place.get(place, known)
        if known and work[known.id] - work[chosen.id] <= IMBALANCE:
            chosen = known
        self._begun.append((now, chosen.id))
        for block in blocks:
            self._served.put(block, chosen.place)
        return chosen


def _blocks(tokens: Sequence[int]) -> list[int]:
    """Hashes of the tokens up to the end of each whole block."""
    hashes = [0]
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        hashes.append(hash((hashes[-1], *tokens[end - BLOCK : end])))
    return hashes[1:]
