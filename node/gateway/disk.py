"""Models on this node's disk, fetched and removed for users."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from node.cluster.allowlist import Allowlist
from node.cluster.model_specs import ModelSpecs
from node.core.clock import now
from node.core.errors import ModelBusy, ModelNotFound
from node.core.fair_turns import FairTurns
from node.core.models import Shard
from node.core.pool import PULLS, Pools
from node.core.reports import Download
from node.gateway.model_names import ModelNames
from node.kv.store import KvStore
from node.model.files import Files
from node.model.hub_search import HubModel
from node.model.stage_fetch import Progress

T = TypeVar("T")

TELL_S = 0.5
"""Interval at which the progress of a download is told."""
TURN_S = 10.0
"""Time after which a fetch makes room for that of another client which waits."""
_MAX_WAITING = 64
"""Maximum fetches of one client that wait."""
_SEARCHES, _MAX_SEARCHES_WAITING = 2, 8
"""Searches of the hub at once; maximum searches of one client that wait."""


class Pulled(NamedTuple):
    """How much of a model is here."""

    model: str
    done: int
    """Bytes of weights that are here."""
    bytes: int
    """Those of the whole model."""


@dataclass(slots=True)
class Disk:
    names: ModelNames
    allowlist: Allowlist
    kv: KvStore
    specs: ModelSpecs
    files: Files
    pools: Pools
    in_use: Callable[[], Collection[str]]
    """Returns the models of which this node holds or loads layers."""
    changed: Callable[[], None]
    """Tells the other nodes."""
    forget: Callable[[str], Awaitable[None]]
    """Ends the processes that have read a model's files, and may read them again."""
    _turns: FairTurns = field(default_factory=lambda: FairTurns("a model to be fetched", PULLS, _MAX_WAITING))
    _searches: FairTurns = field(
        default_factory=lambda: FairTurns("a search of the hub", _SEARCHES, _MAX_SEARCHES_WAITING)
    )
    _pulled: list[str] = field(default_factory=list)
    """Models that are being fetched, once for each user who waits for it."""

    async def pull(self, name: str, client: str) -> AsyncGenerator[Pulled, None]:
        """Fetch all files of a model that are not here, from a node that has them, else from the hub, in turns of a
        client.

        Yields until it is here. Closing it ends the fetch; the next one resumes. Raises ModelNotFound, ModelNotAllowed,
        ModelGated, ModelUnsupported, HubUnavailable, NoCapacity (disk full), Overloaded.
        """
        model = await self.names.id_of(name)
        self.allowlist.check(model)
        self._pulled.append(model)
        try:
            async with self._turns.turn(client):
                spec = await self.specs.find(model)
            size, share = spec.weight_bytes, 0.0

            def note(download: Download) -> None:
                nonlocal share
                share = download.share

            async with _running(self._fetch(Shard(spec.version, 0, spec.layers), note, client)) as fetching:
                while not (await asyncio.wait([fetching], timeout=TELL_S))[0]:
                    yield Pulled(model, round(share * size), size)
                await fetching
            await self._refresh()
            yield Pulled(model, size, size)
        finally:
            self._pulled.remove(model)

    async def search(self, text: str, client: str) -> list[HubModel]:
        """Models of the hub that may be fetched. Raises HubUnavailable, Overloaded."""
        async with self._searches.turn(client):
            found = await self.pools.hub.run(self.specs.hub.search, text)
        allowed = set(self.allowlist.filter(model.id for model in found))
        return [model for model in found if model.id in allowed]

    async def about(self, model: str, client: str) -> HubModel:
        """What the hub says of a model. Raises ModelNotAllowed, ModelNotFound, HubUnavailable, Overloaded."""
        self.allowlist.check(model)
        async with self._searches.turn(client):
            return await self.pools.hub.run(self.specs.hub.about, model)

    async def _fetch(self, whole: Shard, progress: Progress, client: str) -> None:
        """Fetch a model in turns, each until it is here or another client is to have one. What has come is kept."""
        while True:
            async with self._turns.turn(client):
                files = self.files.of_shard(whole, ends=True, progress=progress, downloads=self.pools.pulls)
                async with _running(files) as fetching:
                    end = now() + TURN_S
                    while now() < end or not self._turns.is_wanted(client):
                        if (await asyncio.wait([fetching], timeout=TELL_S))[0]:
                            await fetching
                            return

    async def remove(self, name: str, *, not_fetched: bool = False) -> tuple[str, int]:
        """Delete the files of a model that were fetched from the hub or from nodes, and its KV. Returns its id and their bytes.

        `not_fetched`: also what other programs fetched into the hub's cache. Raises ModelNotFetched if there is some;
        ModelBusy while this node uses or fetches the model; ModelNotFound if nothing of it is here, or if its files are in
        a directory of the user's and there is no KV of it.
        """
        model = await self.names.id_of(name)
        if model in self._pulled:
            raise ModelBusy(f"This node is fetching {model}.", hint="End the `cluster pull` first, or wait for it.")
        if model in self.in_use():
            raise ModelBusy(
                f"This node has layers of {model} in memory.", hint=f"Unload it first, as by `cluster unload {model}`."
            )
        missing, freed = None, 0
        try:
            remove = partial(self.files.catalogue.remove, model, not_fetched=not_fetched)
            freed = await self.pools.files.run(remove)
        except ModelNotFound as error:
            missing = error
        kv = await self.pools.kv.run(self.kv.remove, model)
        if missing and not kv:
            raise missing
        await self._refresh()
        if not missing:
            await self.forget(model)
        return model, freed + kv

    async def _refresh(self) -> None:
        await self.pools.files.run(self.files.catalogue.refresh)
        self.changed()


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, T]) -> AsyncGenerator[asyncio.Task[T], None]:
    """A task that ends with the context."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
