"""What one stage of a ring takes from disks, its own and those of other nodes, for sessions that wait.

The driver asks all stages, and asks again until none is looking any more: the frames go round at once, so no other session waits for
a disk. Each stage reads in parallel, and no more than all others have.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from node.core.errors import PippinError
from node.core.frames import CacheOp, Forget, Restore, SequenceId, Take
from node.engine.ring_kv import RingKv
from node.ring.stored_kv import Restoration, StoredKv

log = logging.getLogger(__name__)


class Taking:
    def __init__(self, stored: StoredKv | None, kv: RingKv) -> None:
        """`stored`: None if no KV is kept on the disk."""
        self._stored = stored
        self._kv = kv
        self._parts: dict[SequenceId, Restoration] = {}

    def told(self, asked: Restore) -> Restore:
        """What the stages so far, and this one, have of what is asked for. The first time, this one begins to look for it."""
        part = self._parts.get(asked.number)
        if part is None and asked.chain and asked.tokens and self._stored and self._kv.blocks_of:
            part = self._parts[asked.number] = Restoration(asked, asked.tokens)
            part.task = asyncio.create_task(self._take(self._stored, part), name=f"KV of {asked.number}")
        if part is None:
            return replace(asked, tokens=0)
        part.reach = min(part.reach, asked.tokens)
        if self._stored and part.is_over and asked.least <= part.reach < part.taken and not self._kv.trimmable:
            part.task = asyncio.create_task(self._take(self._stored, part), name=f"less KV of {asked.number}")
        here = part.taken if part.is_over else part.reach
        longest, is_pending = max(asked.longest, here), asked.pending or not part.is_over
        return replace(asked, tokens=min(asked.tokens, here), longest=longest, pending=is_pending)

    async def wait(self, number: SequenceId, seconds: float) -> None:
        """Until this stage is done with it, or so long."""
        part = self._parts.get(number)
        if part and part.task and not part.is_over:
            await asyncio.wait([part.task], timeout=seconds)
        else:
            await asyncio.sleep(seconds)

    def forget(self, ops: Iterable[CacheOp]) -> None:
        """Look no longer for prefixes that these operations, whose job is yet to be queued, free or take."""
        for op in ops:
            if isinstance(op, Forget | Take) and (part := self._parts.pop(op.prefix, None)) and part.task:
                part.task.cancel()

    def end(self) -> None:
        """Look no longer for any."""
        self.forget([Forget(number) for number in self._parts])

    async def _take(self, stored: StoredKv, part: Restoration) -> None:
        try:
            part.taken = await stored.restore(self._kv, part)
        except PippinError as error:
            log.warning("no KV is taken from disks: %s", error)
