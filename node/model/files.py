"""Offers model files to peers, and gets the files of a stage from this disk, a peer or the hub."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

from node.core.errors import ModelChanged, ModelNotFound, NotReady, PeerUnavailable, PippinError
from node.core.models import HeldModel
from node.core.pool import Pools
from node.core.types import Address, Download, Shard
from node.model.catalogue import Catalogue
from node.model.file_names import is_commit
from node.model.hub import Hub
from node.model.meter import Meter
from node.model.transfer import File, has_file, needed, offer, open_partial, read, small
from node.model.weights import Weights, read_description
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

Progress = Callable[[Download], None]
TELL_S = 0.1
"""Minimum interval between two reports of a download's progress."""
LOOK_S = 0.2
"""Interval at which a load checks for a file that another load is fetching."""


class Files:
    """Model files of a node. `holders`: returns the other nodes with all files of a model, each with its revision."""

    def __init__(
        self,
        catalogue: Catalogue,
        hub: Hub,
        client: RpcClient,
        holders: Callable[[str], Sequence[tuple[Address, str]]],
        pools: Pools,
    ) -> None:
        self._pools = pools
        self._catalogue = catalogue
        self._hub = hub
        self._client = client
        self._holders = holders

    # --- for peers ----------------------------------------------------------------------------------------------------

    async def listing(self, model: str, revision: str) -> list[tuple[str, int]]:
        offered = await self._pools.offers.run(lambda: offer(self._here(model, revision)))
        return [(file.name, file.size) for file in offered]

    async def read(self, model: str, revision: str, name: str, offset: int) -> AsyncIterator[tuple[bytes, str]]:
        chunks = await self._pools.offers.run(lambda: read(self._here(model, revision), name, offset))
        while chunk := await self._pools.offers.run(next, chunks, None):
            yield chunk

    def _here(self, model: str, revision: str) -> Path:
        directory = self._catalogue.tokenizer_directory(model, revision)
        if directory is None:
            raise ModelNotFound(f"{model} of revision {revision[:100]!r} is not on this node.")
        return directory

    # --- for this node ------------------------------------------------------------------------------------------------

    async def of_shard(self, shard: Shard, ends: bool, progress: Progress) -> tuple[Path, Weights]:
        """Directory with the files of a stage, and the layout of all of the model's weights.

        Missing files are fetched, preferably from a peer. `ends`: also those with the tensors outside of layers. Calls
        `progress` while they are fetched. Raises ModelNotFound, ModelChanged, ModelGated, HubUnavailable, NoCapacity
        (disk full), ModelBroken.
        """
        directory = await self._directory_of(shard, ends, progress)
        return directory, await self._pools.files.run(Weights.read, directory)

    async def _directory_of(self, shard: Shard, ends: bool, progress: Progress) -> Path:
        if directory := await self._pools.files.run(self._catalogue.directory_for, shard, ends):
            return directory
        failure: PippinError | None = None
        for peer in [peer for peer, revision in self._holders(shard.model) if revision == shard.revision]:
            try:
                return await self._from_peer(peer, shard, ends, progress)
            except PippinError as error:
                log.warning("%s could not be fetched from %s: %s", shard.model, peer.target, error)
                failure = error
        if "/" in shard.model and is_commit(shard.revision):
            return await self._from_hub(shard, ends, progress)
        if failure and not isinstance(failure, ModelNotFound):
            raise failure
        raise await self._missing(shard)

    async def _missing(self, shard: Shard) -> PippinError:
        """The error for a revision that no node holds."""
        whole = await self._pools.files.run(self._catalogue.whole, shard.model)
        others = [whole.revision] if whole else [revision for _, revision in self._holders(shard.model)]
        if not others:
            return ModelNotFound(f"No node holds {shard.model}.")
        return ModelChanged(
            f"No node holds revision {shard.revision} of {shard.model}; found revision {others[0]}.",
            hint="The model's files were changed. Try again in a moment.",
        )

    async def _from_hub(self, shard: Shard, ends: bool, progress: Progress) -> Path:
        """Cancelling it returns at once; its thread ends with the next bytes that arrive, or with the read timeout."""
        loop, stop = asyncio.get_running_loop(), threading.Event()
        latest, due = Download(), False

        def note(download: Download) -> None:
            nonlocal latest, due
            if stop.is_set():
                raise NotReady(f"The load of {shard} was cancelled.")
            latest = download
            if not due:
                due = True
                loop.call_soon_threadsafe(loop.call_later, TELL_S, tell)

        def tell() -> None:
            nonlocal due
            due = False  # before `latest` is read: the thread writes that first
            if not stop.is_set():
                progress(latest)

        fetch = partial(self._hub.fetch, shard.model, shard.start, shard.end, ends, note, revision=shard.revision)
        try:
            return await self._pools.downloads.run(fetch)
        finally:
            stop.set()

    async def of_tokenizer(self, model: HeldModel, peer: Address | None) -> Path:
        """Directory with the model's small files, fetched from `peer`, the model's driver, if necessary.

        Raises PeerUnavailable if `peer` is None, and the errors of the transfer.
        """
        directory = await self._pools.files.run(self._catalogue.tokenizer_directory, model.id, model.revision)
        if directory:
            return directory
        if peer is None:
            raise PeerUnavailable(f"No address of the driver of {model.id} is known.")
        target = self._catalogue.target(model.id, model.revision)
        for file in small(await self._offered(peer, model)):
            await self._copy(peer, model, file, target, lambda _: None)
        return target

    async def _from_peer(self, peer: Address, shard: Shard, ends: bool, progress: Progress) -> Path:
        model = HeldModel(shard.model, shard.revision)
        offered = await self._offered(peer, model)
        target = self._catalogue.target(model.id, model.revision)
        for file in small(offered):
            await self._copy(peer, model, file, target, lambda _: None)
        weights = await self._pools.files.run(read_description, target)
        if weights is None:
            raise ModelNotFound(f"{peer} offers no description of {shard.model}.")
        files = needed(offered, weights, shard.start, shard.end, ends)
        meter = Meter(sum(file.size for file in files), 0, progress)
        for file in files:
            await self._copy(peer, model, file, target, meter.of_file)
            meter.finish_file(file.size)
        return target

    async def _offered(self, peer: Address, model: HeldModel) -> list[File]:
        return [File(name, size) for name, size in await self._client.listing(peer, model.id, model.revision)]

    async def _copy(
        self, peer: Address, model: HeldModel, file: File, target: Path, progress: Callable[[int], None]
    ) -> None:
        pool = self._pools.downloads
        while not await self._pools.files.run(has_file, target, file):
            try:
                part = await pool.run(open_partial, target, file)
            except NotReady:  # another load or request is fetching it
                await asyncio.sleep(LOOK_S)
                continue
            try:
                progress(part.offset)
                sha256 = ""
                async for data, sha256 in self._client.read(peer, model.id, model.revision, file.name, part.offset):  # noqa: B007
                    if data:
                        await pool.run(part.write, data)
                        progress(part.offset)
                await pool.run(part.finish, sha256)
            finally:
                pool.submit(part.close)  # in a thread, as it waits for a write
