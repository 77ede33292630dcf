"""What the API asks of a node: models, tokens, evaluations, and how the cluster is."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.cluster.agent import Agent
from node.cluster.allowed import Allowed
from node.cluster.contacts import Contacts
from node.cluster.draining import Draining
from node.cluster.readiness import usable_rings
from node.cluster.status import build_status
from node.core.clock import now
from node.core.errors import ModelBroken
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.pool import Pools
from node.core.types import Address, HeldModel, ModelEntry, PeerView, Ring, Work
from node.gateway.finding import Finder
from node.gateway.router import OPEN_WAIT_S, Requests
from node.model.catalogue import Catalogue
from node.ring.lifecycle import Rings
from node.rpc.client import RpcClient
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.texts import Texts
from node.text.tokenizer import Tokenizer

BROKEN_S = 60.0
"""For how long a tokenizer that can't be read is not read again: to find it out may take 10 s."""

TokenizerFiles = Callable[[HeldModel, Address | None], Awaitable[Path]]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that has a ring which is ready."""

    id: str
    context: int
    texts: Texts
    revision: str
    """Of the ring and of the texts' tokenizer."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.texts.tokenizer


class Gateway:
    """Any node is one, whoever is head."""

    def __init__(
        self,
        agent: Agent,
        contacts: Contacts,
        rings: Rings,
        client: RpcClient,
        catalogue: Catalogue,
        tokenizer_files: TokenizerFiles,
        want: Callable[[str], Awaitable[None]],
        allowed: Allowed,
        draining: Draining,
        pools: Pools,
        grammars: Grammars,
        sandboxes: SandboxServer,
        started_at: int,
        *,
        open_cluster: bool,
        other_secret: Callable[[], Sequence[PeerView]],
    ) -> None:
        self._agent = agent
        self._contacts = contacts
        self._rings = rings
        self._catalogue = catalogue
        self._tokenizer_files = tokenizer_files
        self._allowed = allowed
        self._draining = draining
        self._pools = pools
        self.grammars = grammars
        self._sandboxes = sandboxes
        self._finder = Finder(agent, contacts, client, want)
        self._requests = Requests(agent, contacts, rings, client, self._finder)
        self._started_at = started_at
        self._open_cluster = open_cluster
        self._other_secret = other_secret
        self._open: dict[str, tuple[str, Texts]] = {}
        """Of each model that was asked for, with the revision that it is of."""
        self._broken: dict[tuple[str, str], tuple[float, str]] = {}
        """When and why a tokenizer could not be read, by model and revision."""
        self._opening: dict[str, asyncio.Lock] = {}

    # --- what there is ------------------------------------------------------------------------------------------------

    def models(self) -> Sequence[ModelEntry]:
        """All that some node of the cluster holds or serves, and that a request may use."""
        return [
            ModelEntry(model, self._catalogue.created(model) or self._started_at, "pippin")
            for model in self._allowed.among(self._held())
        ]

    def _held(self) -> list[str]:
        served = {ring.model for ring in self._agent.placement.rings}
        return sorted(served | {held.id for report in self._agent.alive() for held in report.models})

    def status(self) -> dict[str, Any]:
        return build_status(self._agent.view(), open_cluster=self._open_cluster, other_secret=self._other_secret())

    async def drain(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Have a node's work moved away, or take it into use again; tells the node's id.

        Raises NodeNotFound, NoCapacity when a model would have no place without it, NotReady.
        """
        return {"node": await self._draining.ask(node, draining=draining), "draining": draining}

    def health(self) -> dict[str, Any]:
        view = self._agent.view()
        ready = {ring.model for ring in view.placement.rings if usable_rings(view, ring.model)}
        stuck = self._pools.stuck()
        stuck += ["grammar"] if self.grammars.is_stuck else []
        stuck += ["sandbox"] if self._sandboxes.has_ended else []
        state = {"status": "stuck", "stuck": stuck} if stuck else {"status": "ok"}
        return {**state, "node": self._agent.info.name, "models": sorted(ready)}

    def work(self) -> Work:
        rings, agent = self._rings, self._agent
        job_s = next((report.job_s for report in agent.alive() if report.info.id == agent.info.id), 0.0)
        return Work(rings.loads(), rings.kv_bytes(), rings.memory_used(), self._requests.recoveries, agent.lag_s, job_s)

    # --- asking a model -----------------------------------------------------------------------------------------------

    async def open(self, model_id: str) -> OpenModel:
        """Waits until a ring of the model is ready.

        Raises ModelNotFound, ModelNotAllowed, NoCapacity, ModelBroken, … and NotReady when it takes longer than a client may wait.
        """
        model = await self._pools.files.run(self._catalogue.find, model_id, self._held())
        self._allowed.check(model)
        ring = (await self._finder.wait(model, OPEN_WAIT_S))[0]
        return OpenModel(model, ring.context, await self._texts(ring), ring.revision)

    async def _texts(self, ring: Ring) -> Texts:
        async with self._opening.setdefault(ring.model, asyncio.Lock()):
            failed_at, why = self._broken.get((ring.model, ring.revision), (0.0, ""))
            if why and now() - failed_at < BROKEN_S:
                raise ModelBroken(why)
            if self._open.get(ring.model, ("", None))[0] != ring.revision:
                await self._replace(ring)
            _, texts = self._open[ring.model]
            try:
                if not texts.is_open:
                    await texts.open()
            except ModelBroken as error:
                self._broken[ring.model, ring.revision] = now(), error.message
                raise
            return texts

    async def _replace(self, ring: Ring) -> None:
        """Begin the texts of a ring's model; end those of its other revision, and of models that are served no more."""
        address = self._contacts.address_of(ring.driver)
        directory = await self._tokenizer_files(HeldModel(ring.model, ring.revision), address)
        served = {each.model for each in self._agent.placement.rings}
        for unused in [model for model in self._open if model == ring.model or model not in served]:
            await self._open.pop(unused)[1].close()
        self._open[ring.model] = ring.revision, Texts(self._sandboxes, directory, self._pools.texts)

    async def close(self) -> None:
        """End the processes of the models that were opened."""
        for _, texts in self._open.values():
            await texts.close()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each token once, whatever befalls the ring."""
        return self._requests.generate(request)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        return await self._requests.evaluate(request)
