"""One load's way to the files of a stage: what other nodes have comes from them, the rest from the hub.

The nodes that need a file from the hub have an order (`place` in `node.model.offers`). The first one begins at once, and each
other one if nobody has begun TURN_S after the turn of the one before it; then it looks whether several have begun. A node that sees
another one fetch the file waits until it can take it from there.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from node.core.clock import now
from node.core.errors import HubUnavailable, ModelBroken, ModelChanged, ModelGated, ModelNotFound, NotReady, PippinError
from node.core.model_files import File, Listing
from node.core.models import HeldModel, Shard
from node.core.nodes import Address
from node.core.pool import Pool, Pools
from node.core.reports import Download
from node.core.rings import Ring
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION, check_small_files, is_commit, is_small
from node.model.gathering import Gathering, Refused
from node.model.hub import Hub
from node.model.meter import Meter
from node.model.offers import holders_of, nodes_by_file, place, turn
from node.model.weights import Weights
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

Progress = Callable[[Download], None]
LOOK_AGAIN_S = 1.0
"""Interval at which a load looks whether other nodes have what they download."""
TURN_S = 2 * LOOK_AGAIN_S
"""Time for which a file has to be fetched by nobody, for each node that is to fetch it before this one. Long enough for such a node
to begin, and for others to see it.
"""

_BROKEN = "Delete the model with `cluster rm`, and load it again."


@dataclass(slots=True, eq=False)
class Others:
    """The other nodes, as far as files are concerned."""

    own: str
    """Id of this node."""
    client: RpcClient
    alive: Callable[[], Sequence[Address]]
    holders: Callable[[str], Sequence[tuple[Address, str]]]
    """Those that have all files of a model, each with their revision."""
    rings: Callable[[], Iterable[Ring]]
    """Those of the placement."""
    fetching: list[tuple[HeldModel, str]] = field(default_factory=list[tuple[HeldModel, str]])
    """Models and files that this node downloads from the hub, as the others are told."""
    refused: Refused = field(default_factory=Refused)

    async def ask(
        self, model: HeldModel, without: Collection[Address]
    ) -> tuple[dict[Address, Listing], list[PippinError]]:
        """What the others have and fetch of a model, and the errors of those that hold all of it and failed to tell."""
        peers = [peer for peer in self.alive() if peer not in without]
        asked = (self.client.listing(peer, model.id, model.revision) for peer in peers)
        told = dict(zip(peers, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        if bugs := [
            each for each in told.values() if isinstance(each, BaseException) and not isinstance(each, PippinError)
        ]:
            raise bugs[0]
        holders = {peer for peer, revision in self.holders(model.id) if revision == model.revision}
        errors = [each for peer, each in told.items() if peer in holders and isinstance(each, PippinError)]
        listings = {peer: each for peer, each in told.items() if isinstance(each, Listing)}
        return listings, [error for error in errors if not isinstance(error, ModelNotFound)]


@dataclass(slots=True, eq=False)
class StageFetch:
    _catalogue: Catalogue
    _hub: Hub
    _pools: Pools
    _others: Others
    _gathering: Gathering
    _shard: Shard
    _ends: bool
    _progress: Progress
    _downloads: Pool
    """Its threads download from the hub."""
    _failure: PippinError | None = None
    _hub_failure: PippinError | None = None
    _meter: Meter = field(default_factory=Meter)
    _free_since: dict[str, float] = field(default_factory=dict[str, float])
    """Of the files that nobody has or fetches."""
    _waited_for: set[str] = field(default_factory=set[str])

    @property
    def _model(self) -> HeldModel:
        return self._shard.version.files

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
        held = {file: peers for file, peers in holders_of(listings).items() if is_small(file.name, file.size)}
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
        lacking = needed - paths.keys()
        self._meter.begin(_total(weights, needed - lacking), _total(weights, needed))
        offered = self._offered(weights, lacking, listings)
        others = {name for listing in listings.values() for name in listing.fetching}
        fetched = lacking & others
        if self._hub_failure and others:
            self._free_since = {}  # who fetches other files of the model may come to these
        if not lacking:
            await self._link(paths, needed)
            if not await self._directory():
                raise ModelBroken(f"The files of {self._shard} that are here can't be used.", hint=_BROKEN)
        elif offered:
            await self._link(paths, ())  # else the directory is not known as this model's
            await self._gathering.gather(offered, self._note)
        elif due := await self._due(weights, free := lacking - fetched):
            await self._download(weights, due[0], needed=_total(weights, free))
        else:
            if fetched - self._waited_for:
                log.info("waiting for other nodes, which download %s of %s", ", ".join(sorted(fetched)), self._model.id)
            self._waited_for = fetched
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _due(self, weights: Weights, free: Collection[str]) -> list[str]:
        """Of the files that nobody has or fetches, those that this node is to fetch now, the first one first.

        Raises why it can't, if no other node has begun in its turn either.
        """
        time, own, revision = now(), self._others.own, self._model.revision
        self._free_since = {file: self._free_since.get(file, time) for file in free}
        nodes = self._nodes(weights, free)
        if self._on_hub and not self._hub_failure:
            turns = {file: turn(own, nodes[file], revision, file) for file in free}
            due = [file for file in free if time - self._free_since[file] >= TURN_S * turns[file]]
            return sorted(due, key=lambda file: (turns[file], file))
        for file in free:
            patience_s = TURN_S * len({own, *nodes[file]}) if self._hub_failure and self._others.alive() else 0
            if time - self._free_since[file] >= patience_s:
                raise self._hub_failure or self._failure or self._gathering.failure or await self._missing()
        return []

    def _nodes(self, weights: Weights, files: Iterable[str]) -> dict[str, set[str]]:
        """The nodes that need each file for the placement's rings, and are there."""
        there = {self._others.own, *(peer.node for peer in self._others.alive())}
        needing = nodes_by_file(self._others.rings(), self._model, weights)
        return {file: needing.get(file, set()) & there for file in files}

    async def _gives_way(self, weights: Weights, file: str) -> bool:
        """Whether another node began at the same time and comes first. Only who fetches a file out of turn has to look."""
        own, revision, nodes = self._others.own, self._model.revision, self._nodes(weights, [file])[file]
        if not self._others.alive() or (own in nodes and not turn(own, nodes, revision, file)):
            return False
        await asyncio.sleep(LOOK_AGAIN_S)
        listings, _ = await self._others.ask(self._model, self._gathering.lost)
        rivals = [peer.node for peer, listing in listings.items() if file in listing.fetching]
        mine = place(own, nodes, revision, file)
        is_first = all(place(rival, nodes, revision, file) < mine for rival in rivals)
        return not is_first or bool(self._offered(weights, [file], listings))

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

    def _note(self, here: int) -> None:
        self._meter.count(here)
        self._progress(self._meter.download())

    async def _download(self, weights: Weights, file: str, *, needed: int) -> None:
        """Download a file, if no other node does. Cancelling it returns at once; its thread ends with the next bytes that
        arrive, or with the read timeout. `needed`: bytes of all files that may have to come from the hub.
        """
        model, stop = self._model, threading.Event()

        def note(here: int) -> None:
            if stop.is_set():
                raise NotReady(f"The load of {self._shard} was cancelled.")
            self._meter.count(here)

        self._others.fetching.append((model, file))
        try:
            if not await self._gives_way(weights, file):
                fetch = partial(self._hub.fetch, model.id, file, note, revision=model.revision, needed=needed)
                fetching = asyncio.ensure_future(self._downloads.run(fetch))
                try:
                    while not (await asyncio.wait([fetching], timeout=0.1))[0]:
                        self._progress(self._meter.download())
                    await fetching
                finally:
                    stop.set()
                    fetching.cancel()
        except (HubUnavailable, ModelGated, ModelNotFound) as error:
            self._hub_failure = error
            self._free_since = {}  # from now on the others have their turns
        finally:
            self._others.fetching.remove((model, file))

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
