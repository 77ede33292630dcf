"""Which of a model's rings takes a request: one that served a prompt that begins alike, unless others have less to do.

Pure: rings, their loads and the time in, a ring out. The idea is that of SGLang's cache-aware router
(https://lmsys.org/blog/2024-12-04-sglang-v0-4/), with hashes of blocks instead of a tree.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from node.core.types import Ring, StageSpec

BLOCK = 32
"""Tokens of a prompt that are remembered as one."""
BLOCKS = 16384
"""How many are remembered: half a million tokens, some megabytes."""
IMBALANCE = 4
"""Requests that a ring may have more than the idlest and still be preferred for its prefix: a batch of so many more is not
much slower, but computing a long prompt anew is."""
REPORT_S = 1.0
"""What began less than this ago may be missing from the loads that drivers report."""


Place = tuple[str, tuple[StageSpec, ...]]
"""A model and the stages that hold it: a ring's successor has their KV."""


class Router:
    """One for each gateway: it knows what it sent where."""

    def __init__(self) -> None:
        self._served: OrderedDict[int, Place] = OrderedDict()
        """By the hash of a prompt up to a block's end, where the last one went; the last used at the end."""
        self._begun: deque[tuple[float, str]] = deque()

    def choose(
        self,
        rings: Sequence[Ring],
        tokens: Sequence[int],
        loads: Mapping[str, int],
        now: float,
        suspect: Collection[str],
    ) -> Ring:
        """Of rings that are ready; `tokens` are the prompt, `loads` requests at each ring by what its driver reports.

        Rings with a node that is `suspect` are taken only if there are no others.
        """
        sound = [ring for ring in rings if not any(stage.node in suspect for stage in ring.stages)] or rings
        while self._begun and now - self._begun[0][0] > REPORT_S:
            self._begun.popleft()
        began = [ring for _, ring in self._begun]
        work = {ring.id: loads.get(ring.id, 0) + began.count(ring.id) for ring in sound}
        chosen = min(sound, key=lambda ring: (work[ring.id], len(ring.stages)))
        known = self._last_served(tokens, {_place(ring): ring for ring in sound})
        if known and work[known.id] - work[chosen.id] <= IMBALANCE:
            chosen = known
        self._note(tokens, _place(chosen))
        self._begun.append((now, chosen.id))
        return chosen

    def _last_served(self, tokens: Sequence[int], rings: Mapping[Place, Ring]) -> Ring | None:
        """Of these rings, the one that got the prompt with the longest common beginning."""
        found = None
        for block in _blocks(tokens):
            if block not in self._served:
                break
            found = rings.get(self._served[block], found)
        return found

    def _note(self, tokens: Sequence[int], place: Place) -> None:
        for block in _blocks(tokens):
            self._served[block] = place
            self._served.move_to_end(block)
        while len(self._served) > BLOCKS:
            self._served.popitem(last=False)


def _place(ring: Ring) -> Place:
    return ring.model, ring.stages


def _blocks(tokens: Sequence[int]) -> Iterator[int]:
    """A hash for the beginning up to the end of each whole block."""
    seen = 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        seen = hash((seen, *tokens[end - BLOCK : end]))
        yield seen
