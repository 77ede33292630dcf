"""Rings at which a model can be asked: found in the placement, demanded of the head, waited for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from node.cluster.agent import Agent
from node.cluster.contacts import Contacts
from node.cluster.readiness import driver_out_of_reach, usable_rings
from node.core.clock import now
from node.core.errors import ModelChanged, NotReady, PeerUnavailable
from node.core.types import Ring
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)


class Finder:
    def __init__(
        self, agent: Agent, contacts: Contacts, client: RpcClient, want_here: Callable[[str], Awaitable[None]]
    ) -> None:
        """`want_here` asks this node's own head, which refuses when it is not the cluster's."""
        self._agent = agent
        self._contacts = contacts
        self._client = client
        self._want_here = want_here

    def ready(self, model: str, revision: str) -> Sequence[Ring]:
        """Those of this moment."""
        return [ring for ring in usable_rings(self._agent.view(), model) if ring.revision == revision]

    async def wait(self, model: str, wait_s: float, revision: str | None = None) -> Sequence[Ring]:
        """One or more that are ready; of the revision, if one is given.

        Raises NotReady when there is none in time, ModelChanged when there are only rings of another revision,
        PeerUnavailable when they are out of this node's reach, and what the head says of a model that can't be served:
        ModelNotFound, NoCapacity, ModelBroken, ...
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
                    hint="Ask another node, and look at `cluster status` for what is between the two.",
                )
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


def _of_revision(rings: Sequence[Ring], revision: str | None) -> Sequence[Ring]:
    fitting = [ring for ring in rings if revision in (None, ring.revision)]
    if not fitting:
        raise ModelChanged(
            f"{rings[0].model} is served from revision {rings[0].revision}; this request began with {revision}.",
            hint="Send the request again.",
        )
    return fitting
