"""Guessed tokens in flight: the same text with any prediction and with none, also when a stage dies meanwhile."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import MODEL, Cluster, Node, until

pytestmark = pytest.mark.slow

GREEDY: dict[str, Any] = {"content": "Count from 1 to 100", "max_tokens": 300}
SEEDED: dict[str, Any] = {"content": "Tell me a story.", "max_tokens": 120, "temperature": 1, "seed": 3}
PENALIZED = GREEDY | {"frequency_penalty": 0.5, "max_tokens": 60}
LETTERS = {"type": "array", "items": {"enum": ["a", "b", "é", "日本"]}, "minItems": 20, "maxItems": 20}
LONG = SEEDED | {"content": "Hello", "min_tokens": 60}
LIMITED = SEEDED | {"allowed_token_ids": list(range(300, 900)), "max_tokens": 60}
GUIDED = SEEDED | {
    "response_format": {"type": "json_schema", "json_schema": {"name": "letters", "schema": LETTERS}},
}


def predicted(text: str) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": text}}


def guesses(node: Node) -> dict[str, Any]:
    (model,) = node.status()["models"]
    counted: dict[str, Any] = model["rings"][0]["guesses"]
    return counted


@pytest.mark.parametrize("ask", [GREEDY, SEEDED, PENALIZED, GUIDED, LONG, LIMITED])
def test_guesses_change_no_text(three: Cluster, ask: dict[str, Any]) -> None:
    node = three.nodes[0]
    text = node.chat(**ask).text
    for prediction in (text, text.replace("e", "i").replace("1", "7"), "Something else. " * 20):
        answer = node.chat(**ask, **predicted(prediction))
        assert answer.text == text
        details = answer.json["usage"]["completion_tokens_details"]
        if prediction == text and ask in (GREEDY, SEEDED):  # penalties and grammars lead to other tokens for a text
            assert details["rejected_prediction_tokens"] <= 1  # the token that ends the answer is in none
            assert details["accepted_prediction_tokens"] > 20
    assert (
        node.chat(**ask, **predicted(text), logprobs=True).json["choices"]
        == (node.chat(**ask, logprobs=True).json["choices"])
    )


def right_guesses(nodes: Sequence[Node]) -> int:
    """As the driver counts them at this moment."""
    return counted_guesses(nodes, "right")


def counted_guesses(nodes: Sequence[Node], outcome: str) -> int:
    metrics = "".join(node.get("/metrics").body.decode() for node in nodes)
    counts = re.findall(rf'^pippin_ring_guesses_total{{outcome="{outcome}".* (\S+)$', metrics, re.MULTILINE)
    return sum(round(float(count)) for count in counts)


def test_a_prediction_is_guessed_and_the_status_tells_how_often_rightly(three: Cluster) -> None:
    node = three.nodes[1]
    text = node.chat(**GREEDY).text
    before = right_guesses(three.nodes)
    node.chat(**GREEDY, **predicted(text))
    after = right_guesses(three.nodes)
    assert after > before
    until(lambda: guesses(node)["made"] >= guesses(node)["right"] == after, "each node tells of all right guesses")


def test_what_a_grammar_forces_is_guessed(three: Cluster) -> None:
    names = ["temperature", "description", "location"]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}, "required": names}
    json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    before = right_guesses(three.nodes)
    answer = three.nodes[0].chat(**SEEDED, response_format=json_schema)
    assert sorted(json.loads(answer.text)) == sorted(names)
    assert right_guesses(three.nodes) > before


def test_a_death_with_guesses_in_flight_changes_nothing(cluster: Cluster) -> None:
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    gateway = cluster.launch("--model", MODEL, "--stages", "2", "--memory", "1MB", name="gateway").started()
    text = gateway.chat(**GREEDY).text
    for victim in (1, 0):  # the stage, and then the driver
        killed = cluster.ring(cluster.ready(*nodes, gateway, stages=2))[victim]
        before = right_guesses(nodes)
        with gateway.stream(**GREEDY, **predicted(text.replace("4", "3"))) as events:
            for count, _ in enumerate(events):
                if count == 60:
                    assert right_guesses(nodes) not in (0, before), "a ring counts from its beginning"
                    killed.kill()
            assert events.text == text
        nodes = [node for node in nodes if node is not killed] + cluster.start(1, "--model", MODEL, "--stages", "2")


def test_without_guesses(cluster: Cluster) -> None:
    node = cluster.start(2, "--model", MODEL, "--stages", "2", "--no-guesses")[0]
    cluster.ready(*cluster.nodes, stages=2)
    text = node.chat(**GREEDY).text
    assert node.chat(**GREEDY, **predicted(text)).text == text
    assert guesses(node) == {"made": 0, "right": 0, "accepted_share": None, "tau": None}
