"""Requests on their way through the cluster: each asks a ring, and another one when that is full or lost."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from node.cluster.agent import Agent
from node.cluster.contacts import Contacts
from node.core.clock import now
from node.core.errors import NoCapacity, Overloaded, PeerUnavailable, PippinError, RingLost, StaleFence
from node.core.evaluation import EvaluateRequest, Evaluation
from node.core.generation import GenerateRequest, TokenEvent
from node.core.types import Address, NodeState, Ring
from node.gateway.affinity import Router
from node.gateway.finding import Finder
from node.ring.lifecycle import Rings
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

OPEN_WAIT_S = 60.0
"""A first request waits this long for its model to load; then the client is told to come back."""
RECOVER_WAIT_S = 30.0
"""A running request waits this long for its ring to be replaced."""
FRUITLESS_TRIES = 5
"""A request that is taken up more often, and for `RECOVER_WAIT_S`, without a new token is not going to succeed: it may be
what ends its rings. A link that comes and goes for some seconds costs none.
"""
ELSEWHERE = (Overloaded, RingLost, PeerUnavailable, StaleFence)
"""What one ring says, and another one may not."""


@dataclass(slots=True)
class Tries:
    """The rings that one request was not served by."""

    full: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    fruitless: int = 0
    """How often it was to no avail since the last new token, and since when."""
    since: float = 0.0

    def others(self, rings: Sequence[Ring]) -> list[Ring]:
        return [ring for ring in rings if ring.id not in self.full | self.lost]


class Requests:
    """Those of one gateway."""

    def __init__(self, agent: Agent, contacts: Contacts, rings: Rings, client: RpcClient, finder: Finder) -> None:
        self._agent = agent
        self._contacts = contacts
        self._rings = rings
        self._client = client
        self._finder = finder
        self._router = Router()
        self.recoveries = 0
        """How often one lost its ring."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields each token once. When the ring is lost on the way, goes on with another, from the tokens there are."""
        done: list[int] = []
        tries = Tries()
        while True:
            ring = await self._ring(request, tries)
            before = len(done)
            try:
                async with aclosing(self._events(ring, _resumed(request, done, ring))) as events:
                    async for event in events:
                        done.append(event.token)
                        yield event
                        if event.finish:
                            return
                raise RingLost("The driver ended the stream early.")
            except ELSEWHERE as error:
                tries.fruitless = 0 if len(done) > before else tries.fruitless
                self._note(error, ring, request, tries)
            await self._pause(request, tries)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """When the ring is lost on the way, asks another one for the whole."""
        tries = Tries()
        while True:
            ring = await self._ring(request, tries)
            try:
                return await self._evaluation(ring, request)
            except ELSEWHERE as error:
                self._note(error, ring, request, tries)
            await self._pause(request, tries)

    async def _ring(self, request: GenerateRequest | EvaluateRequest, tries: Tries) -> Ring:
        """The one to ask; not one that was tried before, if there are others."""
        wait_s = RECOVER_WAIT_S if tries.lost else OPEN_WAIT_S
        ready = await self._finder.wait(request.model, wait_s, request.revision)
        view = self._agent.view()
        reports = [peer.report for peer in view.peers]
        loads = {load.ring: load.running + load.queued for report in reports for load in report.rings}
        suspect = {peer.report.info.id for peer in view.peers if peer.state is not NodeState.ALIVE}
        return self._router.choose(tries.others(ready) or ready, request.prompt, loads, now(), suspect)

    def _note(self, error: PippinError, ring: Ring, request: GenerateRequest | EvaluateRequest, tries: Tries) -> None:
        """That a ring did not serve a request. Raises the error if there is no sense in another try.

        A request that was taken once is not refused because the other rings are full: it waits for a place.
        """
        if isinstance(error, Overloaded):
            tries.full.add(ring.id)
            if tries.others(self._finder.ready(request.model, request.revision)):
                return
            if not tries.lost:
                raise error
        else:
            log.warning("request %s lost its ring: %s", request.id, error)
            self.recoveries += 1
            tries.lost.add(ring.id)
        tries.since = tries.since if tries.fruitless else now()
        tries.fruitless += 1
        if tries.fruitless > FRUITLESS_TRIES and now() - tries.since > RECOVER_WAIT_S:
            raise error

    async def _pause(self, request: GenerateRequest | EvaluateRequest, tries: Tries) -> None:
        """Until another try is worth it: as soon as there is another ring.

        Else with the same one: the first time at any news, then later and later, as news come many a second.
        """
        first, deadline = tries.fruitless <= 1, now() + max(tries.fruitless - 1, 1)
        while not tries.others(self._finder.ready(request.model, request.revision)):
            if not await self._agent.changed.wait(deadline - now()) or first:
                return

    # --- one try ------------------------------------------------------------------------------------------------------

    def _events(self, ring: Ring, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        if ring.driver == self._agent.info.id:
            return self._rings.generate(ring.id, request)
        return self._client.generate(self._driver_address(ring), ring.id, request)

    async def _evaluation(self, ring: Ring, request: EvaluateRequest) -> Evaluation:
        if ring.driver == self._agent.info.id:
            return await self._rings.evaluate(ring.id, request)
        return await self._client.evaluate(self._driver_address(ring), ring.id, request)

    def _driver_address(self, ring: Ring) -> Address:
        address = self._contacts.address_of(ring.driver)
        if address is None:
            raise PeerUnavailable(f"No address of the driver {ring.driver} is known.")
        return address


def _resumed(request: GenerateRequest, done: Sequence[int], ring: Ring) -> GenerateRequest:
    """What is left of a request for a ring, whose context may be shorter than the one that the request was made for."""
    room = min(request.max_tokens, ring.context - len(request.prompt))
    if done and room <= len(done):
        raise NoCapacity(
            f"The nodes that are left hold {ring.context} tokens; this answer has come to "
            f"{len(request.prompt) + len(done)}."
        )
    # Without room for one token the driver refuses it, in numbers.
    return replace(request, resume=tuple(done), max_tokens=max(room, 1))
