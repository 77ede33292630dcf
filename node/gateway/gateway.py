"""Answers the API: models, tokens, evaluations, and the cluster's status."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.draining import Draining
from node.cluster.loading import Loading
from node.cluster.model_list import build_models
from node.cluster.readiness import usable_rings
from node.cluster.status import build_status
from node.core.clock import now
from node.core.errors import ModelBroken, PeerUnavailable
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.logs import RecentLines
from node.core.models import HeldModel, ModelDescription, ModelEntry, Wish
from node.core.node_names import node_named
from node.core.pool import Pools
from node.core.reports import NodeMetrics, Severity
from node.core.rings import Ring
from node.core.views import PeerView
from node.gateway.disk import Disk
from node.gateway.model_index import ModelIndex, TokenizerFiles
from node.gateway.model_names import ModelNames
from node.gateway.router import OPEN_WAIT_S, Router
from node.members.address_book import AddressBook
from node.model.catalogue import Catalogue
from node.model.config import read_sampling
from node.model.short_names import SHORT_NAMES
from node.ring.lifecycle import Rings
from node.rpc.client import RpcClient
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.sandboxed_encoder import OpenModel, SandboxedEncoder, TokenizerProcesses

BROKEN_S = 60.0
"""A tokenizer that cannot be read is tried again after this time: a try may take 10 s."""

TELL_S = 1.0
"""Maximum wait for the head to hear of a model that came just now. It takes some milliseconds."""
LOOK_S = 0.02


class _Opened(NamedTuple):
    """A model that a request named."""

    revision: str
    processes: TokenizerProcesses
    sampling: Mapping[str, float]
    """What its authors propose."""


class Gateway:
    """Every node has one, whoever is head."""

    def __init__(
        self,
        agent: Agent,
        book: AddressBook,
        rings: Rings,
        client: RpcClient,
        catalogue: Catalogue,
        tokenizer_files: TokenizerFiles,
        want: Callable[[str], Awaitable[None]],
        allowlist: Allowlist,
        draining: Draining,
        loading: Loading,
        disk: Disk,
        pools: Pools,
        grammars: Grammars,
        sandboxes: SandboxServer,
        recent: RecentLines,
        started_at: int,
        *,
        open_cluster: bool,
        other_secret: Callable[[], Sequence[PeerView]],
    ) -> None:
        self._agent = agent
        self._book = book
        self._rings = rings
        self._client = client
        self._recent = recent
        self._catalogue = catalogue
        self._names = ModelNames(agent, catalogue)
        self._index = ModelIndex(
            agent, book, catalogue, self._names, allowlist, tokenizer_files, pools.files, started_at
        )
        self._tokenizer_files = tokenizer_files
        self._allowlist = allowlist
        self._draining = draining
        self._loading = loading
        self._disk = disk
        self._pools = pools
        self.grammars = grammars
        self._sandboxes = sandboxes
        self._router = Router(agent, book, rings, client, want)
        self._open_cluster = open_cluster
        self._other_secret = other_secret
        self._open: dict[str, _Opened] = {}
        """What belongs to each model that a request named."""
        self._broken: dict[HeldModel, tuple[float, str]] = {}
        """Time and reason of a tokenizer's failure, by model and revision."""
        self._opening: dict[str, asyncio.Lock] = {}

    # --- state -------------------------------------------------------------------------------------------------------

    def models(self) -> Sequence[ModelEntry]:
        return self._index.models()

    def known(self, name: str) -> ModelEntry | None:
        return self._index.known(name)

    async def describe(self, name: str) -> ModelDescription:
        return await self._index.describe(name)

    def status(self) -> dict[str, Any]:
        return build_status(self._agent.view(), open_cluster=self._open_cluster, other_secret=self._other_secret())

    def model_list(self) -> dict[str, Any]:
        aliases, allowed = self._names.aliases(), self._allowlist.filter
        return build_models(self._agent.view(), SHORT_NAMES, aliases, allowed, self._catalogue.unusable())

    def log(self, node: str, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        """Lines of the log of a node, as RecentLines.read; `node`: see node_named, empty for this one.

        Raises NodeNotFound, PeerUnavailable, and Incompatible for a node that is too old.
        """
        agent = self._agent
        names = {peer.report.info.id: peer.report.info.name for peer in agent.view().peers}
        asked = node_named(node, names) if node else agent.info.id
        if asked == agent.info.id:
            return self._recent.read(lines, follow=follow)
        address = self._book.address_of(asked)
        if address is None:
            raise PeerUnavailable(f"This node does not reach {names[asked]}.", hint="`cluster status` says why.")
        return self._client.log(address, lines, follow=follow)

    async def set_draining(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Have a node's work moved to other nodes, or take the node into use again. Gives the node's id.

        Raises NodeNotFound, NotReady, NoCapacity when a model would have no place without the node.
        """
        return {"node": await self._draining.request(node, draining=draining), "draining": draining}

    async def load(self, name: str, *, stages: int = 0, context: int = 0) -> dict[str, Any]:
        """Have a model loaded for good; see Wish. Gives its id, once it has a place: it may still be loading.

        Raises ModelNotFound, ModelNotAllowed, NoCapacity, ModelBroken, …, and NotReady without a head.
        """
        model = await self._id_of(name)
        self._allowlist.check(model)
        await self._loading.load(model, Wish(named=True, stages=stages, context=context))
        return {"model": model}

    async def unload(self, name: str) -> dict[str, Any]:
        """Have a model unloaded. Gives its id. Raises ModelNotFound, ModelBusy, and NotReady without a head."""
        model = await self._id_of(name)
        await self._loading.unload(model)
        return {"model": model}

    async def pull(self, name: str, client: str) -> AsyncGenerator[dict[str, Any], None]:
        """Fetch a model to this node's disk; see Disk.pull. Yields the progress, ready for JSON."""
        model = await self._id_of(name)
        self._allowlist.check(model)
        async with aclosing(self._disk.pull(model, client)) as progress:
            async for done, size in progress:
                yield {"model": model, "done": done, "bytes": size}

    async def remove(self, name: str) -> dict[str, Any]:
        """Delete the files of a model from this node's disk; see Disk.remove."""
        model = await self._id_of(name)
        return {"model": model, "bytes": await self._disk.remove(model)}

    def health(self) -> dict[str, Any]:
        view = self._agent.view()
        ready = {ring.model for ring in view.placement.rings if usable_rings(view, ring.model)}
        stuck = self._pools.stuck()
        stuck += ["grammar"] if self.grammars.is_stuck else []
        stuck += ["sandbox"] if self._sandboxes.has_ended else []
        full = [name for name, _ in self._pools.full()]
        state: dict[str, Any] = {"status": "full", "full": full} if full else {"status": "ok"}
        if stuck:
            state = {"status": "stuck", "stuck": stuck}
        warnings = {issue["code"] for issue in self.status()["warnings"] if issue["severity"] != Severity.INFO}
        return {**state, "node": self._agent.info.name, "models": sorted(ready), "warnings": sorted(warnings)}

    def metrics(self) -> NodeMetrics:
        rings, agent = self._rings, self._agent
        job_s = next((report.job_s for report in agent.alive() if report.info.id == agent.info.id), 0.0)
        return NodeMetrics(
            rings.traffic(), rings.kv_bytes(), rings.memory_used(), self._router.recoveries, agent.lag_s, job_s
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    async def open(self, model_id: str, client: str) -> OpenModel:
        """Open a model for a client. Waits until a ring of the model is ready.

        Raises ModelNotFound, ModelNotAllowed, NoCapacity, ModelBroken, …, and NotReady after `OPEN_WAIT_S`.
        """
        model = await self._id_of(model_id)
        self._allowlist.check(model)
        ring = (await self._router.wait_for_rings(model, OPEN_WAIT_S, client))[0]
        opened = await self._opened(ring)
        sampling = {**opened.sampling, **self._names.preset(model)}
        return OpenModel(
            model, ring.context, SandboxedEncoder(opened.processes, client), ring.version.revision, sampling
        )

    async def _id_of(self, name: str) -> str:
        """Raises ModelNotFound, ModelBroken."""
        if model := self._names.match(name):
            return model
        model = await self._pools.files.run(self._names.find, name)
        await self._tell_head()
        return model

    async def _tell_head(self) -> None:
        """Wait until the head has heard of a model that came to this node just now: it is about to be asked for it."""
        agent, deadline = self._agent, now() + TELL_S
        agent.touch()
        while agent.head not in ("", agent.info.id) and agent.lacks_news(agent.head) and now() < deadline:
            await agent.changed.wait(LOOK_S)

    def loading(self, model_id: str) -> str:
        """How far the load of a model is; empty if it is not loading."""
        return " ".join(self._router.loading(self._names.match(model_id) or model_id))

    async def _opened(self, ring: Ring) -> _Opened:
        async with self._opening.setdefault(ring.model, asyncio.Lock()):
            failed_at, why = self._broken.get(ring.version.files, (0.0, ""))
            if why and now() - failed_at < BROKEN_S:
                raise ModelBroken(why)
            opened = self._open.get(ring.model)
            if opened is None or opened.revision != ring.version.revision:
                opened = await self._replace(ring)
            try:
                if not opened.processes.is_open:
                    await opened.processes.open()
            except ModelBroken as error:
                self._broken[ring.version.files] = now(), error.message
                raise
            return opened

    async def _replace(self, ring: Ring) -> _Opened:
        """Make the processes of a ring's model. Close those of its other revision, and of models without a ring."""
        address = self._book.address_of(ring.driver)
        directory = await self._tokenizer_files(ring.version.files, address)
        served = {each.model for each in self._agent.placement.rings}
        for unused in [model for model in self._open if model == ring.model or model not in served]:
            if entry := self._open.pop(unused, None):  # another model that opens may have closed it meanwhile
                await entry.processes.close()
        sampling = await self._pools.files.run(read_sampling, directory)
        processes = TokenizerProcesses(self._sandboxes, directory, self._pools.texts)
        self._open[ring.model] = opened = _Opened(ring.version.revision, processes, sampling)
        return opened

    async def close(self) -> None:
        """End the processes of the open models."""
        for opened in self._open.values():
            await opened.processes.close()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each token once, also when the ring is lost."""
        return self._router.generate(request)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        return await self._router.evaluate(request)
