"""What a node logs of models that the head refuses."""

import logging

import pytest

from node.cluster.agent import Agent
from node.core.models import ModelVersion
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.rings import Fence, Placement, Refusal, Ring, StageSpec
from node.members.address_book import AddressBook

INFO = NodeInfo("a", 1, "a", "home", "1", 1, ("10.0.0.1",), 7001, 7002)
TRIED = Placement(Fence(1, 1), "a", (Ring("r", ModelVersion("m"), (StageSpec("a", 0, 1),), 512, 1),))


def refused(why: str) -> Placement:
    return Placement(Fence(1, 1), "a", refused=(Refusal("m", "hub_unavailable", why),))


async def test_a_model_that_fails_again_is_told_when_the_reason_changes(caplog: pytest.LogCaptureFixture) -> None:
    book = AddressBook("a", None, (), anywhere=True)  # type: ignore[arg-type]
    agent = Agent(INFO, 0, book, lambda: NodeReport(INFO, Memory(1, 1)), lambda _: None)
    for placement in (refused("one"), TRIED, refused("one"), TRIED, refused("two"), Placement(), refused("two")):
        agent.adopt(placement)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"placement: m: {why}" for why in ("one", "two", "two")], "at last it was not wanted meanwhile"


async def test_that_no_node_is_left_is_no_news_while_all_nodes_stop(caplog: pytest.LogCaptureFixture) -> None:
    book = AddressBook("a", None, (), anywhere=True)  # type: ignore[arg-type]
    agent = Agent(INFO, 0, book, lambda: NodeReport(INFO, Memory(1, 1)), lambda _: None)
    agent.set_draining(True)
    agent.adopt(refused("No node can hold layers now."))
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    agent.set_draining(False)
    agent.adopt(refused("No node can hold layers now."))
    assert [record for record in caplog.records if record.levelno == logging.WARNING]
