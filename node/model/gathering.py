"""Gets files of a model from several peers at once. What a peer that dies has not delivered, the others deliver."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.core.errors import ModelBroken, NotReady, PeerUnavailable, PippinError
from node.core.model_files import File
from node.core.models import HeldModel
from node.core.nodes import Address
from node.core.pool import Pools
from node.model.parts import PART, Part, Parts
from node.model.parts_file import PartsFile
from node.model.transfer import has_file, open_parts
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

LOOK_S = 0.2
"""Interval at which a peer without a task looks for one, and a load for a file that another load is fetching."""
_TOGETHER = 16
"""Files open at once."""

Refused = set[tuple[str, HeldModel, str]]
"""Peer, model and file: peers that sent a file with wrong content."""


@dataclass(slots=True, eq=False)
class _Open:
    """A file under way."""

    file: File
    disk: PartsFile
    here: int
    """Bytes on the disk."""
    resumed: bool
    senders: set[Address] = field(default_factory=set)
    writing: int = 0

    def lacking(self) -> Iterator[Part]:
        """The parts that are not complete."""
        for number, count in enumerate(self.disk.counts):
            start, end = number * PART, min((number + 1) * PART, self.file.size)
            if start + count < end:
                yield Part(self.file.name, start + count, end)


class Gathering:
    """One load's transfers from peers. A peer that failed once is not asked again by it."""

    def __init__(
        self, client: RpcClient, pools: Pools, model: HeldModel, target: Callable[[], Path], refused: Refused
    ) -> None:
        """`target`: returns where the files go, or raises ModelNotFound. `refused`: of all loads of this node."""
        self._client = client
        self._pools = pools
        self.model = model
        self._target = target
        self._refused = refused
        self._alone: set[File] = set()
        """Files that were wrong when several peers sent them: they are taken from one at a time, to find out which."""
        self._parts = Parts()
        self._open: dict[str, _Open] = {}
        self.lost: set[Address] = set()
        self.failure: PippinError | None = None
        """Why the last peer or file failed."""

    async def gather(self, wanted: Mapping[File, Sequence[Address]], progress: Callable[[int], None]) -> bool:
        """Get the files that their holders deliver. Calls `progress` with the bytes of them that are here.

        Returns False if files are missing that no holder could deliver. Raises NoCapacity (disk full).
        """
        target = self._target()
        while True:
            there = await self._pools.files.run(lambda: {file for file in wanted if has_file(target, file)})
            sources = self.usable({file: peers for file, peers in wanted.items() if file not in there})
            if not sources:
                return len(there) == len(wanted)
            done = sum(file.size for file in there)
            try:
                self._open = await self._pools.writes.run(self._opened, target, sources)
                if self._open:
                    await self._round(sources, lambda done=done: progress(done + self._here()))  # type: ignore[misc]
                else:
                    await asyncio.sleep(LOOK_S)  # another load or request is fetching them
            finally:
                for each in self._open.values():
                    self._pools.writes.submit(each.disk.close)  # in a thread, as it waits for a write

    def usable(self, held: Mapping[File, Sequence[Address]]) -> dict[File, list[Address]]:
        """The files that some peer is still to be asked for, each with these peers."""
        found = {file: [peer for peer in peers if self._may_ask(peer, file)] for file, peers in held.items()}
        return {file: peers[:1] if file in self._alone else peers for file, peers in found.items() if peers}

    def _may_ask(self, peer: Address, file: File) -> bool:
        return peer not in self.lost and self._key(peer, file) not in self._refused

    def _key(self, peer: Address, file: File) -> tuple[str, HeldModel, str]:
        return peer.node or peer.target, self.model, file.name

    def _opened(self, target: Path, files: Collection[File]) -> dict[str, _Open]:
        """Open the first files that no other load has open."""
        found: dict[str, _Open] = {}
        try:
            for file in files:
                if len(found) == _TOGETHER:
                    break
                try:
                    disk = open_parts(target, file)
                except NotReady:
                    continue
                if has_file(target, file):  # another load has finished it since it was looked for
                    disk.discard()
                    continue
                here = sum(disk.counts)
                found[file.name] = _Open(file, disk, here, resumed=here > 0)
        except BaseException:
            for each in found.values():
                each.disk.close()
            raise
        return found

    def _here(self) -> int:
        return sum(each.here for each in self._open.values())

    async def _round(self, sources: Mapping[File, Sequence[Address]], tell: Callable[[], None]) -> None:
        self._parts, complete = Parts(), asyncio.Queue[_Open | None]()
        tell()
        for each in self._open.values():
            self._parts.add(each.file.name, each.lacking(), sources[each.file])
            self._check(each, complete)
        peers = {peer: None for each in self._open.values() for peer in sources[each.file]}

        async def take_all() -> None:
            await together(*(self._take_from(peer, complete, tell) for peer in peers))
            complete.put_nowait(None)

        async def finish_all() -> None:
            while each := await complete.get():
                await self._finish(each, sources[each.file])
                tell()

        await together(take_all(), finish_all())

    async def _take_from(self, peer: Address, complete: asyncio.Queue[_Open | None], tell: Callable[[], None]) -> None:
        while self._parts.concerns(peer) and peer not in self.lost:
            if part := self._parts.take(peer, time.monotonic()):
                await self._read(peer, part, complete, tell)
            else:
                await asyncio.sleep(LOOK_S)

    async def _read(
        self, peer: Address, part: Part, complete: asyncio.Queue[_Open | None], tell: Callable[[], None]
    ) -> None:
        parts, each = self._parts, self._open[part.file]
        chunks = self._client.read(
            peer, self.model.id, self.model.revision, part.file, part.at, length=part.end - part.at
        )
        try:
            while part.at < part.end and parts.is_with(peer, part):
                data = await self._next(peer, part, chunks)
                if data is None:
                    break
                at, data = part.at, data[: part.end - part.at]
                parts.note(peer, len(data))
                if data:
                    await self._write(peer, each, at, data)
                    tell()
        finally:
            parts.end(peer, time.monotonic())
            await chunks.aclose()
        self._check(each, complete)

    async def _next(self, peer: Address, part: Part, chunks: AsyncGenerator[tuple[bytes, str], None]) -> bytes | None:
        """The next chunk; None if the peer failed, or if another one has taken over the part."""
        coming = asyncio.create_task(_chunk(chunks))
        try:
            while not (await asyncio.wait([coming], timeout=LOOK_S))[0] and self._parts.is_with(peer, part):
                pass
            if not coming.done() or not self._parts.is_with(peer, part):
                return None
            if (data := coming.result()) is None:
                lacks = f"{peer} has less of {part.file} of {self.model.id} than it offered."
                self._lose(peer, PeerUnavailable(lacks))
        except PippinError as error:
            self._lose(peer, error)
            return None
        else:
            return data
        finally:
            coming.cancel()
            await asyncio.wait([coming])

    def _lose(self, peer: Address, error: PippinError) -> None:
        log.warning("%s could not be fetched from %s: %s", self.model.id, peer, error)
        self.lost.add(peer)
        self.failure = error

    async def _write(self, peer: Address, each: _Open, at: int, data: bytes) -> None:
        each.senders.add(peer)
        each.writing += 1
        try:
            await self._pools.writes.run(each.disk.write, at, data)
        finally:
            each.writing -= 1
        each.here += len(data)

    def _check(self, each: _Open, complete: asyncio.Queue[_Open | None]) -> None:
        """Hand a file on to be verified once it is complete."""
        name = each.file.name
        if self._parts.has(name) and self._parts.is_complete(name) and not each.writing:
            self._parts.remove(name)
            complete.put_nowait(each)

    async def _finish(self, each: _Open, peers: Sequence[Address]) -> None:
        digest = each.file.digest or await self._asked_digest(each, peers)
        if not digest:
            return
        try:
            await self._pools.writes.run(each.disk.finish, digest)
        except ModelBroken as error:
            each.here, self.failure = 0, error
            if each.resumed or len(each.senders) != 1:
                log.warning("%s of %s: %s Fetching it from one node at a time.", each.file.name, self.model.id, error)
                self._alone.add(each.file)
                return
            (sender,) = each.senders
            log.warning("%s sent wrong content and is not asked for it again: %s", sender, error)
            self._refused.add(self._key(sender, each.file))

    async def _asked_digest(self, each: _Open, peers: Sequence[Address]) -> str:
        """SHA-256 of a file whose digest nobody told, as a peer computes it; empty if all of them fail."""
        for peer in sorted(peers, key=lambda peer: peer not in each.senders):
            sha256 = ""
            try:
                span = each.file.name, each.file.size
                async for _, sha256 in self._client.read(peer, self.model.id, self.model.revision, *span):  # noqa: B007
                    pass
            except PippinError as error:
                self._lose(peer, error)
            if sha256:
                return sha256
        return ""


async def _chunk(chunks: AsyncGenerator[tuple[bytes, str], None]) -> bytes | None:
    """The next chunk; None at the end."""
    async for data, _ in chunks:
        return data
    return None


async def together(*jobs: Coroutine[Any, Any, None]) -> None:
    """Run the jobs at the same time. The first exception ends them all, and is raised."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
