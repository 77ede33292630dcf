"""KV on disk, as this node's stages keep and take it, whatever ring they are of.

Sequences are stored behind the scenes while they grow, in turn and block by block: the compute thread copies a block, which takes
less than a step of a prompt, and a thread of the pool writes it. What is not copied when a sequence is freed is not written at all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from node.core.clock import now
from node.core.errors import Overloaded, PippinError
from node.core.frames import CacheOp, Restore, Store
from node.core.mlx_errors import MLX_ERRORS
from node.core.nodes import Address
from node.core.pool import Pool
from node.core.signal import Signal
from node.engine.compute import Compute
from node.engine.kv_blocks import Block
from node.engine.ring_kv import RingKv
from node.kv.blocks import BLOCK, names_of, state_name
from node.kv.copies import KvCopies
from node.kv.exchange import KvExchange, Sources, sources

log = logging.getLogger(__name__)

_MAX_WAITING = 64
"""Sequences that wait to be stored. Further ones are not stored."""
_COPIED = 128 << 20
"""Bytes of blocks that are copied at once, and then written."""
HANGS_S = 5.0
"""Time for which anything waits for the disk. If a job has not ended by then, the disk hangs, and no KV is taken until it has; rings
that end for good wait no longer until their KV is stored.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Unstored:
    """A sequence of which something is yet to be stored."""

    ring_kv: RingKv
    model: str
    op: Store


@dataclass(slots=True, eq=False)
class Restoration:
    """What the stages were asked for under one number."""

    asked: Restore
    reach: int
    """Tokens of which KV is in reach of all stages, as far as this one knows."""
    taken: int = 0
    """Tokens of the prefix that this stage has made."""
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        return self.task is None or self.task.done()


@dataclass(slots=True, eq=False)
class _Found:
    """What is taken of a sequence: its first blocks, and the state behind them."""

    names: list[str]
    wanted: list[frozenset[int]]
    """The caches that are needed of each of these."""
    cut: int
    """How many of them are blocks."""
    tokens: int
    is_state: bool
    """All of these are needed, as they are of use only together."""
    kv: list[Block] = field(init=False)
    """Of each of the names what has come so far."""

    def __post_init__(self) -> None:
        self.kv = [{} for _ in self.names]

    def needs(self, k: int) -> int:
        """Tokens that must be in reach for one of these to be of use."""
        return self.tokens if self.is_state else (k + 1) * BLOCK

    @property
    def blocks(self) -> list[Block]:
        return self.kv[: self.cut]

    @property
    def state(self) -> Block | None:
        return self.kv[self.cut] if len(self.kv) > self.cut else None


