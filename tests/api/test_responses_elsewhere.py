"""A response that another node keeps is found by its id."""

import json
from typing import Any

import pytest
from openai.types.responses import Response

from api.responses.keeper import KEEPER
from node.core.response_ids import Ask, keeper_of, new_response_id
from tests.api.conftest import MODEL, Answered, ScriptedPeers, Server
from tests.strict import strictly

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def two(serve, backend) -> tuple[Server, Server]:
    """The node that keeps responses, and one that is asked for them."""
    keeper = await serve()
    backend.peers = ScriptedPeers(backend, "b", a=keeper.app[KEEPER].answer)
    return keeper, await serve()


async def ask(server: Server, given: Any = "Hello", **more: Any) -> Answered:
    return await server.post("/v1/responses", {"model": MODEL, "input": given, **more})


async def call(server: Server, method: str, path: str) -> Answered:
    async with server.http.request(method, f"{server.url}/v1/responses/{path}") as answer:
        return Answered(answer.status, dict(answer.headers), await answer.read())


async def test_any_node_shows_what_the_keeper_shows(two):
    keeper, other = two
    first = (await ask(keeper, instructions="Be kind.", metadata={"a": "b"})).json
    made = (await ask(keeper, "Again", previous_response_id=first["id"])).json
    for path in (made["id"], f"{made['id']}/input_items", f"{made['id']}/input_items?limit=1&order=asc"):
        here, there = await call(keeper, "GET", path), await call(other, "GET", path)
        assert (there.status, there.body) == (here.status, here.body) == (200, there.body)


async def test_any_node_continues_a_response(two):
    keeper, other = two
    first = (await ask(keeper, "One")).json
    second = (await ask(other, "Two", previous_response_id=first["id"])).json
    assert keeper_of(first["id"]) != keeper_of(second["id"])
    third = (await ask(keeper, "Two", previous_response_id=first["id"])).json
    *_, there, here = keeper.backend.requests
    assert there.prompt == here.prompt
    assert {each["output"][0]["content"][0]["text"] for each in (second, third)} == {"Hello there!"}


async def test_calls_and_their_results_go_along(two, backend):
    keeper, other = two
    backend.say('{"at": "ä"}')
    first = (await ask(keeper, "Look", tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False)).json
    (made,) = [item for item in first["output"] if item["type"] == "function_call"]
    result = [{"type": "function_call_output", "call_id": made["call_id"], "output": "a tree"}]
    prompts = []
    for server in (keeper, other):
        assert (await ask(server, result, previous_response_id=first["id"], tools=[FUNCTION])).status == 200
        prompts.append(backend.requests[-1].prompt)
    assert prompts[0] == prompts[1]


async def test_any_node_cancels_and_deletes_a_response(two):
    keeper, other = two
    keeper.backend.pause_at = 2
    begun = (await ask(keeper, background=True)).json
    await keeper.backend.paused.wait()
    assert (await call(other, "GET", begun["id"])).json["status"] == "in_progress"
    continued = await ask(other, previous_response_id=begun["id"])
    assert continued.error["code"] == "previous_response_not_found"
    assert strictly(Response, (await call(other, "POST", f"{begun['id']}/cancel")).json).status == "cancelled"
    assert keeper.backend.running == 0
    keeper.backend.pause_at = None
    assert (await call(other, "DELETE", begun["id"])).json["deleted"]
    for server in (keeper, other):
        gone = await call(server, "GET", begun["id"])
        assert (gone.status, gone.error["code"]) == (404, "not_found")
    plain = (await ask(keeper)).json
    refused = await call(other, "POST", f"{plain['id']}/cancel")
    assert (refused.status, refused.body) == (400, (await call(keeper, "POST", f"{plain['id']}/cancel")).body)


async def test_a_response_of_a_node_that_is_gone_is_not_found_and_the_hint_says_why(two):
    _, other = two
    lost = new_response_id("c" * 53)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        answer = await call(other, method, f"{lost}{path}")
        assert (answer.status, answer.error["code"]) == (404, "not_found")
        assert "The node that kept it is gone" in answer.error["message"]
    answer = await ask(other, previous_response_id=lost)
    assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")
    assert "The node that kept it is gone" in answer.error["message"]


@pytest.mark.parametrize(
    "response_id",
    ["resp_1", "resp_" + "A" * 48, "b" * 53, "resp_" + "b" * 16 + "0" * 31, "resp_" + "b" * 17 + "0" * 32],
)
async def test_what_names_no_node_is_looked_for_here(two, response_id):
    _, other = two
    answer = await call(other, "GET", response_id)
    assert (answer.status, answer.error["message"]) == (404, f"Response with id '{response_id}' not found.")


async def test_the_size_that_another_node_tells_is_no_less_than_what_it_sent(serve, backend):
    keeper = await serve()

    async def answer(asked: Ask, response_id: str) -> bytes:
        sent = json.loads(await keeper.app[KEEPER].answer(asked, response_id))
        return json.dumps(sent | {"bytes": 0}).encode()

    backend.peers = ScriptedPeers(backend, "b", a=answer)
    other = await serve()
    made = (await ask(keeper, "x" * 2000)).json
    assert (await other.app[KEEPER].ask(Ask.GET, made["id"])).bytes > 2000


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: {"response": sent["response"]},
        lambda sent: sent | {"response": sent["response"] | {"id": "resp_other"}},
        lambda sent: sent | {"response": {"id": sent["response"]["id"]}},
        lambda sent: sent | {"input": [{"type": "message", "role": "nobody", "content": "x"}]},
        lambda sent: sent | {"before": [["nested"]]},
        lambda sent: sent | {"bytes": -1},
        lambda sent: [sent],
        lambda sent: "x" + "[" * 500,
    ],
)
async def test_a_node_that_sends_something_else_harms_nobody(serve, backend, change):
    keeper = await serve()

    async def answer(asked: Ask, response_id: str) -> bytes:
        sent = change(json.loads(await keeper.app[KEEPER].answer(asked, response_id)))
        return sent[1:].encode() if isinstance(sent, str) else json.dumps(sent).encode()

    backend.peers = ScriptedPeers(backend, "b", a=answer)
    other = await serve()
    made = (await ask(keeper)).json
    for refused in (await call(other, "GET", made["id"]), await ask(other, previous_response_id=made["id"])):
        assert refused.error["code"] == "incompatible"
        assert "has sent something else" in refused.error["message"]
