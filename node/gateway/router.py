"""Routes requests to rings: finds a model's rings, demands one of the head, and goes on with another ring when one is full or lost."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from node.cluster.agent import Agent
from node.cluster.readiness import driver_out_of_reach, usable_rings
from node.cluster.wanted_model import OPEN_WAIT_S
from node.core.clock import now
from node.core.errors import (
    ModelChanged,
    NoCapacity,
    NotReady,
    Overloaded,
    PeerUnavailable,
    PippinError,
    RingLost,
    StaleFence,
    is_replacement,
)
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.fair_turns import FairTurns
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.health import loads_of
from node.core.nodes import Address
from node.core.rings import Ring
from node.core.views import NodeState
from node.gateway.balancer import Balancer
from node.ring.lifecycle import MUTUAL_PROTOCOL, PICTURES_PROTOCOL, Rings
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

RECOVER_WAIT_S = 30.0
"""A running request waits this long for a ring that replaces its own."""
FRUITLESS_TRIES = 5
"""A request fails when it was tried more often than this, and for longer than `RECOVER_WAIT_S`, without a new token: it may
be the cause of its rings' ends. A link that fails for some seconds fails no request.
"""
ASKED_AT_ONCE, ASKED_BY_ONE = 8, 1024
"""Requests for which the head is asked for a model at once, and maximum requests of one client that wait for that."""
TRY_ELSEWHERE = (Overloaded, RingLost, PeerUnavailable, StaleFence)
"""Errors of one ring after which another ring may serve the request."""


@dataclass(slots=True)
class Tries:
    """The failed tries of one request."""

    full: set[str] = field(default_factory=set)
    """Ids of the rings that had no place for it."""
    lost: set[str] = field(default_factory=set)
    """Ids of the rings that were lost under it."""
    why_lost: PippinError | None = None
    """Why the last one was."""
    fruitless: int = 0
    """Tries since the last new token."""
    since: float = 0.0
    """Time of the first of these."""

    def others(self, rings: Sequence[Ring]) -> list[Ring]:
        """The rings that were not tried."""
        return [ring for ring in rings if ring.id not in self.full | self.lost]


@dataclass(slots=True)
class Router:
    _agent: Agent
    _rings: Rings
    _client: RpcClient
    _want_here: Callable[[str], Awaitable[None]]
    """Asks this node's own head, which refuses when another node is the cluster's head."""
    _balancer: Balancer = field(default_factory=Balancer)
    _asking: FairTurns = field(
        default_factory=lambda: FairTurns("the head to look for a model", ASKED_AT_ONCE, ASKED_BY_ONE)
    )
    recoveries: int = 0
    """How many times a request lost its ring."""

    # --- requests ----------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        """Yields each token once, and how far the prompt is. When the ring is lost, another one continues after the tokens that there are."""
        done: list[int] = []
        tries = Tries()
        while True:
            ring = await self._choose(request, tries)
            before = len(done)
            try:
                async with aclosing(self._events(ring, _resumed(request, done, ring))) as events:
                    async for event in events:
                        yield event
                        if isinstance(event, TokenEvent):
                            done.append(event.token)
                            if event.finish:
                                return
                raise RingLost("The driver ended the stream early.")
            except TRY_ELSEWHERE as error:
                tries.fruitless = 0 if len(done) > before else tries.fruitless
                self._note_failure(error, ring, request, tries)
            await self._pause(request, tries)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """When the ring is lost, another one evaluates the whole text."""
        tries = Tries()
        while True:
            ring = await self._choose(request, tries)
            try:
                if ring.driver == self._agent.info.id:
                    return await self._rings.evaluate(ring.id, request)
                return await self._client.evaluate(self._driver_address(ring), ring.id, request)
            except TRY_ELSEWHERE as error:
                self._note_failure(error, ring, request, tries)
            await self._pause(request, tries)

    def _events(self, ring: Ring, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        if ring.driver == self._agent.info.id:
            return self._rings.generate(ring.id, request)
        return self._client.generate(self._driver_address(ring), ring.id, request)

    def _driver_address(self, ring: Ring) -> Address:
        address = self._agent.book.address_of(ring.driver)
        if address is None:
            raise PeerUnavailable(f"No address of the driver {ring.driver} is known.")
        return address

    async def _choose(self, request: GenerateRequest | EvaluateRequest, tries: Tries) -> Ring:
        """A ring for the next try: one that was not tried, if there is one."""
        wait_s = RECOVER_WAIT_S if tries.lost else OPEN_WAIT_S
        ready = await self.wait_for_rings(request.model, wait_s, request.client, request.revision, tries.why_lost)
        if isinstance(request, GenerateRequest) and request.pictures:
            ready = self._that_see(ready, MUTUAL_PROTOCOL) or self._that_see(ready, PICTURES_PROTOCOL) or ready
        view = self._agent.view()
        traffic = {each.ring: each.running + each.queued for peer in view.peers for each in peer.report.traffic}
        suspect = {peer.report.info.id for peer in view.peers if peer.state is not NodeState.ALIVE}
        return self._balancer.choose(tries.others(ready) or ready, request.prompt, traffic, now(), suspect)

    def _that_see(self, rings: Sequence[Ring], protocol: int) -> list[Ring]:
        """The rings that take pictures: their nodes are of this protocol or a later one, and their later layers need no tokens."""
        old = {report.info.id for report in self._agent.alive() if report.info.protocol < protocol}
        cut = {ring.id for ring in rings if ring.shared_ends and len(ring.stages) > 1}
        return [ring for ring in rings if old.isdisjoint(ring.nodes) and ring.id not in cut]

    def _note_failure(
        self, error: PippinError, ring: Ring, request: GenerateRequest | EvaluateRequest, tries: Tries
    ) -> None:
        """Records a failed try. Raises the error when another try makes no sense.

        A request that once ran is not refused because the other rings are full: it waits for a place.
        """
        if isinstance(error, Overloaded):
            tries.full.add(ring.id)
            if tries.others(self.usable_rings(request.model, request.revision)):
                return
            if not tries.lost:
                raise error
        else:
            planned = is_replacement(error)
            log.log(logging.INFO if planned else logging.WARNING, "request %s lost its ring: %s", request.id, error)
            self.recoveries += 1
            tries.lost.add(ring.id)
            tries.why_lost = error
        tries.since = tries.since if tries.fruitless else now()
        tries.fruitless += 1
        if tries.fruitless > FRUITLESS_TRIES and now() - tries.since > RECOVER_WAIT_S:
            raise error

    async def _pause(self, request: GenerateRequest | EvaluateRequest, tries: Tries) -> None:
        """Waits until a ring is ready that was not tried.

        The first wait ends with any change of the cluster; the n-th lasts n - 1 seconds at most, as a cluster changes many
        times a second.
        """
        first, deadline = tries.fruitless <= 1, now() + max(tries.fruitless - 1, 1)
        while not tries.others(self.usable_rings(request.model, request.revision)):
            if not await self._agent.changed.wait(deadline - now()) or first:
                return

    # --- rings -------------------------------------------------------------------------------------------------------

    def usable_rings(self, model: str, revision: str) -> Sequence[Ring]:
        return [ring for ring in usable_rings(self._agent.view(), model) if ring.version.revision == revision]

    async def wait_for_rings(
        self, model: str, wait_s: float, client: str, revision: str | None = None, lost: PippinError | None = None
    ) -> Sequence[Ring]:
        """One or more rings of the model that are ready; of the revision, if one is given. `lost`: the end of the ring before.

        Raises NotReady after `wait_s`, RingLost if a ring was lost before, ModelChanged when there are only rings of another revision, PeerUnavailable when
        this node reaches none of their drivers, and the head's error for a model that it cannot place: ModelNotFound,
        NoCapacity, ModelBroken, ...
        """
        deadline = now() + wait_s
        asked = False
        while (left := deadline - now()) > 0:
            view = self._agent.view()
            if ready := usable_rings(view, model):
                return _of_revision(ready, revision)
            if driver := driver_out_of_reach(view, model):
                raise PeerUnavailable(
                    f"This node does not reach {driver.report.info.name}, which serves {model}; the head does.",
                    hint="Send the request to another node, and look at `cluster status` for the network between the two.",
                )
            if not view.head or any(ring.model == model for ring in view.placement.rings):
                await self._agent.changed.wait(left)
                continue
            if asked:  # the placement may be on its way here; if the head refuses the model, asking again tells why
                await self._agent.changed.wait(min(left, 1.0))
            try:
                async with asyncio.timeout(left), self._asking.turn(client):
                    asked = await self._ask_head(view.head, model)
            except TimeoutError:
                break
        hint = "Try again later; `cluster status` shows how far it is."
        if lost:
            told = f"{lost.message} No ring of {model} took over within {wait_s:.0f} s."
            raise RingLost(" ".join([told, *self.loading(model)]), hint=lost.hint or hint)
        raise NotReady(" ".join([f"{model} is still loading after {wait_s:.0f} s.", *self.loading(model)]), hint=hint)

    def loading(self, model: str) -> list[str]:
        """Sentences that tell how far the nodes are that load a model."""
        return [issue.text for issue in loads_of(self._agent.view(), model)]

    async def _ask_head(self, head: str, model: str) -> bool:
        """Has the head place a model. False when the head was not reached."""
        try:
            if head == self._agent.info.id:
                await self._want_here(model)
            elif address := self._agent.book.address_of(head):
                await self._client.want(address, model)
        except (PeerUnavailable, NotReady) as error:
            log.info("the head could not be asked for %s: %s", model, error)
            await self._agent.changed.wait(1.0)
            return False
        return True


def _of_revision(rings: Sequence[Ring], revision: str | None) -> Sequence[Ring]:
    fitting = [ring for ring in rings if revision in (None, ring.version.revision)]
    if not fitting:
        raise ModelChanged(
            f"{rings[0].model} is served from revision {rings[0].version.revision}; this request began with {revision}.",
            hint="Send the request again.",
        )
    return fitting


def _resumed(request: GenerateRequest, done: Sequence[int], ring: Ring) -> GenerateRequest:
    """The rest of a request, for a ring whose context may be shorter than that of the ring before."""
    room = min(request.max_tokens, ring.context - len(request.prompt))
    if done and room <= len(done):
        raise NoCapacity(
            f"The nodes that are left hold {ring.context} tokens; this answer has come to "
            f"{len(request.prompt) + len(done)}."
        )
    # The driver refuses a prompt that leaves no room for a token, and its error has the numbers.
    return replace(request, resume=tuple(done), max_tokens=max(room, 1))
