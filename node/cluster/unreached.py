"""Finds the nodes that advertise themselves, but that this node seems unable to call: the sign of a firewall."""

from collections.abc import Mapping
from dataclasses import replace

from node.cluster.agent import Agent
from node.core.clock import now
from node.core.nodes import Advert
from node.core.views import NodeState

PATIENCE_S = 10.0
"""A node that advertises itself is called within a second or two."""


class Unreached:
    def __init__(self, agent: Agent, adverts: Mapping[str, Advert]) -> None:
        self._agent = agent
        self._adverts = adverts
        self._heard: set[tuple[str, int]] = set()
        """Id and port of the nodes that were heard: if one is gone, its advert stays for an hour."""

    def find(self) -> tuple[Advert, ...]:
        """Adverts of nodes that were never heard, or that only call this one, with the addresses that may be called."""
        states = {peer.report.info.id: peer.state for peer in self._agent.view().peers}
        adverts = {(advert.hint.id, advert.hint.grpc_port): advert for advert in self._adverts.values()}
        never = [key for key in adverts if key[0] not in states and key not in self._heard]
        self._heard = {key for key in adverts if key[0] in states or key in self._heard}
        one_way = [
            key
            for key in adverts
            if states.get(key[0]) is NodeState.ALIVE and self._agent.book.paths.best(key[0], now()) is None
        ]
        return tuple(
            replace(adverts[key], hint=hint)
            for key in (*never, *one_way)
            if (hint := self._agent.book.hint_of(key[0])) and adverts[key].since <= now() - PATIENCE_S
        )
