"""Any node finds the responses of another one, as long as that lives."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, Answer, Cluster, Node, until
from tests.strict import check_answer

pytestmark = pytest.mark.slow

GONE = "The node that kept it is gone"


@pytest.fixture(params=["open", "secret"])
def nodes(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> list[Node]:
    """The node that keeps responses, and two others; each has the whole model."""
    options = ["--model", MODEL, "--context", "1024", "--max-sessions", "4"]
    if request.param == "secret":
        file = tmp_path / "secret"
        file.write_text("correct horse battery staple\n")
        file.chmod(0o600)
        options += ["--secret-file", str(file)]
    nodes = cluster.start(3, *options)
    cluster.ready(*nodes)
    return nodes


def ask(node: Node, given: str, **more: Any) -> Answer:
    return node.post("/v1/responses", {"model": MODEL, "input": given, "temperature": 0, **more})


def call(node: Node, method: str, path: str) -> Answer:
    path = f"/v1/responses/{path}"
    with node.request(method, path) as response:
        answer = Answer(response.status, dict(response.headers), response.read())
    check_answer(method, path, answer.status, answer.headers.get("Content-Type", ""), answer.body)
    return answer


def events_in(lines: Iterable[bytes]) -> Iterator[bytes]:
    return (line for line in lines if line.startswith(b"data: "))


def test_a_response_is_found_by_any_node_until_its_keeper_is_gone(nodes: list[Node]) -> None:
    keeper, other, third = nodes
    body = {"model": MODEL, "input": "Hello", "temperature": 0, "stream": True}
    with keeper.request("POST", "/v1/responses", body) as response:
        events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
    made = events[-1]["response"]
    assert (events[-1]["type"], made["status"]) == ("response.completed", "completed")
    for node in (other, third):
        assert json.loads(call(node, "GET", made["id"]).body) == made
        assert (
            call(node, "GET", f"{made['id']}/input_items").body == call(keeper, "GET", f"{made['id']}/input_items").body
        )
    texts = [
        json.loads(ask(node, "Count from 1 to 10", previous_response_id=made["id"], max_output_tokens=8).body)["output"]
        for node in nodes
    ]
    assert len({each[0]["content"][0]["text"] for each in texts}) == 1

    body |= {"input": "Count from 1 to 100", "background": True}
    with keeper.request("POST", "/v1/responses", body) as response:
        told = [json.loads(line[6:]) for line in itertools.islice(events_in(response), 5)]
    begun = told[0]["response"]["id"]
    rests = [call(node, "GET", f"{begun}?stream=true&starting_after=4").body for node in nodes]
    assert len(set(rests)) == 1
    rest = [json.loads(line[6:]) for line in rests[0].split(b"\n") if line.startswith(b"data: ")]
    assert [event["sequence_number"] for event in told + rest] == list(range(len(told) + len(rest)))
    assert rest[-1]["type"] == "response.completed"
    whole = "".join(event["delta"] for event in told + rest if event["type"] == "response.output_text.delta")
    assert whole == rest[-1]["response"]["output"][0]["content"][0]["text"]

    begun = json.loads(ask(keeper, "Count from 1 to 100", background=True).body)
    until(lambda: json.loads(call(other, "GET", begun["id"]).body)["status"] == "completed", "it is done")
    assert call(third, "POST", f"{begun['id']}/cancel").body == call(keeper, "GET", begun["id"]).body
    assert json.loads(call(other, "DELETE", begun["id"]).body)["deleted"]
    assert {call(node, "GET", begun["id"]).status for node in nodes} == {404}

    keeper.kill()

    def is_gone() -> bool:
        answer = call(other, "GET", made["id"])
        assert answer.status in (404, 503), answer.body  # 503 until the cluster knows that the node has died
        return answer.status == 404 and GONE in json.loads(answer.body)["error"]["message"]

    until(is_gone, "the keeper is known to be gone")
    for method, path in (("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        assert call(other, method, f"{made['id']}{path}").status == 404
    refused = ask(other, "Again", previous_response_id=made["id"])
    error = json.loads(refused.body)["error"]
    assert (refused.status, error["code"]) == (400, "previous_response_not_found")
    assert GONE in error["message"]
