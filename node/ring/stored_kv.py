"""KV on disk, as this node's stages keep and take it, whatever ring they are of.

Sequences are stored behind the scenes while they grow, in turn and block by block: the compute thread copies a block, which takes
less than a step of a prompt, and a thread of the pool writes it. What is not copied when a sequence is freed is not written at all.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.core.clock import now
from node.core.errors import Overloaded, PippinError
from node.core.frames import CacheOp, Store
from node.core.mlx_errors import MLX_ERRORS
from node.core.nodes import Address
from node.core.pool import Pool
from node.core.signal import Signal
from node.engine.compute import Compute
from node.engine.kv_blocks import Block
from node.engine.runner import Runner
from node.kv.blocks import BLOCK, names_of
from node.kv.copies import KvCopies
from node.kv.exchange import KvExchange, part_of, sources

if TYPE_CHECKING:
    from node.ring.taking import Part

log = logging.getLogger(__name__)

_MAX_WAITING = 64
"""Sequences that wait to be stored. Further ones are not stored."""
_COPIED = 128 << 20
"""Bytes of blocks that are copied at once, and then written."""
HANGS_S = 5.0
"""Time after which a job of the disk that has not ended means that the disk hangs: no KV is taken until it has."""
FLUSH_S = 5.0
"""Maximum time for which rings that end for good wait until their KV is stored."""


@dataclass(frozen=True, slots=True, eq=False)
class _Sequence:
    runner: Runner
    model: str
    op: Store


@dataclass(slots=True, eq=False)
class StoredKv:
    exchange: KvExchange
    compute: Compute
    pool: Pool
    """Reads and writes the disk."""
    copies: KvCopies
    """Of what is stored, at another node."""
    _unstored: list[_Sequence] = field(default_factory=list[_Sequence])
    """The first one is being stored, until it is no longer in the list."""
    _stored: Signal = field(default_factory=Signal)
    """One of them is stored."""
    _storing: asyncio.Task[None] | None = None

    # --- to the disk --------------------------------------------------------------------------------------------------

    def keep(self, runner: Runner, model: str, ops: Iterable[CacheOp]) -> None:
        """Begin to store what these operations name; the job of their frame must be queued already."""
        for op in ops:
            if isinstance(op, Store) and runner.blocks_of and self.exchange.store.may_write:
                # What is being stored is found on the disk when its turn comes again.
                waiting = [each for each in self._unstored[1:] if (each.runner, each.op.number) == (runner, op.number)]
                for each in waiting:
                    self._unstored.remove(each)
                if len(self._unstored) < _MAX_WAITING:
                    self._unstored.append(_Sequence(runner, model, op))
        if self._unstored and (self._storing is None or self._storing.done()):
            self._storing = asyncio.create_task(self._store_all(), name="KV to disk")

    async def flush(self, runners: Collection[Runner] | None = None) -> None:
        """Wait until what is to be stored of these rings, or of all, is on the disk, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while any(runners is None or each.runner in runners for each in self._unstored):
                    await self._stored.wait()

    def forget(self, runners: Collection[Runner]) -> None:
        """Store no more of these rings, which have ended: their weights are to be free."""
        self._unstored = [each for each in self._unstored if each.runner not in runners]

    async def device_failed(self) -> None:
        """The device of this node has failed: what it computed may be wrong."""
        self._unstored.clear()
        if self._storing:
            await asyncio.wait([self._storing], timeout=FLUSH_S)
        with suppress(Overloaded):
            await self.pool.run(self.exchange.store.drop_written)
        await self.copies.recall()

    async def _store_all(self) -> None:
        while self._unstored:
            sequence = self._unstored[0]
            try:
                await self._store(sequence)
                self._copy(sequence)
            except (PippinError, *MLX_ERRORS) as error:
                log.warning("KV of %s is not stored: %s", sequence.model, error)
            if sequence in self._unstored:
                self._unstored.remove(sequence)
            del sequence  # it holds the weights
            self._stored.notify()

    def _copy(self, sequence: _Sequence) -> None:
        runner, op = sequence.runner, sequence.op
        self.copies.add(op.number, sequence.model, op.chain, runner.blocks_of, runner.block_bytes)

    async def _store(self, sequence: _Sequence) -> None:
        runner, op = sequence.runner, sequence.op
        store, caches, names = self.exchange.store, runner.blocks_of, names_of(op.chain)
        room, most = store.budget, max(1, _COPIED // runner.block_bytes)
        copied: dict[str, Block | None] = {}

        def is_lacking(name: str) -> bool:
            return len(store.held(name, caches)) < len(caches)

        await self.pool.run(store.used, names)  # else new ones might drive out the first
        for index, name in enumerate(names):
            if sequence not in self._unstored:
                return
            if is_lacking(name):
                if name not in copied:
                    # One by one, each would wait for a chunk of the prompt, in which several blocks are made.
                    following = [k for k, each in enumerate(names) if k >= index and is_lacking(each)][:most]
                    blocks = await asyncio.gather(*(self.compute.run(runner.block, op.number, k) for k in following))
                    copied = dict(zip([names[k] for k in following], blocks, strict=True))
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

    async def restore(self, runner: Runner, part: "Part") -> int:
        """Make a prefix of what this node and the others have on their disks for this stage. Returns its tokens; 0 if there is none."""
        begun, asked = now(), part.asked
        blocks = await self._gather(runner, part)
        if len(blocks) * BLOCK < asked.least:
            return 0
        whole = await self.compute.run_pieces(runner.restore(asked.number, blocks))
        if whole is not None and whole < len(blocks):
            self._begin(self.exchange.store.discard, names_of(asked.chain)[whole], "it does not fit its model")
        if whole:
            log.info("took KV of %d tokens from disk in %.2f s", whole * BLOCK, now() - begun)
        return (whole or 0) * BLOCK

    async def _gather(self, runner: Runner, part: "Part") -> list[Block]:
        """The first blocks of a chain, as many as are in reach of all stages and can be read in time."""
        names, caches = names_of(part.asked.chain)[: part.asked.tokens // BLOCK], runner.blocks_of
        blocks: list[Block] = [{} for _ in names]
        if self.pool.oldest_s() > HANGS_S:
            return []
        with suppress(TimeoutError):
            async with asyncio.timeout(part.asked.seconds):
                lacking = [set(caches) - self.exchange.store.held(name, caches) for name in names]
                count, asking = sources({}, lacking)
                if count < len(names):
                    chain = part_of(part.asked.chain, range(len(names)))
                    count, asking = await self.exchange.ask(chain, lacking)
                part.reach = min(part.reach, count * BLOCK)
                if part.reach < part.asked.least:
                    return []
                await asyncio.gather(
                    self._read(names, caches, part, blocks),
                    *(self._fetch(runner, part, source, wanted, blocks) for source, wanted in asking.items()),
                )
        whole = next((k for k, block in enumerate(blocks) if len(block) < len(caches)), len(blocks))
        self._begin(self.exchange.store.used, names[:whole])
        return blocks[: min(whole, part.reach // BLOCK)]

    def _begin(self, job: Callable[..., object], *args: object) -> None:
        """A job of the disk for which nobody waits, as a disk may hang."""
        with suppress(Overloaded):
            self.pool.submit(job, *args)

    async def _read(self, names: Sequence[str], caches: range, part: "Part", blocks: Sequence[Block]) -> None:
        """Read what is on this node's disk, as long as that is not overloaded."""
        with suppress(Overloaded):
            for k, name in enumerate(names):
                if (k + 1) * BLOCK > part.reach:
                    return
                if self.exchange.store.held(name, caches):
                    blocks[k].update(await self.pool.run(self.exchange.store.read, name, caches))

    async def _fetch(
        self,
        runner: Runner,
        part: "Part",
        source: tuple[Address, range],
        wanted: Sequence[int],
        blocks: Sequence[Block],
    ) -> None:
        peer, caches = source
        fetched = self.exchange.fetch(peer, part_of(part.asked.chain, wanted), caches, runner.block_bytes)
        async with aclosing(fetched) as found:
            for k in wanted:
                if (k + 1) * BLOCK > part.reach or (kv := await anext(found, None)) is None:
                    return
                blocks[k].update(kv)
