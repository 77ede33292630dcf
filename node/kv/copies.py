"""Copies of the KV that this node's stages compute, on the disk of another node, while sequences grow: it outlives this node.

What is on this node's disk is sent block by block, the oldest ones first. Frames come first: copies take a share of the path's
measured bandwidth, in small parts. The successor of a lost stage finds a copy as it finds any KV: whoever has a block says so.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from node.core.errors import PippinError
from node.core.frames import SequenceId
from node.core.lru_cache import keep
from node.core.nodes import Address
from node.core.reports import NodeReport, Path
from node.kv.blocks import NAME_BYTES, encode, names_of
from node.kv.exchange import MAX_COPIED_BYTES, KvExchange, sources

log = logging.getLogger(__name__)

SHARE = 0.25
"""Of a path's bandwidth, which copies may take."""
MOST_BYTES_PER_S = 64e6
"""Answers make less; and what prompts make may come later."""
UNMEASURED = 1e7
"""Bytes per second of a path of which no bandwidth is known yet."""
PAUSE_S = 5.0
"""Time in which nothing is sent after a failure."""
RECALL_S, _RECALLS = 60.0, 60
"""Pause after which copies are to be deleted once more at nodes that were not reached, and how often that is tried."""
_MAX_WAITING = 256
"""Sequences that wait to be copied. The one that has waited longest then waits for its next block."""
_MAX_COPIED = 1024
"""Sequences of which it is remembered what another node has."""


@dataclass(frozen=True, slots=True)
class CopyKeeper:
    """The node that gets the copies."""

    address: Address
    budget: int
    """Most bytes of KV on its disk."""
    bytes_per_s: float
    """Measured bandwidth; 0 if it is not measured."""


def keeper_of(
    me: str, reports: Sequence[NodeReport], address_of: Callable[[str], Address | None], before: str, *, wireless: bool
) -> CopyKeeper | None:
    """The node that is to keep copies of the KV of `me`: `before`, if it still can, else an idle one, else the next one by id,
    so that the nodes of a ring have different ones. Over Wi-Fi only if `wireless`. None if there is none.
    """
    told = {report.info.id: report for report in reports}
    able: dict[str, Path] = {}
    for path in told[me].paths if me in told else ():
        report = told.get(path.to)
        if report and report.kv_budget and not report.draining and path.to != me:
            kinds = {path.kind, *(back.kind for back in report.paths if back.to == me)}
            if wireless or "wi-fi" not in kinds:
                able[path.to] = path
    first = min(able, key=lambda node: (node != before, bool(told[node].stages), node <= me, node), default="")
    address = address_of(first) if first else None
    return CopyKeeper(address, told[first].kv_budget, able[first].bytes_per_s) if address else None


@dataclass(frozen=True, slots=True, eq=False)
class _Uncopied:
    """A sequence of which something is yet to be copied."""

    number: SequenceId
    model: str
    chain: bytes
    caches: range
    block_bytes: int


@dataclass(slots=True, eq=False)
class KvCopies:
    exchange: KvExchange
    keeper: Callable[[str], CopyKeeper | None]
    """The node that is to have the copies; given is the one that had them before, empty if there was none."""
    _keeper: str = ""
    _waiting: dict[SequenceId, _Uncopied] = field(default_factory=dict[SequenceId, _Uncopied])
    _copied: dict[tuple[Address, SequenceId], bytes] = field(default_factory=dict[tuple[Address, SequenceId], bytes])
    """The names of the first blocks of a sequence that a node is known to have."""
    _copying: asyncio.Task[None] | None = None

    @property
    def behind(self) -> int:
        """Bytes that are yet to be copied, as far as is known."""
        have = {number: len(chain) for (_, number), chain in self._copied.items()}
        lacking = [(each, len(each.chain) - have.get(each.number, 0)) for each in self._waiting.values()]
        return sum(length // NAME_BYTES * each.block_bytes for each, length in lacking)

    def add(self, number: SequenceId, model: str, chain: bytes, caches: range, block_bytes: int) -> None:
        """Begin to copy what this node's disk has of a sequence. `block_bytes`: about those of a block of these caches."""
        if block_bytes > MAX_COPIED_BYTES or not self.keeper(self._keeper):
            return
        keep(self._waiting, number, _Uncopied(number, model, chain, caches, block_bytes), _MAX_WAITING)
        if self._copying is None or self._copying.done():
            self._copying = asyncio.create_task(self._copy_all(), name="copies of KV")

    async def recall(self) -> None:
        """The device of this node has failed: what it computed may be wrong, and is to be deleted wherever it is."""
        waiting, self._waiting = self._waiting, {}
        if self._copying:
            self._copying.cancel()
            await asyncio.wait([self._copying])
        wrong, self._copied = self._copied, {}
        for (peer, number), chain in wrong.items():
            if number in waiting and waiting[number].chain.startswith(chain):
                wrong[peer, number] = waiting[number].chain  # of which one more block may have come
        for _ in range(_RECALLS):
            for (peer, number), chain in list(wrong.items()):
                try:
                    await self.exchange.client.discard_kv(peer, chain)
                    del wrong[peer, number]
                except PippinError as error:
                    log.warning("copies of KV at %s are not deleted, which is tried again: %s", peer, error)
            if not wrong:
                return
            await asyncio.sleep(RECALL_S)

    async def _copy_all(self) -> None:
        while self._waiting:
            sequence = next(iter(self._waiting.values()))
            for _ in range(3):
                keeper = self.keeper(self._keeper)
                self._keeper = keeper.address.node if keeper else ""
                try:
                    if keeper:
                        await self._copy(sequence, keeper)
                    break
                except PippinError as error:
                    log.info("KV is not copied to %s for %.0f s: %s", self._keeper, PAUSE_S, error)
                    self._keeper = ""
                await asyncio.sleep(PAUSE_S)
            if self._waiting.get(sequence.number) is sequence:
                del self._waiting[sequence.number]

    async def _copy(self, sequence: _Uncopied, keeper: CopyKeeper) -> None:
        peer, chain = keeper.address, sequence.chain
        key = peer, sequence.number
        if key not in self._copied or not chain.startswith(self._copied[key]):
            found = {peer: await self.exchange.client.find_kv(peer, chain)}
            lacking = [set(sequence.caches)] * (len(chain) // NAME_BYTES)
            count, _ = await self.exchange.pool.run(sources, found, lacking)
            keep(self._copied, key, chain[: count * NAME_BYTES], _MAX_COPIED)
        rate = min(SHARE * (keeper.bytes_per_s or UNMEASURED), MOST_BYTES_PER_S)
        for end in range(len(self._copied[key]) + NAME_BYTES, len(chain) + 1, NAME_BYTES):
            if end // NAME_BYTES * sequence.block_bytes > keeper.budget:  # it would drive out the first ones
                return
            block = await self.exchange.pool.run(self._read, chain[end - NAME_BYTES : end], sequence.caches)
            if block is None or len(block) > MAX_COPIED_BYTES:
                return
            await self.exchange.client.keep_kv(peer, sequence.model, chain[:end], block, rate)
            keep(self._copied, key, chain[:end], _MAX_COPIED)

    def _read(self, name: bytes, caches: range) -> bytes | None:
        """A block's bytes; None if the disk has lost some of it."""
        (text,) = names_of(name)
        kv = self.exchange.store.read(text, caches)
        return b"".join(encode(text, kv)) if len(kv) == len(caches) else None