@dataclass(slots=True, eq=False)
class StoredKv:
    exchange: KvExchange
    compute: Compute
    pool: Pool
    """Reads and writes the disk."""
    copies: KvCopies
    """Of what is stored, at another node."""
    _unstored: list[_Unstored] = field(default_factory=list[_Unstored])
    """The first one is being stored, until it is no longer in the list."""
    _stored: Signal = field(default_factory=Signal)
    """One of them is stored."""
    _storing: asyncio.Task[None] | None = None

    # --- to the disk --------------------------------------------------------------------------------------------------

    def keep(self, ring_kv: RingKv, model: str, ops: Iterable[CacheOp]) -> None:
        """Begin to store what these operations name; the job of their frame must be queued already."""
        for op in ops:
            if isinstance(op, Store) and ring_kv.blocks_of and self.exchange.store.may_write:
                # What is being stored is found on the disk when its turn comes again.
                waiting = [
                    each for each in self._unstored[1:] if (each.ring_kv, each.op.number) == (ring_kv, op.number)
                ]
                for each in waiting:
                    self._unstored.remove(each)
                if len(self._unstored) < _MAX_WAITING:
                    self._unstored.append(_Unstored(ring_kv, model, op))
        if self._unstored and (self._storing is None or self._storing.done()):
            self._storing = asyncio.create_task(self._store_all(), name="KV to disk")

    async def flush(self, rings: Collection[RingKv] | None = None) -> None:
        """Wait until what is to be stored of these rings, or of all, is on the disk, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HANGS_S):
                while any(rings is None or each.ring_kv in rings for each in self._unstored):
                    await self._stored.wait()

    def forget(self, rings: Collection[RingKv]) -> None:
        """Store no more of these rings, which have ended: their weights are to be free."""
        self._unstored = [each for each in self._unstored if each.ring_kv not in rings]

    async def device_failed(self) -> None:
        """The device of this node has failed: what it computed may be wrong."""
        self._unstored.clear()
        if self._storing:
            await asyncio.wait([self._storing], timeout=HANGS_S)
        with suppress(Overloaded):
            await self.pool.run(self.exchange.store.drop_written)
        await self.copies.recall()

    async def _store_all(self) -> None:
        while self._unstored:
            sequence = self._unstored[0]
            try:
                await self._store(sequence)
                if chain := _chain(_items(sequence.ring_kv, sequence.op)):
                    caches, size = sequence.ring_kv.blocks_of, sequence.ring_kv.block_bytes
                    self.copies.add(sequence.op.number, sequence.model, chain, caches, size)
            except (PippinError, *MLX_ERRORS) as error:
                log.warning("KV of %s is not stored: %s", sequence.model, error)
            if sequence in self._unstored:
                self._unstored.remove(sequence)
            del sequence  # it holds the weights
            self._stored.notify()

    async def _store(self, sequence: _Unstored) -> None:
        ring_kv, op = sequence.ring_kv, sequence.op
        store, caches, names = self.exchange.store, ring_kv.blocks_of, list(_items(ring_kv, op))
        room, most = store.budget, max(1, _COPIED // ring_kv.block_bytes)
        copied: dict[str, Block | None] = {}

        def is_lacking(name: str) -> bool:
            return len(store.held(name, caches)) < len(caches)

        def copy(name: str) -> Awaitable[Block | None]:
            index = _items(ring_kv, op)[name]
            if index is None:
                return self.compute.run(ring_kv.state, op.number)
            return self.compute.run(ring_kv.block, op.number, index)

        await self.pool.run(store.used, names)  # else new ones might drive out the first
        if op.state and ring_kv.state_caches and is_lacking(names[-1]):  # at once, as only so many are kept in memory
            copied[names[-1]] = await copy(names[-1])
        for index, name in enumerate(names):
            if sequence not in self._unstored:
                return
            if is_lacking(name):
                if name not in copied:
                    # One by one, each would wait for a chunk of the prompt, in which several blocks are made.
                    following = [each for each in names[index:] if is_lacking(each) and each not in copied][:most]
                    blocks = await asyncio.gather(*map(copy, following))
                    copied |= dict(zip(following, blocks, strict=True))
                block = copied.pop(name)
                if block is None or not store.may_write:
                    return
                await self.pool.run(store.write, sequence.model, name, block)
            size = store.size(name)
            room -= size
            if room < size:  # the next one would drive out the first, without which none is of use
                names = names[: index + 1]
                break
        await self.pool.run(store.used, names)

    # --- from disks ---------------------------------------------------------------------------------------------------

    async def restore(self, ring_kv: RingKv, part: Restoration) -> int:
        """Make a prefix of what this node and the others have on their disks for this stage. Returns its tokens; 0 if there is none."""
        begun, asked = now(), part.asked
        while part.reach >= asked.least:
            found = await self._gather(ring_kv, part)
            if found is None or found.tokens < asked.least:
                return 0
            pieces = ring_kv.restore(asked.number, found.blocks, found.state, found.tokens)
            whole = await self.compute.run_pieces(pieces)
            if whole is None:
                return 0
            if whole < len(found.kv):
                self._begin(self.exchange.store.discard, found.names[whole], "it does not fit its model")
                if found.is_state:
                    return 0
            tokens = found.tokens if found.is_state else whole * BLOCK
            if part.reach < tokens and found.is_state:
                continue  # other stages have an earlier state only
            if tokens:
                log.info("took KV of %d tokens from disk in %.2f s", tokens, now() - begun)
            return tokens
        return 0

    async def _gather(self, ring_kv: RingKv, part: Restoration) -> _Found | None:
        """The first tokens of a sequence, as many as are in reach of all stages and can be read in time."""
        if self.pool.oldest_s() > HANGS_S:
            return None
        found: _Found | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(part.asked.seconds):
                names = names_of(part.asked.chain)[: part.reach // BLOCK]
                found, asking = await self._choose(ring_kv, names)
                part.reach = min(part.reach, found.tokens)
                if part.reach < part.asked.least:
                    return None
                await asyncio.gather(
                    self._read(found, part),
                    *(self._fetch(found, ring_kv, part, source, wanted) for source, wanted in asking.items()),
                )
        if found is None:
            return None
        complete = (wanted <= kv.keys() for wanted, kv in zip(found.wanted, found.kv, strict=True))
        whole = next((k for k, each in enumerate(complete) if not each), len(found.kv))
        self._begin(self.exchange.store.used, found.names[:whole])
        if not found.is_state:
            found.kv = found.kv[: min(whole, part.reach // BLOCK)]
            found.tokens = len(found.kv) * BLOCK
        elif whole < len(found.kv):
            return None
        return found

    async def _choose(self, ring_kv: RingKv, names: list[str]) -> tuple[_Found, Sources]:
        """All blocks that are in reach; where caches can't be trimmed, the last state that is, with all blocks before it."""
        cut, needed = ring_kv.cut_caches, ring_kv.state_caches
        if ring_kv.trimmable:
            count, asking = await self._sources(names, [cut] * len(names))
            return _Found(names[:count], [cut] * count, count, count * BLOCK, is_state=False), asking
        states = list(map(state_name, names))
        lacking = [needed - self.exchange.store.held(name, needed) for name in states]
        for k in reversed(await self.exchange.completable(_chain(states), lacking)):
            blocks, state = names[: k + 1] if cut else [], [states[k]] if needed else []
            wanted = [cut] * len(blocks) + [needed] * len(state)
            found = _Found([*blocks, *state], wanted, len(blocks), (k + 1) * BLOCK, is_state=True)
            count, asking = await self._sources(found.names, found.wanted)
            if count == len(found.names):
                return found, asking
        return _Found([], [], 0, 0, is_state=True), {}

    async def _sources(self, names: Sequence[str], wanted: Sequence[frozenset[int]]) -> tuple[int, Sources]:
        """How many of the first of these are here or at other nodes, and whom to ask for what."""
        lacking = [caches - self.exchange.store.held(name, caches) for name, caches in zip(names, wanted, strict=True)]
        count, asking = sources({}, lacking)
        if count < len(names):
            count, asking = await self.exchange.ask(_chain(names), lacking)
        return count, asking

    def _begin(self, job: Callable[..., object], *args: object) -> None:
        """A job of the disk for which nobody waits, as a disk may hang."""
        with suppress(Overloaded):
            self.pool.submit(job, *args)

    async def _read(self, found: _Found, part: Restoration) -> None:
        """Read what is on this node's disk, as long as that is not overloaded."""
        with suppress(Overloaded):
            for k, (name, caches) in enumerate(zip(found.names, found.wanted, strict=True)):
                if found.needs(k) > part.reach:
                    return
                if self.exchange.store.held(name, caches):
                    found.kv[k].update(await self.pool.run(self.exchange.store.read, name, caches))

    async def _fetch(
        self, found: _Found, ring_kv: RingKv, part: Restoration, source: tuple[Address, range], wanted: Sequence[int]
    ) -> None:
        peer, caches = source
        chain, most = _chain([found.names[k] for k in wanted]), max(ring_kv.block_bytes, ring_kv.state_bytes)
        async with aclosing(self.exchange.fetch(peer, chain, caches, most)) as fetched:
            for k in wanted:
                if found.needs(k) > part.reach or (kv := await anext(fetched, None)) is None:
                    return
                found.kv[k].update(kv)


def _items(ring_kv: RingKv, op: Store) -> dict[str, int | None]:
    """What this stage keeps of a sequence: the names of its blocks, each with its index, and then that of the state."""
    names = names_of(op.chain)
    blocks: dict[str, int | None] = {name: k for k, name in enumerate(names)} if ring_kv.cut_caches else {}
    return blocks | ({state_name(names[-1]): None} if op.state and ring_kv.state_caches else {})


def _chain(names: Iterable[str]) -> bytes:
    return b"".join(map(bytes.fromhex, names))
