"""One load's way to the files of a stage: what other nodes have comes from them, the rest from the hub, each file to one of
the nodes that lack it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from node.core.errors import HubUnavailable, ModelBroken, ModelChanged, ModelGated, ModelNotFound, NotReady, PippinError
from node.core.model_files import File, Listing
from node.core.models import HeldModel, Shard
from node.core.nodes import Address
from node.core.pool import Pool, Pools
from node.core.reports import Download
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION, check_small_files, is_commit, is_small
from node.model.gathering import Gathering
from node.model.hub import Hub
from node.model.meter import Meter
from node.model.offers import Claims, claimed, holders_of, prior
from node.model.weights import Weights
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

Progress = Callable[[Download], None]
TELL_S = 0.1
"""Minimum interval between two reports of a download's progress."""
SETTLE_S = 1.0
"""Time between a claim and the look at those of others: whoever claimed before has looked by then, and begun."""
LOOK_AGAIN_S = 1.0
"""Interval at which a load looks whether other nodes have what they download."""
_PATIENCE = 4
"""Looks at the other nodes after the hub failed, before the load fails: one that waited for this node may go on."""

_BROKEN = "Delete the model with `cluster rm`, and load it again."


class Others:
    """The other nodes, as far as files are concerned. `alive`: their addresses; `holders`: see Files."""

    def __init__(
        self,
        own: str,
        client: RpcClient,
        alive: Callable[[], Sequence[Address]],
        holders: Callable[[str], Sequence[tuple[Address, str]]],
    ) -> None:
        self.own = own
        self.client = client
        self.alive = alive
        self.holders = holders

    async def ask(
        self, model: HeldModel, without: Collection[Address]
    ) -> tuple[dict[Address, Listing], list[PippinError]]:
        """What the others have and claim of a model, and the errors of those that hold all of it and failed to tell."""
        peers = [peer for peer in self.alive() if peer not in without]
        asked = (self.client.listing(peer, model.id, model.revision) for peer in peers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        told = dict(zip(peers, answers, strict=True))
        if bugs := [each for each in answers if isinstance(each, BaseException) and not isinstance(each, PippinError)]:
            raise bugs[0]
        holders = {peer for peer, revision in self.holders(model.id) if revision == model.revision}
        errors = [each for peer, each in told.items() if peer in holders and isinstance(each, PippinError)]
        listings = {peer: each for peer, each in told.items() if isinstance(each, Listing)}
        return listings, [error for error in errors if not isinstance(error, ModelNotFound)]


class StageFetch:
    def __init__(
        self,
        catalogue: Catalogue,
        hub: Hub,
        pools: Pools,
        others: Others,
        claims: Claims,
        gathering: Gathering,
        shard: Shard,
        ends: bool,
        progress: Progress,
        downloads: Pool,
    ) -> None:
        """`downloads`: its threads download from the hub."""
        self._catalogue = catalogue
        self._hub = hub
        self._pools = pools
        self._others = others
        self._claims = claims
        self._gathering = gathering
        self._shard = shard
        self._ends = ends
        self._progress = progress
        self._downloads = downloads
        self._model = shard.version.files
        self._failure: PippinError | None = None
        self._hub_failure: PippinError | None = None
        self._looks = 0
        self._waited_for: set[str] = set()

    async def run(self) -> Path:
        """Directory with all files of the stage. Raises as `Files.of_shard`."""
        while True:
            if directory := await self._directory():
                return directory
            listings, errors = await self._others.ask(self._model, self._gathering.lost)
            self._failure = next(iter(errors), self._failure)
            folder = await self._pools.files.run(self._catalogue.described, self._model.id, self._model.revision)
            if folder is None:
                await self._get_small(listings)
            else:
                weights = await self._pools.files.run(self._catalogue.weights, folder.path)
                await self._get_weights(weights, listings)

    async def _directory(self) -> Path | None:
        return await self._pools.files.run(self._catalogue.directory_for, self._shard, self._ends)

    async def _get_small(self, listings: Mapping[Address, Listing]) -> None:
        """Get the files without which nothing is known of the weights."""
        held = {file: peers for file, peers in holders_of(listings).items() if is_small(file.name)}
        is_usable = self._gathering.usable(held).keys() == held.keys()
        if is_usable and {"config.json", DESCRIPTION} <= {file.name for file in held}:
            await gather_small(self._gathering, held)
        elif not self._on_hub:
            raise self._failure or self._gathering.failure or await self._missing()
        else:
            await self._pools.hub.run(self._hub.metadata, self._model.id, self._model.revision)

    @property
    def _on_hub(self) -> bool:
        return "/" in self._model.id and is_commit(self._model.revision)

    async def _get_weights(self, weights: Weights, listings: Mapping[Address, Listing]) -> None:
        """Get some of the weights that are missing; or wait; or raise why nobody has them."""
        needed = weights.files_for(self._shard.start, self._shard.end, self._ends)
        paths = await self._pools.files.run(self._catalogue.paths, self._model.id, self._model.revision)
        here, total = _total(weights, needed & paths.keys()), _total(weights, needed)
        lacking = needed - paths.keys()
        offered = self._offered(weights, lacking, listings)
        taken = claimed(listings) & lacking
        if not lacking:
            await self._link(paths, needed)
            if not await self._directory():
                raise ModelBroken(f"The files of {self._shard} that are here can't be used.", hint=_BROKEN)
        elif offered:
            await self._link(paths, ())  # else the directory is not known as this model's
            meter = Meter(total, here, self._progress)
            await self._gathering.gather(offered, meter.of_file)
        elif lacking - taken and self._on_hub and self._hub_failure is None:
            await self._claim(weights, lacking - taken, Download(here, total))
        elif lacking - taken and not (self._hub_failure and self._others.alive() and self._looks < _PATIENCE):
            raise self._hub_failure or self._failure or self._gathering.failure or await self._missing()
        else:
            self._looks += bool(lacking - taken)
            if taken - self._waited_for:
                log.info("waiting for other nodes, which download %s of %s", ", ".join(sorted(taken)), self._model.id)
            self._waited_for = taken
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _link(self, paths: Mapping[str, Path], weights: Collection[str]) -> None:
        """Bring files together in one directory: some came from the hub into its cache, others from nodes."""
        target = self._catalogue.target(self._model.id, self._model.revision)
        small = [name for name in paths if is_small(name)]
        await self._pools.files.run(link, target, [paths[name] for name in (*weights, *small)])

    def _offered(
        self, weights: Weights, lacking: Collection[str], listings: Mapping[Address, Listing]
    ) -> dict[File, list[Address]]:
        held = self._gathering.usable(holders_of(listings))
        return {file: held[file] for file in held if file.name in lacking and file.size == weights.sizes[file.name]}

    async def _claim(self, weights: Weights, lacking: Collection[str], before: Download) -> None:
        """Download those of the files that no other node has claimed before."""
        with self._claims.of(self._model, lacking) as own:
            if self._others.alive():
                await asyncio.sleep(SETTLE_S)
                listings, _ = await self._others.ask(self._model, self._gathering.lost)
                own.names -= prior(listings, self._others.own)
                own.names -= {file.name for file in self._offered(weights, lacking, listings)}
            own.began = True
            if own.names:
                try:
                    await self._download(frozenset(own.names), before)
                except (HubUnavailable, ModelGated, ModelNotFound) as error:
                    self._hub_failure = error

    async def _download(self, names: Collection[str], before: Download) -> None:
        """Cancelling it returns at once; its thread ends with the next bytes that arrive, or with the read timeout."""
        loop, stop = asyncio.get_running_loop(), threading.Event()
        latest, due = before, False

        def note(download: Download) -> None:
            nonlocal latest, due
            if stop.is_set():
                raise NotReady(f"The load of {self._shard} was cancelled.")
            latest = Download(before.done + download.done, before.total, download.bytes_per_s)
            if not due:
                due = True
                loop.call_soon_threadsafe(loop.call_later, TELL_S, tell)

        def tell() -> None:
            nonlocal due
            due = False  # before `latest` is read: the thread writes that first
            if not stop.is_set():
                self._progress(latest)

        shard = self._shard
        span = shard.model, shard.start, shard.end, self._ends
        fetch = partial(self._hub.fetch, *span, note, revision=shard.version.revision, only=names)
        try:
            await self._downloads.run(fetch)
        finally:
            stop.set()

    async def _missing(self) -> PippinError:
        """The error for a revision that no node holds."""
        shard = self._shard
        whole = await self._pools.files.run(self._catalogue.whole, shard.model)
        others = [whole.revision] if whole else [revision for _, revision in self._others.holders(shard.model)]
        if not others:
            return ModelNotFound(f"No node holds {shard.model}.")
        return ModelChanged(
            f"No node holds revision {shard.version.revision} of {shard.model}; found revision {others[0]}.",
            hint="The model's files were changed. Try again in a moment.",
        )


async def gather_small(gathering: Gathering, held: Mapping[File, Sequence[Address]]) -> bool:
    """Get small files. config.json comes last, as a folder counts as a model once it has one.

    Returns False if some are missing that no holder could deliver. Raises NoCapacity (disk full), ModelBroken.
    """
    check_small_files(gathering.model.id, {file.name: file.size for file in held})
    last = {file: peers for file, peers in held.items() if file.name == "config.json"}
    others = {file: peers for file, peers in held.items() if file not in last}
    return await gathering.gather(others, lambda _: None) and await gathering.gather(last, lambda _: None)


def link(directory: Path, paths: Iterable[Path]) -> None:
    """Link the files that the directory lacks into it; config.json last. Blocks on disk."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(paths, key=lambda path: path.name == "config.json"):
        own = directory / path.name
        if not own.is_file():
            own.unlink(missing_ok=True)
            own.symlink_to(path.resolve())


def _total(weights: Weights, files: Collection[str]) -> int:
    return sum(weights.sizes[file] for file in files)
