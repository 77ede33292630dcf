"""Offers model files to peers, and gets the files of a stage from this disk, from peers or the hub."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from node.core.errors import ModelNotFound, PeerUnavailable
from node.core.model_files import File, Listing
from node.core.models import HeldModel, Shard
from node.core.nodes import Address
from node.core.pool import Pool, Pools
from node.model.catalogue import Catalogue
from node.model.file_names import is_small
from node.model.gathering import Gathering
from node.model.hub import Hub
from node.model.offers import holders_of
from node.model.sending import Sender
from node.model.stage_fetch import Others, Progress, StageFetch, gather_small
from node.model.weights import Weights

log = logging.getLogger(__name__)


class Files:
    def __init__(self, catalogue: Catalogue, hub: Hub, others: Others, pools: Pools) -> None:
        self._pools = pools
        self.catalogue = catalogue
        self._hub = hub
        self._others = others
        self._sender = Sender(catalogue.layouts, catalogue.folders[1])

    # --- for peers ----------------------------------------------------------------------------------------------------

    async def listing(self, model: str, revision: str) -> Listing:
        files = await self._pools.offers.run(self._offered, model, revision)
        fetching = {name for held, name in self._others.fetching if held == HeldModel(model, revision)}
        return Listing(files, tuple(fetching))

    def _offered(self, model: str, revision: str) -> tuple[File, ...]:
        found: dict[str, File] = {}
        for directory in self._here(model, revision):
            for file in self._sender.offer(directory):
                found.setdefault(file.name, file)
        return tuple(found.values())

    async def read(
        self, model: str, revision: str, name: str, offset: int, length: int
    ) -> AsyncIterator[tuple[bytes, str]]:
        chunks = await self._pools.offers.run(lambda: self._read(model, revision, name, offset, length))
        while chunk := await self._pools.offers.run(next, chunks, None):
            yield chunk

    def _read(self, model: str, revision: str, name: str, offset: int, length: int) -> Iterator[tuple[bytes, str]]:
        *most, last = self._here(model, revision)
        for directory in most:
            with suppress(ModelNotFound):
                return self._sender.read(directory, name, offset, length)
        return self._sender.read(last, name, offset, length)

    def _here(self, model: str, revision: str) -> list[Path]:
        if directories := self.catalogue.offered(model, revision):
            return directories
        raise ModelNotFound(f"{model} of revision {revision[:100]!r} is not on this node.")

    # --- for this node ------------------------------------------------------------------------------------------------

    async def of_shard(
        self, shard: Shard, ends: bool, progress: Progress, *, downloads: Pool | None = None
    ) -> tuple[Path, Weights]:
        """Directory with the files of a stage, and the layout of all of the model's weights.

        Missing files are fetched, preferably from peers. `ends`: also those with the tensors outside of layers. Calls
        `progress` while they are fetched. `downloads`: threads for downloads from the hub; None: those for loads.

        Raises ModelNotFound, ModelChanged, ModelGated, HubUnavailable, NoCapacity (disk full), ModelBroken.
        """
        gathering = self._gathering(shard.version.files)
        args = self.catalogue, self._hub, self._pools, self._others, gathering
        directory = await StageFetch(*args, shard, ends, progress, downloads or self._pools.downloads).run()
        log.info("%s layers %d-%d are read from %s", shard.model, shard.start, shard.end - 1, directory)
        return directory, await self._pools.files.run(self.catalogue.weights, directory)

    def _gathering(self, model: HeldModel) -> Gathering:
        target = partial(self.catalogue.target, model.id, model.revision)
        return Gathering(self._others.client, self._pools, model, target, self._others.refused)

    async def of_tokenizer(self, model: HeldModel, peer: Address | None) -> Path:
        """Directory with the model's small files, fetched from `peer`, the model's driver, if necessary.

        Raises PeerUnavailable if `peer` is None, and the errors of the transfer.
        """
        directory = await self._pools.files.run(self.catalogue.tokenizer_directory, model.id, model.revision)
        if directory:
            return directory
        if peer is None:
            raise PeerUnavailable(f"No address of the driver of {model.id} is known.")
        gathering = self._gathering(model)
        offered = holders_of({peer: await self._others.client.listing(peer, model.id, model.revision)})
        if not await gather_small(
            gathering, {file: peers for file, peers in offered.items() if is_small(file.name, file.size)}
        ):
            raise gathering.failure or PeerUnavailable(f"{peer} has sent wrong files of {model.id} before.")
        return self.catalogue.target(model.id, model.revision)
