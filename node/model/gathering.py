"""Gets files of a model from peers: each file from one of them, different files from several at once. What a peer that
fails has not delivered of a file, another one delivers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.core.errors import ModelBroken, NotReady, PeerUnavailable, PippinError
from node.core.model_files import File
from node.core.models import HeldModel
from node.core.nodes import Address
from node.core.pool import Pools
from node.model.file_names import is_small, is_weights
from node.model.partial_file import PartialFile
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

Refused = set[tuple[str, HeldModel, str]]
"""Peer, model and file: peers that sent a file with wrong content."""


@dataclass(slots=True, eq=False)
class _Round:
    """The files that are missing, until each was asked of some peer."""

    sources: Mapping[File, Sequence[Address]]
    left: list[File]
    """Files that no peer is asked for."""
    target: Path
    counts: dict[File, int]
    """Bytes on the disk."""
    progress: Callable[[int], None]
    opened: bool = False
    """Whether any was free to be written."""

    def note(self, file: File, count: int) -> None:
        self.counts[file] = count
        self.progress(sum(self.counts.values()))


@dataclass(slots=True, eq=False)
class Gathering:
    """One load's transfers from peers. A peer that failed once is not asked again by it."""

    _client: RpcClient
    _pools: Pools
    model: HeldModel
    _target: Callable[[], Path]
    """Returns where the files go, or raises ModelNotFound."""
    _refused: Refused
    """Of all loads of this node."""
    lost: set[Address] = field(default_factory=set[Address])
    failure: PippinError | None = None
    """Why the last peer or file failed."""

    async def gather(self, wanted: Mapping[File, Sequence[Address]], progress: Callable[[int], None]) -> bool:
        """Get the files that their holders deliver. Calls `progress` with the bytes of them that are here.

        Returns False if files are missing that no holder could deliver. Raises NoCapacity (disk full).
        """
        target = self._target()
        while True:
            here = await self._pools.files.run(_bytes_here, target, wanted)
            missing = [file for file in wanted if not here[file][0]]
            sources = self.usable({file: wanted[file] for file in missing})
            if not sources:
                return not missing
            files = _Round(sources, list(sources), target, {file: count for file, (_, count) in here.items()}, progress)
            progress(sum(files.counts.values()))
            peers = {peer: None for holders in sources.values() for peer in holders}
            tasks = [asyncio.create_task(self._take_from(peer, files)) for peer in peers]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            if not files.opened:
                await asyncio.sleep(0.2)  # another load or request is fetching them

    def usable(self, held: Mapping[File, Sequence[Address]]) -> dict[File, list[Address]]:
        """The files that some peer is still to be asked for, each with these peers."""
        found = {file: [peer for peer in peers if self._may_ask(peer, file)] for file, peers in held.items()}
        return {file: peers for file, peers in found.items() if peers}

    def _may_ask(self, peer: Address, file: File) -> bool:
        return peer not in self.lost and self._key(peer, file) not in self._refused

    def _key(self, peer: Address, file: File) -> tuple[str, HeldModel, str]:
        return peer.node or peer.target, self.model, file.name

    async def _take_from(self, peer: Address, files: _Round) -> None:
        """Take from a peer one file after the other."""
        while of_peer := [file for file in files.left if peer in files.sources[file] and self._may_ask(peer, file)]:
            file = of_peer[0]
            files.left.remove(file)
            try:
                partial = await self._pools.writes.run(open_partial, files.target, file)
            except NotReady:
                continue
            files.opened = True
            try:
                if not await self._take(peer, file, partial, files):
                    files.left.append(file)
            finally:
                self._pools.writes.submit(partial.close)  # in a thread, as it waits for a write

    async def _take(self, peer: Address, file: File, partial: PartialFile, files: _Round) -> bool:
        """Take what is lacking of a file; returns whether it is complete, and right. Raises NoCapacity."""
        begin, digest = partial.offset, file.digest
        length = file.size - begin if digest else 0  # 0: to the end, and then the digest
        chunks = self._client.read(peer, self.model.id, self.model.revision, file.name, begin, length=length)
        try:
            while partial.offset < file.size or not digest:
                try:
                    if (chunk := await anext(chunks, None)) is None:
                        lacks = f"{peer} has less of {file.name} of {self.model.id} than it offered."
                        raise PeerUnavailable(lacks)
                except PippinError as error:
                    log.warning("%s could not be fetched from %s: %s", self.model.id, peer, error)
                    self.lost.add(peer)
                    self.failure = error
                    return False
                data, sha256 = chunk
                digest = digest or sha256
                if data:
                    await self._pools.writes.run(partial.write, data)
                    files.note(file, partial.offset)
            await self._pools.writes.run(partial.finish, digest, note=True)
        except ModelBroken as error:
            files.note(file, 0)
            self.failure = error
            if begin:
                log.warning("%s of %s: %s Fetching it from the beginning.", file.name, self.model.id, error)
            else:
                log.warning("%s sent wrong content and is not asked for it again: %s", peer, error)
                self._refused.add(self._key(peer, file))
            return False
        finally:
            await chunks.aclose()
        return True


def has_file(directory: Path, file: File) -> bool:
    """Whether the directory has the file already, at its full size. Blocks on disk, as what follows."""
    path = directory / _plain(file.name)
    return path.is_file() and path.stat().st_size == file.size


def _bytes_here(directory: Path, files: Iterable[File]) -> dict[File, tuple[bool, int]]:
    """Of each file whether the directory has it, and how many of its bytes."""
    found = {}
    for file in files:
        is_here, partial = has_file(directory, file), PartialFile.beside(directory / file.name)
        left = min(partial.stat().st_size, file.size) if partial.is_file() else 0
        found[file] = is_here, file.size if is_here else left
    return found


def open_partial(directory: Path, file: File) -> PartialFile:
    """Open a file that peers offer. Raises NoCapacity, and NotReady while it is open elsewhere, or has just come."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = PartialFile(directory / _plain(file.name), file.size, file.digest)
    if has_file(directory, file):  # another load has finished it since it was looked for
        partial.discard()
        raise NotReady(f"{file.name} was fetched just now.")
    return partial


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
