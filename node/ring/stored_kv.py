"""KV on disk, as this node's stages keep and take it, whatever ring they are of.

Prefixes are stored behind the scenes, one after the other and block by block: the compute thread copies a block, which takes less
than a step of a prompt, and a thread of the pool writes it. What is not written when a prefix is freed is not written at all.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from node.core.clock import now
from node.core.errors import Overloaded, PippinError
from node.core.frames import CacheOp, Keep, Restore
from node.core.mlx_errors import MLX_ERRORS
from node.core.nodes import Address
from node.core.pool import Pool
from node.engine.compute import Compute
from node.engine.kv_blocks import Block
from node.engine.runner import Runner
from node.kv.blocks import BLOCK, names_of
from node.kv.exchange import Exchange, part_of, sources

log = logging.getLogger(__name__)

_MAX_WAITING = 64
"""Prefixes that wait to be stored. Further ones are not stored."""
FLUSH_S = 5.0
"""Maximum time for which a ring that ends for good waits until its KV is stored."""


@dataclass(frozen=True, slots=True)
class _Kept:
    runner: Runner
    model: str
    op: Keep


@dataclass(slots=True, eq=False)
class StoredKv:
    exchange: Exchange
    compute: Compute
    pool: Pool
    """Reads and writes the disk."""
    _waiting: deque[_Kept] = field(default_factory=deque[_Kept])
    _storing: asyncio.Task[None] | None = None

    # --- to the disk --------------------------------------------------------------------------------------------------

    def keep(self, runner: Runner, model: str, ops: Iterable[CacheOp]) -> None:
        """Begin to store the prefixes that these operations make; their job must be queued already."""
        for op in ops:
            wanted = isinstance(op, Keep) and op.chain and runner.blocks_of and self.exchange.store.may_write
            if isinstance(op, Keep) and wanted and len(self._waiting) < _MAX_WAITING:
                self._waiting.append(_Kept(runner, model, op))
        if self._waiting and (self._storing is None or self._storing.done()):
            self._storing = asyncio.create_task(self._store_all(), name="KV to disk")

    async def flush(self) -> None:
        """Wait until what is to be stored is on the disk, but not for long."""
        if self._storing:
            await asyncio.wait([self._storing], timeout=FLUSH_S)

    async def device_failed(self) -> None:
        """The device of this node has failed: what it computed may be wrong."""
        self._waiting.clear()
        await self.flush()
        await self.pool.run(self.exchange.store.drop_written)

    def forget(self, runner: Runner) -> None:
        """Store no more of a ring that has ended: its weights are to be free."""
        self._waiting = deque(kept for kept in self._waiting if kept.runner is not runner)

    async def _store_all(self) -> None:
        while self._waiting:
            kept = self._waiting.popleft()
            try:
                await self._store(kept)
            except (PippinError, *MLX_ERRORS) as error:
                log.warning("KV of %s is not stored: %s", kept.model, error)
            del kept

    async def _store(self, kept: _Kept) -> None:
        store, caches, names = self.exchange.store, kept.runner.blocks_of, names_of(kept.op.chain)
        room = store.budget
        await self.pool.run(store.used, names)  # else new ones might drive out the first
        for index, name in enumerate(names):
            if len(store.held(name, caches)) < len(caches):
                block = await self.compute.run(kept.runner.block, kept.op.prefix, index)
                if block is None or not store.may_write:
                    return
                await self.pool.run(store.write, kept.model, name, block)
            size = store.size(name)
            room -= size
            if room < size:  # the next one would drive out the first, without which none is of use
                names = names[: index + 1]
                break
        await self.pool.run(store.used, names)

    # --- from disks ---------------------------------------------------------------------------------------------------

    async def restore(self, runner: Runner, asked: Restore) -> Restore:
        """Make a prefix of what this node and the others have on their disks for this stage; returns how much that is."""
        begun = now()
        blocks = await self._gather(runner, asked)
        whole = await self.compute.run_pieces(runner.restore(asked.number, blocks)) if blocks else 0
        if whole is not None and whole < len(blocks):
            await self.pool.run(self.exchange.store.discard, names_of(asked.chain)[whole])
        tokens = (whole or 0) * BLOCK if (whole or 0) * BLOCK >= asked.least else 0
        if tokens:
            log.info("took KV of %d tokens from disk in %.2f s", tokens, now() - begun)
        return replace(asked, tokens=tokens, seconds=max(0.0, asked.seconds - (now() - begun)))

    async def _gather(self, runner: Runner, asked: Restore) -> list[Block]:
        """The first blocks of a chain, as many as there are and can be read in time; none if they are too few."""
        names, caches = names_of(asked.chain)[: asked.tokens // BLOCK], runner.blocks_of
        if not caches:
            return []
        lacking = [set(caches) - self.exchange.store.held(name, caches) for name in names]
        count, asking = sources({}, lacking)
        until = asyncio.get_running_loop().time() + asked.seconds
        if count < len(names):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    count, asking = await self.exchange.ask(part_of(asked.chain, range(len(names))), lacking)
        if count * BLOCK < max(asked.least, 1):
            return []
        blocks: list[Block] = [{} for _ in range(count)]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await asyncio.gather(
                    self._read(names, caches, blocks),
                    *(self._fetch(runner, asked.chain, source, wanted, blocks) for source, wanted in asking.items()),
                )
        whole = next((k for k, block in enumerate(blocks) if len(block) < len(caches)), count)
        await self.pool.run(self.exchange.store.used, names[:whole])
        return blocks[:whole]

    async def _read(self, names: Sequence[str], caches: range, blocks: Sequence[Block]) -> None:
        """Read what is on this node's disk, as long as that is not overloaded."""
        with suppress(Overloaded):
            for name, block in zip(names, blocks, strict=False):
                if self.exchange.store.held(name, caches):
                    block.update(await self.pool.run(self.exchange.store.read, name, caches))

    async def _fetch(
        self,
        runner: Runner,
        chain: bytes,
        source: tuple[Address, range],
        wanted: Sequence[int],
        blocks: Sequence[Block],
    ) -> None:
        peer, caches = source
        wanted = [k for k in wanted if k < len(blocks)]
        fetched = self.exchange.fetch(peer, part_of(chain, wanted), caches, runner.block_bytes)
        async with aclosing(fetched) as parts:
            for k in wanted:
                if (part := await anext(parts, None)) is None:
                    return
                blocks[k].update(part)
