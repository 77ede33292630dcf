"""Measures the paths to the other nodes: the round trip to each address, and the bandwidth of the path in use."""

import asyncio
import logging
import math

from node.cluster.agent import Agent
from node.cluster.rhythm import is_quiet
from node.core.clock import in_step, now
from node.core.errors import PippinError
from node.core.nodes import PeerHint
from node.core.retried import Retried
from node.core.views import PRESENT
from node.host.interfaces import interface_towards
from node.members.address_book import AddressBook, address_at
from node.rpc.client import RpcClient

log = logging.getLogger(__name__)

PROBE_S = 5.0
"""Interval at which each address is measured after the addresses or the path in use have changed, or its round trip has become
longer, and least interval.
"""
LONGER = 2.0
"""A round trip is measured again soon if it is longer than before by this factor: perhaps a busy machine has delayed it."""
SOFTWARE_MS = 1.0
"""Share of two processes in a round trip: differences between shorter ones do not matter."""
RARELY_S = 30.0
"""Longest interval: it grows fourfold with each measurement. What is plugged in usually changes an address; a path that is lost is
noticed by heartbeats if it is in use, and tried in vain if it is not.
"""
RESTING_S = 300.0
"""The same for a node that rests: of many nodes, probes would cost more than all else."""
PROBE_TIMEOUT_S = 1.0
FIRST_S = 0.5
"""Interval at which a node that was never heard is looked at."""


class Probes:
    def __init__(self, agent: Agent, book: AddressBook, client: RpcClient) -> None:
        self._agent = agent
        self._book = book
        self._client = client
        self._measuring = asyncio.Lock()
        """Held by the measurement of a bandwidth: two at once would share this node's cable."""

    async def run(self, node: str) -> None:
        """Measure the paths to a node as long as it is in the address book.

        Runs beside the heartbeats, which must not wait for an address that does not answer.
        """
        probes = Retried(f"The measurement of the paths to node {node} failed")
        while self._agent.state_of(node) is None:
            await self._agent.news.wait(FIRST_S)
        seen: object = None
        interval_s, measured_at, usual_ms = 0.0, -math.inf, math.inf
        while hint := self._book.hint_of(node):
            best = self._book.paths.best(node, now())
            found = hint, best and best.address, self._agent.state_of(node) in PRESENT
            rtt_ms = max(SOFTWARE_MS, best.rtt_ms) if best else math.inf
            if found != seen or (best and rtt_ms > LONGER * usual_ms):
                seen, interval_s, usual_ms = found, 0.0, rtt_ms
            usual_ms = min(usual_ms, rtt_ms)
            longest_s = RESTING_S if self._agent.rests(node) else RARELY_S
            with probes:
                if now() >= measured_at + min(interval_s, longest_s):
                    await asyncio.gather(*(self._measure(hint, address) for address in hint.addresses))
                    measured_at, interval_s = now(), max(PROBE_S, min(4 * interval_s, longest_s))
                await self._measure_bandwidth(hint)
            await asyncio.sleep(in_step(PROBE_S))

    async def _measure(self, hint: PeerHint, address: str) -> None:
        peer = address_at(hint, address)
        try:
            # The least of three: the path's round trip, without delays on this machine.
            rtt_ms = min([await self._client.probe(peer, PROBE_TIMEOUT_S) for _ in range(3)])
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
                rate = await self._client.bandwidth(address_at(hint, address), PROBE_TIMEOUT_S)
            except PippinError as error:
                log.debug("bandwidth to %s: %s", address, error)
                rate = 0.0
            self._book.paths.observe_bandwidth(hint.id, address, rate, now())
