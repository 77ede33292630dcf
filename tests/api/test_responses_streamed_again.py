"""Background responses that are streamed: a client that loses its stream goes on from the last number, at any node."""

import asyncio
import json

import pytest
from openai.types.responses import Response

from api.http.stream import Sse
from api.responses import events
from api.responses.events import EventLog, EventLogs
from api.responses.keeper import KEEPER
from node.core.errors import PeerUnavailable, PippinError
from tests.api.conftest import MODEL, Answered, ScriptedPeers
from tests.api.test_responses import ask, ended, kinds, loading
from tests.strict import strictly

__all__ = ["loading"]  # fixture


@pytest.fixture
async def two(serve, backend):
    """The node that keeps responses, and one that is asked for them."""
    keeper = await serve()
    backend.peers = ScriptedPeers(backend, "b", a=keeper.app[KEEPER].answer)
    return keeper, await serve()


def read(body):
    blocks = [block for block in body.decode().split("\n\n")[:-1] if not block.startswith(":")]
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]


async def streamed(server, response_id, after=None):
    path = f"/v1/responses/{response_id}?stream=true" + ("" if after is None else f"&starting_after={after}")
    async with server.http.get(server.url + path) as answer:
        return Answered(answer.status, dict(answer.headers), await answer.read())


async def first_events(server, count, **body):
    """The first events of a stream that its client then drops."""
    given = {"model": MODEL, "input": "Hello", "background": True, "stream": True, **body}
    async with server.http.post(f"{server.url}/v1/responses", json=given) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        seen = b""
        while len(found := read(seen)) < count:
            seen += await answer.content.readany()
    return found


async def test_the_stream_of_a_background_response(server):
    answer = await ask(server, background=True, stream=True)
    told = read(answer.body)
    assert kinds(told)[:2] == ["created", "in_progress"]
    assert kinds(told)[-1] == "completed"
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    made = told[-1]["response"]
    assert strictly(Response, made).background
    assert (await streamed(server, made["id"])).body == answer.body
    for after in (0, 4, len(told) - 2):
        assert read((await streamed(server, made["id"], after)).body) == told[after + 1 :]
    assert (await streamed(server, made["id"], len(told) - 1)).body == b""
    assert (await ended(server, made["id"])).output_text == "Hello there!"


async def test_a_dropped_stream_goes_on_at_any_node(two):
    keeper, other = two
    keeper.backend.pause_at = 2
    begun = await first_events(keeper, 4)
    response_id, last = begun[0]["response"]["id"], begun[-1]["sequence_number"]
    rest = [asyncio.create_task(streamed(server, response_id, last)) for server in two]
    keeper.backend.go_on.set()
    here, there = [read((await each).body) for each in rest]
    assert here == there
    assert [event["sequence_number"] for event in begun + here] == list(range(len(begun) + len(here)))
    text = "".join(event["delta"] for event in begun + here if event["type"] == "response.output_text.delta")
    assert text == here[-1]["response"]["output"][0]["content"][0]["text"] == "Hello there!"
    assert read((await streamed(other, response_id)).body) == begun + here


async def test_the_official_client_resumes(server):
    """As OpenAI's guide on background mode shows it."""
    async with server.client() as client:
        cursor = None
        stream = await client.responses.create(model=MODEL, input="Hello", background=True, stream=True)
        async for event in stream:
            cursor = event.sequence_number
            if event.type == "response.created":
                response_id = event.response.id
            if cursor == 3:
                break
        await stream.close()
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=cursor)
        numbers, final = [], None
        async for event in rest:
            numbers.append(event.sequence_number)
            final = event
        assert numbers[0] == 4
        assert final.type == "response.completed"
        assert final.response.output_text == "Hello there!"


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_a_cancelled_response_ends_with_its_event(two, way):
    keeper, other = two
    keeper.backend.pause_at = 2
    begun = await first_events(keeper, 4)
    response_id = begun[0]["response"]["id"]
    rest = asyncio.create_task(streamed(other, response_id, 1))
    if way == "cancel":
        assert (await other.post(f"/v1/responses/{response_id}/cancel")).json["status"] == "cancelled"
        told = read((await rest).body)
        assert kinds(told)[-1] == "cancelled"
        assert strictly(Response, told[-1]["response"]).status == "cancelled"
        assert read((await streamed(keeper, response_id, told[-2]["sequence_number"])).body) == told[-1:]
    else:
        async with other.http.delete(f"{other.url}/v1/responses/{response_id}") as answer:
            assert answer.status == 200
        await rest
        assert (await streamed(other, response_id)).status == 404


