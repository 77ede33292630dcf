"""What the API asks of a node: find a ring for a model, wait for it, and get tokens from its driver, wherever that is."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.cluster.readiness import ready_rings
from node.control.agent import Agent
from node.control.contacts import Contacts
from node.control.draining import Draining
from node.control.status import build_status
from node.core.clock import now
from node.core.errors import NoCapacity, NotReady, PeerUnavailable, RingLost, StaleFence
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import ClusterView, ModelEntry, NodeState, PeerView, Ring, Work
from node.engine.tokenizer import Tokenizer
from node.rpc.client import RpcClient
from node.serving.rings import Rings
from node.serving.routing import Router
from node.store.catalogue import Catalogue

log = logging.getLogger(__name__)

OPEN_WAIT_S = 60.0
"""A first request waits this long for its model to load; then the client is told to come back."""
RECOVER_WAIT_S = 30.0
"""A running request waits this long for its ring to be replaced."""
FRUITLESS_TRIES = 5
"""A request that is taken up so often without a new token is not going to succeed."""

TokenizerFiles = Callable[[str, str], Awaitable[Path]]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that has a ring which is ready."""

    id: str
    context: int
    tokenizer: Tokenizer


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
        draining: Draining,
        started_at: int,
        *,
        open_cluster: bool,
        other_secret: Callable[[], Sequence[PeerView]],
    ) -> None:
        self._agent = agent
        self._contacts = contacts
        self._rings = rings
        self._client = client
        self._catalogue = catalogue
        self._tokenizer_files = tokenizer_files
        self._want_here = want
        self._draining = draining
        self._router = Router()
        self._started_at = started_at
        self._open_cluster = open_cluster
        self._other_secret = other_secret
        self._recoveries = 0
        self._tokenizers: dict[str, Tokenizer] = {}
        self._tokenizer_locks: dict[str, asyncio.Lock] = {}

    # --- what there is ------------------------------------------------------------------------------------------------

    def models(self) -> Sequence[ModelEntry]:
        """All that some node of the cluster holds or serves."""
        view = self._agent.view()
        ids = {ring.model for ring in view.placement.rings}
        ids |= {model for report in self._agent.alive() for model in report.models}
        return [
            ModelEntry(model, self._catalogue.created(model) or self._started_at, "pippin") for model in sorted(ids)
        ]

    def status(self) -> dict[str, Any]:
        return build_status(self._agent.view(), open_cluster=self._open_cluster, other_secret=self._other_secret())

    async def drain(self, node: str, *, draining: bool) -> dict[str, Any]:
        """Have a node's work moved away, or take it into use again; tells the node's id.

        Raises NodeNotFound, NoCapacity when a model would have no place without it, NotReady.
        """
        return {"node": await self._draining.ask(node, draining=draining), "draining": draining}

    def health(self) -> dict[str, Any]:
        view = self._agent.view()
        return {"status": "ok", "node": self._agent.info.name, "models": sorted(_ready_models(view))}

    def work(self) -> Work:
        rings = self._rings
        return Work(rings.loads(), rings.kv_bytes(), rings.memory_used(), self._recoveries, self._agent.lag_s)

    # --- opening a model ----------------------------------------------------------------------------------------------

    async def open(self, model_id: str) -> OpenModel:
        """Waits until a ring of the model is ready.

        Raises ModelNotFound, NoCapacity, ModelBroken, … and NotReady when it takes longer than a client may wait.
        """
        model = await asyncio.to_thread(self._find, model_id)
        ring = (await self._ready_rings(model, OPEN_WAIT_S))[0]
        return OpenModel(model, ring.context, await self._tokenizer(ring))

    def _find(self, model_id: str) -> str:
        served = {ring.model for ring in self._agent.placement.rings}
        held = served | {model for report in self._agent.alive() for model in report.models}
        return self._catalogue.find(model_id, sorted(held))

    async def _ready_rings(self, model: str, wait_s: float) -> Sequence[Ring]:
        deadline = now() + wait_s
        asked = False
        while (left := deadline - now()) > 0:
            view = self._agent.view()
            if ready := ready_rings(view, model):
                return ready
            if not view.head or any(ring.model == model for ring in view.placement.rings):
                await self._agent.changed.wait(left)
                continue
            if asked:  # the placement may not have come here yet; if it is a refusal, the head tells
                await self._agent.changed.wait(min(left, 1.0))
            try:
                async with asyncio.timeout(left):
                    asked = await self._want(view.head, model)
            except TimeoutError:
                break
        raise NotReady(f"{model} is still loading after {wait_s:.0f} s.", hint="See `cluster status`; try again later.")

    async def _want(self, head: str, model: str) -> bool:
        """Whether the head was reached."""
        try:
            if head == self._agent.info.id:
                await self._want_here(model)
            elif address := self._contacts.address_of(head):
                await self._client.want(address, model)
        except (PeerUnavailable, NotReady) as error:
            log.info("the head could not be asked for %s: %s", model, error)
            await self._agent.changed.wait(1.0)
            return False
        return True

    async def _tokenizer(self, ring: Ring) -> Tokenizer:
        async with self._tokenizer_locks.setdefault(ring.model, asyncio.Lock()):
            if ring.model not in self._tokenizers:
                directory = await self._tokenizer_files(ring.model, self._contacts.address_of(ring.driver) or "")
                self._tokenizers[ring.model] = await asyncio.to_thread(Tokenizer, directory)
            return self._tokenizers[ring.model]

    # --- generating -----------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each token once. When the ring is lost on the way, goes on with another, from the tokens there are."""
        done: list[int] = []
        fruitless = 0
        lost: set[str] = set()
        wait_s = OPEN_WAIT_S
        while True:
            ring = self._routed(await self._ready_rings(request.model, wait_s), request.prompt, lost)
            before = len(done)
            try:
                async with aclosing(self._events(ring, _resumed(request, done, ring))) as events:
                    async for event in events:
                        done.append(event.token)
                        yield event
                        if event.finish:
                            return
                raise RingLost("The driver ended the stream early.")
            except (RingLost, PeerUnavailable, StaleFence) as error:
                log.warning("request %s lost its ring after %d tokens: %s", request.id, len(done), error)
                self._recoveries += 1
                fruitless = 0 if len(done) > before else fruitless + 1
                if fruitless >= FRUITLESS_TRIES:
                    raise
            lost.add(ring.id)
            wait_s = RECOVER_WAIT_S
            await self._after_loss(request.model, lost, fruitless)

    def _routed(self, ready: Sequence[Ring], prompt: Sequence[int], lost: Collection[str]) -> Ring:
        """The ring to ask; not one that has lost this request before, if there are others."""
        view = self._agent.view()
        reports = [peer.report for peer in view.peers]
        loads = {load.ring: load.running + load.queued for report in reports for load in report.rings}
        suspect = {peer.report.info.id for peer in view.peers if peer.state is not NodeState.ALIVE}
        rings = [ring for ring in ready if ring.id not in lost] or ready
        return self._router.choose(rings, prompt, loads, now(), suspect)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """When the ring is lost on the way, asks another one for the whole."""
        tries = 0
        lost: set[str] = set()
        while True:
            ready = await self._ready_rings(request.model, RECOVER_WAIT_S if lost else OPEN_WAIT_S)
            ring = self._routed(ready, request.prompt, lost)
            try:
                if ring.driver == self._agent.info.id:
                    return await self._rings.evaluate(ring.id, request)
                return await self._client.evaluate(self._driver_address(ring), ring.id, request)
            except (RingLost, PeerUnavailable, StaleFence) as error:
                log.warning("request %s lost its ring: %s", request.id, error)
                self._recoveries += 1
                tries += 1
                if tries >= FRUITLESS_TRIES:
                    raise
            lost.add(ring.id)
            await self._after_loss(request.model, lost, tries - 1)

    async def _after_loss(self, model: str, lost: Collection[str], fruitless: int) -> None:
        """Until it is worth another try: as soon as there is another ring.

        Else with the same one: the first time at any news, then later and later, as news come many a second.
        """
        deadline = now() + max(fruitless, 1)
        while not any(each.id not in lost for each in ready_rings(self._agent.view(), model)):
            if not await self._agent.changed.wait(deadline - now()) or not fruitless:
                return

    def _events(self, ring: Ring, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        if ring.driver == self._agent.info.id:
            return self._rings.generate(ring.id, request)
        return self._client.generate(self._driver_address(ring), ring.id, request)

    def _driver_address(self, ring: Ring) -> str:
        address = self._contacts.address_of(ring.driver)
        if address is None:
            raise PeerUnavailable(f"No address of the driver {ring.driver} is known.")
        return address


def _resumed(request: GenerateRequest, done: Sequence[int], ring: Ring) -> GenerateRequest:
    """What is left of a request for a ring, whose context may be shorter than that of the ring before."""
    room = min(request.max_tokens, ring.context - len(request.prompt))
    if done and room <= len(done):
        raise NoCapacity(
            f"The nodes that are left hold {ring.context} tokens; this answer has come to "
            f"{len(request.prompt) + len(done)}."
        )
    return replace(request, resume=tuple(done), max_tokens=max(room, 1) if done else request.max_tokens)


def _ready_models(view: ClusterView) -> set[str]:
    return {ring.model for ring in view.placement.rings if ready_rings(view, ring.model)}
