"""Measures the paths to the other nodes: the round trip to each address, and the bandwidth of the path in use."""

import asyncio
import logging
import math
from collections.abc import Sequence

from node.cluster.agent import Agent
from node.core.clock import LOOK_S, in_step, now
from node.core.errors import PippinError
from node.core.nodes import PeerHint
from node.core.reports import NodeReport
from node.core.retried import Retried
from node.core.views import PRESENT
from node.host.interfaces import interface_towards
from node.members.address_book import address_at
from node.members.membership import ANSWER_S
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

PROBE_S = 30.0
"""Interval of measurements, unless the addresses or the path in use have changed, as they do when something is plugged in. A
path that is lost is noticed by heartbeats if it is in use, and tried in vain if it is not.
"""


class Probes:
    def __init__(self, agent: Agent, client: RpcClient) -> None:
        self._agent = agent
        self._book = agent.book
        self._client = client
        self._measuring = asyncio.Lock()
        """Held by the measurement of a bandwidth: two at once would share this node's cable."""

    async def run(self, node: str) -> None:
        """Measure the paths to a node beside its heartbeats, which must not wait for an address that is silent."""
        probes = Retried(f"The measurement of the paths to node {node} failed")
        while self._agent.membership.state_of(node) is None:
            await self._agent.news.wait()
        seen: object = None
        due_at = -math.inf
        while hint := self._book.hint_of(node):
            best = self._book.paths.best(node, now())
            found = hint, best and best.address, self._agent.membership.state_of(node) in PRESENT
            with probes:
                if found != seen or now() >= due_at:
                    seen, due_at = found, now() + PROBE_S
                    await asyncio.gather(*(self._measure(hint, address) for address in hint.addresses))
                await self._measure_bandwidth(hint)
            await asyncio.sleep(in_step(LOOK_S))

    async def _measure(self, hint: PeerHint, address: str) -> None:
        peer = address_at(hint, address)
        try:
            # The least of three: the path's round trip, without delays on this machine.
            rtt_ms = min([await self._client.probe(peer, ANSWER_S) for _ in range(3)])
        except PippinError as error:
            log.debug("probe of %s: %s", peer, error)
            self._book.paths.failed(hint.id, address)
        else:
            interface = interface_towards(address, self._book.interfaces)
            name, kind = (interface.name, interface.kind) if interface else ("", "")
            self._book.paths.observe(hint.id, address, rtt_ms, now(), interface=name, kind=kind)

    async def _measure_bandwidth(self, hint: PeerHint) -> None:
        """Measure the path in use, if that is due and disturbs nobody."""
        address = self._book.paths.unmeasured(hint.id, now())
        if address is None or self._measuring.locked() or not is_quiet(self._agent.alive()):
            return
        async with self._measuring:
            try:
                rate = await self._client.bandwidth(address_at(hint, address), ANSWER_S)
            except PippinError as error:
                log.debug("bandwidth to %s: %s", address, error)
                rate = 0.0
            self._book.paths.observe_bandwidth(hint.id, address, rate, now())


def is_quiet(nodes: Sequence[NodeReport]) -> bool:
    """Whether no node has requests, and none is loading a model, which may come from another node."""
    busy = any(ring.running or ring.queued for node in nodes for ring in node.traffic)
    return not busy and not any(stage.loads for node in nodes for stage in node.stages)