async def test_a_queued_response_is_streamed(server, loading):
    begun = await first_events(server, 2)
    assert kinds(begun) == ["created", "queued"]
    loading.loaded.set()
    told = read((await streamed(server, begun[0]["response"]["id"])).body)
    assert kinds(told)[:3] == ["created", "queued", "in_progress"]
    assert kinds(told)[-1] == "completed"


async def test_a_failure_is_told(server):
    server.backend.failure = (2, PippinError("The stage would not let go."))
    told = read((await ask(server, background=True, stream=True)).body)
    assert kinds(told)[-1] == "failed"
    refused = await ask(server, "Hello " * 4000, background=True, stream=True)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")


async def test_what_has_no_events_is_refused(two):
    keeper, _ = two
    plain = (await ask(keeper)).json
    silent = (await ask(keeper, background=True)).json
    await ended(keeper, silent["id"])
    for server in two:
        for response_id in (plain["id"], silent["id"]):
            answer = await streamed(server, response_id)
            assert (answer.status, answer.error["param"]) == (400, "stream")
        assert (await streamed(server, plain["id"], "two")).error["param"] == "starting_after"
        assert (await streamed(server, plain["id"][:-1] + "x")).status == 404


async def test_a_node_that_dies_ends_the_streams_that_it_gave(two, monkeypatch):
    keeper, other = two
    keeper.backend.pause_at = 2
    begun = await first_events(keeper, 4)
    response_id = begun[0]["response"]["id"]

    async def broken(response_id, first):
        async for part in keeper.app[KEEPER].own_events(response_id, first):
            yield part
            raise PeerUnavailable("It is gone.")

    monkeypatch.setattr(other.backend.peers, "events", broken)
    told = read((await streamed(other, response_id, 1)).body)
    assert (told[-1]["type"], told[-1]["code"]) == ("error", "peer_unavailable")
    assert told[-1]["sequence_number"] == told[-2]["sequence_number"] + 1


async def test_old_events_make_room(server, monkeypatch):
    told = (await ask(server, background=True, stream=True)).body
    first = read(told)[0]["response"]["id"]
    monkeypatch.setattr(events, "MAX_EVENTS_BYTES", len(told) + 1000)
    last = read((await ask(server, background=True, stream=True)).body)[0]["response"]["id"]
    assert (await streamed(server, first)).status == 400
    assert (await streamed(server, last)).status == 200


@pytest.mark.parametrize("bound", ["MAX_RESPONSES", "MAX_EVENTS_BYTES"])
def test_events_of_one_client_drive_out_no_more_than_half(monkeypatch, bound):
    logs, event = EventLogs(), {"type": "a"}
    monkeypatch.setattr(events, bound, 4 * (1 if bound == "MAX_RESPONSES" else len(Sse().event(event))))
    logs.begin("running", "one")
    logs.add("running", [event], ended=False)
    for number in range(20):
        logs.begin(f"resp_{number}", "two")
        logs.add(f"resp_{number}", [event], ended=True)
    assert logs.get("running")
    assert [number for number in range(20) if logs.get(f"resp_{number}")] == [17, 18, 19]


async def test_a_reader_of_events_that_are_gone_is_told(monkeypatch):
    monkeypatch.setattr(events, "QUIET_S", 0.01)
    logs = EventLogs()
    logs.begin("resp_1", "one")
    log = logs.get("resp_1")
    assert isinstance(log, EventLog)
    parts = log.read(0)
    assert await anext(parts) == b""  # as nothing came for a while
    logs.add("resp_1", [{"type": "a"}], ended=False)
    assert await anext(parts) == b'event: a\ndata: {"type":"a"}\n\n'
    logs.drop("resp_1")
    with pytest.raises(PippinError, match="made room"):
        await anext(parts)
