"""What the API asks of a node: models, tokens, evaluations, and how the cluster is."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.cluster.readiness import usable_rings
from node.control.agent import Agent
from node.control.allowed import Allowed
from node.control.contacts import Contacts
from node.control.draining import Draining
from node.control.status import build_status
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.pool import Pools
from node.core.types import Address, HeldModel, ModelEntry, PeerView, Ring, Work
from node.engine.grammars import Grammars
from node.engine.tokenizer import Tokenizer
from node.rpc.client import RpcClient
from node.serving.finding import Finder
from node.serving.requests import OPEN_WAIT_S, Requests
from node.serving.rings import Rings
from node.store.catalogue import Catalogue

TokenizerFiles = Callable[[HeldModel, Address | None], Awaitable[Path]]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that has a ring which is ready."""

    id: str
    context: int
    tokenizer: Tokenizer
    revision: str
    """Of the ring and of the tokenizer."""


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
        self._finder = Finder(agent, contacts, client, want)
        self._requests = Requests(agent, contacts, rings, client, self._finder)
        self._started_at = started_at
        self._open_cluster = open_cluster
        self._other_secret = other_secret
        self._tokenizers: dict[str, tuple[str, Tokenizer]] = {}
        """Of each model that was asked for, with the revision that it is of."""
        self._tokenizer_locks: dict[str, asyncio.Lock] = {}

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
        stuck = [*self._pools.stuck(), *(["grammar"] if self.grammars.is_stuck else [])]
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
        return OpenModel(model, ring.context, await self._tokenizer(ring), ring.revision)

    async def _tokenizer(self, ring: Ring) -> Tokenizer:
        async with self._tokenizer_locks.setdefault(ring.model, asyncio.Lock()):
            revision, tokenizer = self._tokenizers.get(ring.model, ("", None))
            if tokenizer is None or revision != ring.revision:
                model = HeldModel(ring.model, ring.revision)
                directory = await self._tokenizer_files(model, self._contacts.address_of(ring.driver))
                tokenizer = await self._pools.texts.run(Tokenizer, directory)
                self._tokenizers[ring.model] = (ring.revision, tokenizer)
            return tokenizer

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each token once, whatever befalls the ring."""
        return self._requests.generate(request)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        return await self._requests.evaluate(request)
