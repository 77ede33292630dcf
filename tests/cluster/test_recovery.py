"""A stream outlives the nodes of its ring."""

import json
import signal
from typing import Any

import jsonschema
import pytest

from tests.conftest import MODEL, Cluster, Node

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"content": "Count from 1 to 100", "max_tokens": 300}


LETTERS = {"type": "array", "items": {"enum": ["a", "b", "é", "日本"]}, "minItems": 60, "maxItems": 60}
GUIDED: dict[str, Any] = {
    "content": "Letters",
    "temperature": 1,
    "seed": 7,
    "response_format": {"type": "json_schema", "json_schema": {"name": "letters", "schema": LETTERS}},
}


def through_a_loss(gateway: Node, victim: Node, number: signal.Signals, body: dict[str, Any] = LONG) -> str:
    """The text of a stream through a gateway, while another node is lost in the middle of it."""
    with gateway.stream(**body) as events:
        reading = iter(events)
        for _ in range(30):
            next(reading)
        victim.signal(number)
        victim.wait(5)
        return events.rest()


def driver_of(nodes: list[Node], status: dict[str, Any]) -> Node:
    driver = status["models"][0]["rings"][0]["driver"]
    name = next(node["name"] for node in status["nodes"] if node["id"] == driver)
    return next(node for node in nodes if node.name == name)


@pytest.fixture
def ring(cluster: Cluster) -> tuple[Node, Node, Node]:
    """The gateway, the driver and a third node, which split a model."""
    nodes = cluster.start(3, "--model", MODEL, "--stages", "3")
    driver = driver_of(nodes, cluster.ready(*nodes))
    gateway, third = (node for node in nodes if node is not driver)
    return gateway, driver, third


def test_a_stream_outlives_a_stage_and_then_its_driver(
    cluster: Cluster, ring: tuple[Node, Node, Node], stock: dict[str, str]
) -> None:
    gateway, driver, third = ring
    assert through_a_loss(gateway, third, signal.SIGKILL) == stock[LONG["content"]]
    left = [gateway, driver]
    driver = driver_of(left, cluster.ready(*left))
    gateway = next(node for node in left if node is not driver)
    assert through_a_loss(gateway, driver, signal.SIGKILL) == stock[LONG["content"]]
    cluster.ready(gateway)


def test_a_stream_outlives_nodes_that_say_goodbye(
    cluster: Cluster, ring: tuple[Node, Node, Node], stock: dict[str, str]
) -> None:
    gateway, driver, third = ring
    assert through_a_loss(gateway, driver, signal.SIGTERM) == stock[LONG["content"]]
    cluster.ready(gateway, third)
    assert through_a_loss(gateway, third, signal.SIGINT) == stock[LONG["content"]]
    cluster.ready(gateway)


def test_an_answer_that_follows_a_grammar_outlives_its_driver(cluster: Cluster) -> None:
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    driver = driver_of(nodes, cluster.ready(*nodes))
    gateway = next(node for node in nodes if node is not driver)
    undisturbed = gateway.streamed(**GUIDED)
    assert through_a_loss(gateway, driver, signal.SIGKILL, GUIDED) == undisturbed
    jsonschema.validate(json.loads(undisturbed), LETTERS)
