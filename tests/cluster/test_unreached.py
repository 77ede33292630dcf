"""Nodes that advertise themselves, but that this one seems unable to call."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.cluster.agent import Agent
from node.cluster.unreached import PATIENCE_S, Unreached
from node.core.clock import now
from node.core.nodes import Advert, Caller, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.views import NodeState
from node.host.interfaces import Interface
from node.members.address_book import AddressBook


def info(node: str) -> NodeInfo:
    return NodeInfo(node, 1, node, "home", "1", 1, (f"10.0.0.{ord(node)}",), 7001, 7002)


def hint(node: str) -> PeerHint:
    return PeerHint(node, info(node).addresses, 7001)


class Site:
    """The node "a", and the adverts that it hears."""

    def __init__(self) -> None:
        nobody = SimpleNamespace(drop=lambda peer: None)
        self.book = AddressBook("a", nobody, (Interface("en0", "ethernet", ("10.0.0.97",)),), anywhere=False)  # type: ignore[arg-type]
        self.agent = Agent(info("a"), 0, self.book, lambda: NodeReport(info("a"), Memory(1, 1)), lambda _: None)
        self.adverts: dict[str, Advert] = {}
        self.unreached = Unreached(self.agent, self.adverts)

    def advertise(self, node: str, age_s: float = PATIENCE_S) -> None:
        self.book.add_advert(hint(node))
        self.adverts[node] = Advert(node, hint(node), now() - age_s)

    def hear(self, node: str) -> None:
        self.agent.exchange(Heartbeat(NodeReport(info(node), Memory(1, 1))), Caller(info(node).addresses[0]))

    @property
    def found(self) -> list[str]:
        return [advert.name for advert in self.unreached.find()]


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_a_node_that_was_never_heard_is_unreached_after_a_while(site: Site) -> None:
    site.advertise("b", age_s=1.0)
    assert site.found == []
    site.adverts["b"] = replace(site.adverts["b"], since=now() - PATIENCE_S)
    assert site.found == ["b"]
    site.adverts.clear()
    assert site.found == [], "it has withdrawn its advert"


async def test_a_node_that_calls_but_cannot_be_called_is_unreached(site: Site) -> None:
    site.advertise("b")
    site.hear("b")
    assert site.agent.membership.state_of("b") is NodeState.ALIVE
    assert site.found == ["b"]
    site.book.paths.observe("b", "10.0.0.98", 0.4, now())
    assert site.found == []


async def test_the_advert_of_a_node_that_has_ended_says_nothing(site: Site) -> None:
    """It stays for an hour, and the node is forgotten earlier."""
    site.advertise("b")
    site.hear("b")
    site.agent.left("b", 1)
    assert site.agent.membership.state_of("b") is NodeState.LEFT
    assert site.found == []
    site.agent.membership._peers.clear()
    assert site.found == []
    site.adverts["b"] = replace(site.adverts["b"], hint=replace(hint("b"), grpc_port=7009))
    assert site.found == ["b"], "a process that was never heard"


async def test_a_node_that_may_not_be_called_is_no_finding(site: Site) -> None:
    """Without a secret, public addresses are not called."""
    site.adverts["b"] = Advert("b", PeerHint("b", ("8.8.8.8",), 7001), now() - PATIENCE_S)
    site.book.add_advert(site.adverts["b"].hint)
    assert site.found == []
