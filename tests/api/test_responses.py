"""The Responses API: with the official client, every event in its order, and the stored responses."""

import asyncio
import json
from contextlib import aclosing

import aiohttp
import openai
import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from api.chat.reader import CallDelta
from api.chat.schema import parse
from api.http.in_flight import IN_FLIGHT
from api.http.stream import StreamTiming
from api.responses import background
from api.responses.items import items_of, messages_of
from api.responses.keeper import KEEPER
from api.responses.output import ResponseOutput
from api.responses.schema import ResponseRequest
from api.responses.store import ResponseStore, StoredResponse
from node.core.errors import NotReady, Overloaded, PippinError, RingLost
from node.core.generation import Sampling
from tests.strict import strictly

MODEL = "pippin/demo"
EVENTS = TypeAdapter(ResponseStreamEvent)


async def ask(server, text="Hello", /, **body):
    return await server.post("/v1/responses", {"model": MODEL, "input": text, **body})


def events_of(answer):
    """The events of a stream; the name, number and type of each are checked."""
    *blocks, end = answer.body.decode().split("\n\n")
    assert end == ""
    events = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        strictly(type(EVENTS.validate_python(event, strict=True)), event)
        events.append(event)
    return events


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


# --- plain ---


async def test_a_plain_response_is_what_openai_would_send(server):
    server.backend.cached = 3
    answer = await ask(server, instructions="Be kind.", metadata={"a": "b"}, user="me", max_output_tokens=50)
    response = strictly(Response, answer.json)
    assert response.id.startswith("resp_")
    assert (response.object, response.status, response.model) == ("response", "completed", MODEL)
    assert (response.error, response.incomplete_details) == (None, None)
    assert (response.instructions, response.metadata, response.user) == ("Be kind.", {"a": "b"}, "me")
    assert (response.temperature, response.top_p, response.max_output_tokens) == (1, 1, 50)
    assert (response.tool_choice, response.tools, response.parallel_tool_calls) == ("auto", [], True)
    assert response.output_text == "Hello there!"
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.id.startswith("msg_")
    (request,) = server.backend.requests
    made = len(server.backend.model.tokenizer.encode("Hello there!")) + 1
    assert answer.json["usage"] == {
        "input_tokens": len(request.prompt),
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(request.prompt) + made,
    }


async def test_it_is_asked_as_a_chat(server):
    await ask(server, [{"role": "user", "content": "Hello"}], instructions="Be kind.", temperature=0.5, seed=7, top_k=3)
    await server.post(
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
            "temperature": 0.5,
            "seed": 7,
            "top_k": 3,
        },
    )
    one, other = server.backend.requests
    assert (one.prompt, one.sampling, one.max_tokens) == (other.prompt, other.sampling, other.max_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_is_cut(server, stream):
    server.backend.say("one two three four five six seven")
    answer = await ask(server, max_output_tokens=3, stream=stream)
    if stream:
        events = events_of(answer)
        assert kinds(events)[-1] == "incomplete"
        response = strictly(Response, events[-1]["response"])
    else:
        response = strictly(Response, answer.json)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.usage.output_tokens == 3


@pytest.mark.slow
async def test_log_probabilities(server):
    answer = await ask(server, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = strictly(Response, answer.json).output[0].content
    assert "".join(entry.token for entry in part.logprobs) == "Hello there!"
    assert {len(entry.top_logprobs) for entry in part.logprobs} == {2}
    streamed = events_of(await ask(server, include=["message.output_text.logprobs"], top_logprobs=2, stream=True))
    deltas = [event for event in streamed if event["type"] == "response.output_text.delta"]
    told = [(entry["token"], entry["logprob"]) for event in deltas for entry in event["logprobs"]]
    assert told == [(entry.token, entry.logprob) for entry in part.logprobs]
    assert streamed[-1]["response"]["output"][0]["content"][0] == part.model_dump(exclude_none=True)
    assert (await ask(server, top_logprobs=2)).json["output"][0]["content"][0]["logprobs"] == []


# --- streams ---


async def test_a_stream_is_what_openai_would_send(server):
    answer = await ask(server, stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = events_of(answer)
    names = kinds(events)
    deltas = names.count("output_text.delta")
    assert deltas > 1
    assert names == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert "".join(event["delta"] for event in events if "delta" in event) == "Hello there!"
    assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"
    assert (events[0]["response"]["output"], events[0]["response"]["usage"]) == ([], None)
    assert (events[2]["item"]["status"], events[2]["item"]["content"]) == ("in_progress", [])
    assert events[3]["part"]["text"] == ""
    assert events[-4]["text"] == events[-3]["part"]["text"] == "Hello there!"
    whole = events[-1]["response"]
    assert whole["output"] == [events[-2]["item"]]
    assert {event["response"]["id"] for event in events if "response" in event} == {whole["id"]}
    assert {event["item_id"] for event in events if "item_id" in event} == {whole["output"][0]["id"]}
    plain = (await ask(server)).json
    assert whole["usage"] == plain["usage"]
    assert whole.keys() == plain.keys()


async def test_input_tokens_are_counted_without_an_answer(server):
    """With what a response before adds, and its own instructions; nothing is kept."""
    first = (await ask(server, "Hello")).json
    async with server.client() as official:
        asked = {"model": MODEL, "input": "And then?", "instructions": "Be kind.", "previous_response_id": first["id"]}
        counted = await official.responses.input_tokens.count(**asked)
        assert len(server.backend.requests) == 1
        answer = await official.responses.create(**asked)
    assert counted.input_tokens == answer.usage.input_tokens > first["usage"]["input_tokens"]
    wrong = await server.post("/v1/responses/input_tokens", {"model": MODEL, "input": 5})
    assert (wrong.status, wrong.error["param"]) == (400, "input")
    refused = await server.post("/v1/responses/compact", {"model": MODEL, "input": "x"})
    assert (refused.status, refused.error["code"]) == (404, "unsupported")


async def test_a_websocket_is_refused_by_name(server):
    """As Codex asks for one, at providers that are said to have it."""
    headers = {"OpenAI-Beta": "responses_websockets=2026-02-06"}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await server.http.ws_connect(f"{server.url}/v1/responses", headers=headers)
    assert refused.value.status == 404
    asked = {"Connection": "Upgrade", "Upgrade": "websocket"}
    async with server.http.get(f"{server.url}/v1/responses", headers=asked) as response:
        assert (await response.json())["error"]["code"] == "unsupported"
    async with server.http.get(f"{server.url}/v1/responses") as response:
        assert response.status == 405


async def test_the_official_client(server):
    async with server.client() as client:
        async with client.responses.stream(model=MODEL, input="Hello") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.type for event in events][-1] == "response.completed"
        snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
        assert snapshots[-1] == final.output_text == "Hello there!"
        got = await client.responses.retrieve(final.id)
        assert got.output_text == "Hello there!"
        assert got.to_dict() == {**final.to_dict(), "output": got.to_dict()["output"]}
        items = [item async for item in client.responses.input_items.list(final.id)]
        assert [item.content[0].text for item in items] == ["Hello"]
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await client.responses.cancel(final.id)
        await client.responses.delete(final.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(final.id)
        made = await client.responses.create(model=MODEL, input="Hello", stream=True)
        assert "response.completed" in [event.type async for event in made]


async def test_a_refusal_comes_before_a_stream(server):
    server.backend.refusal = Overloaded("The queue is full.")
    answer = await ask(server, stream=True)
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize(("at", "opened"), [(0, False), (2, True)])
async def test_a_failure_after_the_beginning(serve, server, at, opened):
    server.backend.failure = (at, RingLost("A node went away."))
    answer = await ask(server, stream=True)
    if not opened:
        assert (answer.status, answer.error["code"]) == (503, "ring_lost")
        return
    events = events_of(answer)
    assert kinds(events)[-2:] == ["output_item.done", "failed"]
    failed = strictly(Response, events[-1]["response"])
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert failed.error.message == "A node went away."
    assert (await get(server, failed.id))["status"] == "failed"


async def test_a_client_that_hangs_up_frees_its_place(server):
    server.backend.pause_at = 2
    async with server.http.post(f"{server.url}/v1/responses", json={"model": MODEL, "input": "x", "stream": True}):
        await server.backend.paused.wait()
    await server.backend.idle.wait()
    assert server.backend.running == 0


# --- conversations ---


async def test_a_response_goes_on_from_the_one_before(server, tokenizer):
    first = (await ask(server, "My name is Ann.", instructions="Be kind.")).json
    second = (await ask(server, "Who am I?", previous_response_id=first["id"], instructions="Be brief.")).json
    third = (await ask(server, "And now?", previous_response_id=second["id"])).json
    assert third["previous_response_id"] == second["id"]
    turns = ["My name is Ann.", "Hello there!", "Who am I?", "Hello there!", "And now?"]
    messages = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(turns)]
    _, two, three = server.backend.requests
    assert two.prompt == tuple(tokenizer.encode_chat([{"role": "system", "content": "Be brief."}, *messages[:3]]))
    assert three.prompt == tuple(tokenizer.encode_chat(messages))  # instructions apply to one response only


async def test_two_may_go_on_from_the_same(server):
    first = (await ask(server, "One")).json
    for text in ("Two", "Other two"):
        assert (await ask(server, text, previous_response_id=first["id"])).status == 200
    _, two, other = server.backend.requests
    assert two.prompt != other.prompt


async def test_what_is_not_stored_is_not_found(server):
    response = (await ask(server, store=False)).json
    later = await ask(server, previous_response_id=response["id"])
    assert later.status == 400
    assert (later.error["code"], later.error["param"]) == ("previous_response_not_found", "previous_response_id")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        async with server.http.request(method, f"{server.url}/v1/responses/{response['id']}{path}") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_items_say_the_same_as_messages():
    items = items_of(
        [
            {"role": "developer", "content": "Use tools."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hel"}, {"type": "input_text", "text": "lo"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "look", "arguments": '{"at": 1}', "id": "fc_2"},
            {"type": "function_call_output", "call_id": "c1", "output": "a"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": []},
        ]
    )
    assert [item["id"] for item in items][5] == "fc_2"
    assert len({item["id"] for item in items}) == len(items)
    calls = [("c1", "{}"), ("c2", '{"at": 1}')]
    assert messages_of("Be kind.", items) == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "I look.",
            "tool_calls": [
                {"id": call, "type": "function", "function": {"name": "look", "arguments": arguments}}
                for call, arguments in calls
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
        {"role": "tool", "tool_call_id": "c2", "content": "b"},
    ]


async def test_an_item_may_be_named(server):
    first = (await ask(server, "One")).json
    named = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert (await ask(server, [named, {"role": "user", "content": "Two"}])).status == 200
    missing = await ask(server, [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_none"}])
    assert (missing.status, missing.error["param"]) == (400, "input[1].id")


async def test_input_items(server):
    texts = ["a", "b", "c"]
    made = (await ask(server, [{"role": "user", "content": text} for text in texts])).json

    async def page(**query):
        async with server.http.get(f"{server.url}/v1/responses/{made['id']}/input_items", params=query) as answer:
            assert answer.status == 200
            return strictly(ResponseItemList, await answer.json())

    whole = await page(order="asc")
    assert [item.content[0].text for item in whole.data] == texts
    assert not whole.has_more
    first = await page(limit=2)
    assert [item.content[0].text for item in first.data] == ["c", "b"]
    assert first.has_more
    rest = await page(limit=2, after=first.last_id)
    assert [item.content[0].text for item in rest.data] == ["a"]
    for query in ({"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "none"}):
        async with server.http.get(f"{server.url}/v1/responses/{made['id']}/input_items", params=query) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["param"] == next(iter(query))


# --- bounds ---


def kept(number, size=0, client=""):
    item = {"id": f"msg_{number}", "text": "x" * size}
    return StoredResponse.after(None, {"id": f"resp_{number}", "output": []}, (item,), 100 + size, client)


def test_the_least_recently_used_is_forgotten():
    store = ResponseStore(max_responses=2)
    for number in (1, 2):
        store.add(kept(number))
    store.get("resp_1")
    store.add(kept(3))
    assert [name for name in ("resp_1", "resp_2", "resp_3") if holds(store, name)] == ["resp_1", "resp_3"]


def test_bytes_are_bounded_and_freed():
    store = ResponseStore(max_bytes=3 * kept(1, 1000).bytes)
    for number in range(10):
        store.add(kept(number, 1000))
    assert [number for number in range(10) if holds(store, f"resp_{number}")] == [7, 8, 9]
    store.add(kept(10, 5000))
    assert not holds(store, "resp_10")
    for number in (7, 8, 9):
        store.delete(f"resp_{number}")
    store.add(kept(11, 2000))
    assert store.items({"msg_9", "msg_11"}, "") == {"msg_11": kept(11, 2000).input[0]}


@pytest.mark.parametrize("bound", [{"max_responses": 4}, {"max_bytes": 4 * kept(1, 1000).bytes}])
def test_one_client_drives_out_no_more_than_half(bound):
    store = ResponseStore(**bound)
    for number in (1, 2):
        store.add(kept(number, 1000, "one"))
    for number in range(3, 20):
        store.add(kept(number, 1000, "two"))
    assert [number for number in range(20) if holds(store, f"resp_{number}")] == [1, 2, 18, 19]
    store.add(kept(20, 1000, "one"))
    assert [number for number in range(21) if holds(store, f"resp_{number}")] == [2, 18, 19, 20]


async def test_an_item_that_two_clients_name_alike(serve, backend):
    server = await serve(api_keys=["one", "two"])

    async def ask_as(key, given):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        data = json.dumps({"model": MODEL, "input": [given]}).encode()
        assert (await server.post("/v1/responses", data=data, headers=headers)).status == 200
        return backend.model.tokenizer.decode(backend.requests[-1].prompt)

    for key in ("one", "two"):
        await ask_as(key, {"id": "msg_1", "type": "message", "role": "user", "content": f"This is of {key}."})
    for key in ("one", "two", "one"):
        assert f"This is of {key}." in await ask_as(key, {"id": "msg_1", "type": "item_reference"})


def test_a_conversation_counts_as_a_whole():
    first = kept(1, 1000)
    second = StoredResponse.after(first, {"id": "resp_2", "output": [{"id": "msg_a"}]}, ({"id": "msg_b"},), 100)
    assert [item["id"] for item in second.history] == ["msg_1", "msg_b", "msg_a"]
    assert second.bytes > first.bytes > 1000


def holds(store, name):
    return store.get(name) is not None


# --- in the background ---


async def get(server, response_id, expected=200):
    async with server.http.get(f"{server.url}/v1/responses/{response_id}") as answer:
        assert answer.status == expected
        return await answer.json()


async def ended(server, response_id):
    async with asyncio.timeout(60):
        while (response := await get(server, response_id))["status"] in ("queued", "in_progress"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return strictly(Response, response)


async def test_a_response_in_the_background(server):
    server.backend.pause_at = 2
    async with server.client() as client:
        begun = await client.responses.create(model=MODEL, input="Hello", background=True)
        assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
        await server.backend.paused.wait()
        assert (await client.responses.retrieve(begun.id)).status == "in_progress"
        items = [item async for item in client.responses.input_items.list(begun.id)]
        assert items[0].content[0].text == "Hello"
        server.backend.go_on.set()
        response = await ended(server, begun.id)
        assert (response.status, response.output_text) == ("completed", "Hello there!")
        assert (await client.responses.cancel(begun.id)).status == "completed"
        later = await client.responses.create(model=MODEL, input="And?", previous_response_id=begun.id)
        assert later.status == "completed"


class Loading:
    """A backend whose model loads until `loaded` is set; meanwhile requests are told to come back."""

    def __init__(self, backend, monkeypatch):
        self.loaded, self.waiting, self.open_model = asyncio.Event(), 0, backend.open
        monkeypatch.setattr(backend, "open", self.open)

    async def open(self, model_id, client):
        self.waiting += 1
        try:
            async with asyncio.timeout(0.05):
                await self.loaded.wait()
        except TimeoutError:
            raise NotReady("It is still loading.") from None
        finally:
            self.waiting -= 1
        return await self.open_model(model_id, client)


@pytest.fixture
def loading(server, monkeypatch):
    monkeypatch.setattr("api.responses.routes.QUEUED_AFTER_S", 0.01)
    return Loading(server.backend, monkeypatch)


async def test_a_response_in_the_background_is_queued_while_its_model_loads(server, loading):
    begun = (await ask(server, background=True)).json
    assert strictly(Response, begun).status == "queued"
    assert (await get(server, begun["id"]))["status"] == "queued"
    assert (await get(server, f"{begun['id']}/input_items"))["data"][0]["content"][0]["text"] == "Hello"
    loading.loaded.set()
    response = await ended(server, begun["id"])
    assert (response.status, response.output_text, response.model) == ("completed", "Hello there!", MODEL)


async def test_a_model_that_never_comes_fails_the_response(serve, backend, monkeypatch):
    monkeypatch.setattr("api.responses.routes.QUEUED_AFTER_S", 0.01)
    server, loading = await serve(StreamTiming(loading_s=0.0)), Loading(backend, monkeypatch)
    response = await ended(server, (await ask(server, background=True)).json["id"])
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert "loading" in response.error.message
    assert loading.waiting == 0


@pytest.mark.parametrize("way", ["cancel", "delete"])
async def test_one_that_is_queued_can_be_given_up(server, loading, way):
    begun = (await ask(server, background=True)).json
    if way == "cancel":
        answer = await server.post(f"/v1/responses/{begun['id']}/cancel")
        assert strictly(Response, answer.json).status == "cancelled"
    else:
        async with server.http.delete(f"{server.url}/v1/responses/{begun['id']}") as answer:
            assert answer.status == 200
    assert loading.waiting == 0
    assert server.backend.requests == []


async def test_what_is_wrong_is_told_at_once_if_it_is_known(server):
    unknown = {"model": "nobody/has-it", "input": "Hello", "background": True}
    assert (await server.post("/v1/responses", unknown)).status == 404
    answer = await ask(server, "Hello " * 4000, background=True)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert answer.error["param"] == "input"


@pytest.mark.parametrize("early", [True, False])
async def test_the_end_of_a_node_waits_for_what_is_queued(server, loading, monkeypatch, early):
    """Also for a response that was accepted before the shutdown, but answered only after it began."""
    monkeypatch.setattr("api.responses.routes.QUEUED_AFTER_S", 0.2 if early else 0.01)
    asked = asyncio.create_task(ask(server, background=True))
    async with asyncio.timeout(60):
        while not loading.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    if not early:
        await asked
    ending = asyncio.create_task(server.app[IN_FLIGHT].finish(60))
    begun = (await asked).json
    assert begun["status"] == "queued"
    assert not ending.done()
    loading.loaded.set()
    await ending
    assert (await get(server, begun["id"]))["status"] == "completed"


async def test_a_cancelled_response_frees_its_place(server):
    server.backend.pause_at = 2
    begun = (await ask(server, background=True)).json
    await server.backend.paused.wait()
    for _ in range(2):
        answer = await server.post(f"/v1/responses/{begun['id']}/cancel")
        assert strictly(Response, answer.json).status == "cancelled"
        assert server.backend.running == 0
    assert (await get(server, begun["id"]))["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("error", [None, PippinError("The stage would not let go.")])
async def test_what_comes_after_the_end_changes_nothing(server, error):
    generate, over, leave = server.backend.generate, asyncio.Event(), asyncio.Event()

    async def generate_and_linger(request):
        try:
            async with aclosing(generate(request)) as events:
                async for event in events:
                    yield event
        finally:
            over.set()
            await leave.wait()
            raise error

    server.backend.generate = generate_and_linger
    begun = (await ask(server, background=True)).json
    await over.wait()
    if error:
        leave.set()
        await ended(server, begun["id"])
    else:
        await server.post(f"/v1/responses/{begun['id']}/cancel")
    response = await ended(server, begun["id"])
    assert (response.status, response.output_text) == ("completed", "Hello there!")


async def test_a_deleted_response_frees_its_place(server):
    server.backend.pause_at = 0
    begun = (await ask(server, background=True)).json
    await server.backend.paused.wait()
    async with server.http.delete(f"{server.url}/v1/responses/{begun['id']}") as answer:
        assert await answer.json() == {"id": begun["id"], "object": "response", "deleted": True}
    assert server.backend.running == 0
    await get(server, begun["id"], expected=404)


@pytest.mark.parametrize(
    ("error", "code"), [(Overloaded("Full."), "rate_limit_exceeded"), (RuntimeError("bug"), "server_error")]
)
async def test_a_failure_in_the_background(server, error, code):
    server.backend.failure = (1, error)
    response = await ended(server, (await ask(server, background=True)).json["id"])
    assert (response.status, response.error.code) == ("failed", code)


async def test_the_end_of_a_node_waits_for_the_background(server):
    server.backend.pause_at = 1
    begun = (await ask(server, background=True)).json
    await server.backend.paused.wait()
    ending = asyncio.create_task(server.app[IN_FLIGHT].finish(60))
    await asyncio.sleep(0)
    assert not ending.done()
    server.backend.go_on.set()
    await ending
    assert (await ended(server, begun["id"])).status == "completed"


async def test_a_large_request_has_a_place_in_the_background_if_its_client_has_no_other(server, monkeypatch):
    monkeypatch.setattr(background, "MAX_BACKGROUND_BYTES", 100)
    begun = await ask(server, "x" * 1000, background=True)
    assert begun.status == 200
    assert (await ended(server, begun.json["id"])).status == "completed"


@pytest.mark.parametrize("bound", [("MAX_BACKGROUND", 4), ("MAX_BACKGROUND_BYTES", 500)])
async def test_the_background_is_bounded(serve, backend, monkeypatch, bound):
    name, most = bound
    monkeypatch.setattr(background, name, most)
    server = await serve()
    backend.pause_at = 0
    first, _ = [(await ask(server, background=True)).json["id"] for _ in range(2)]
    refused = await ask(server, "Hello " * 20, background=True)
    assert (refused.status, refused.error["code"], refused.headers["Retry-After"]) == (429, "rate_limit_exceeded", "2")
    async with server.http.post(f"{server.url}/v1/responses/{first}/cancel"):
        pass
    if name == "MAX_BACKGROUND":
        assert (await ask(server, background=True)).status == 200


async def test_requests_at_the_same_time_share_the_places(serve, backend, monkeypatch):
    monkeypatch.setattr(background, "MAX_BACKGROUND", 6)
    server = await serve()
    backend.pause_at = 0
    answers = await asyncio.gather(*(ask(server, background=True) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 5


async def test_one_client_has_no_more_than_half_of_the_places(serve, backend, monkeypatch):
    monkeypatch.setattr(background, "MAX_BACKGROUND", 4)
    server = await serve(api_keys=["one", "two", "three"])
    backend.pause_at = 0

    async def begin(key):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        data = json.dumps({"model": MODEL, "input": "Hello", "background": True}).encode()
        return (await server.post("/v1/responses", data=data, headers=headers)).status

    assert [await begin("one") for _ in range(3)] == [200, 200, 429]
    assert [await begin("two") for _ in range(3)] == [200, 200, 429]
    assert await begin("three") == 429


async def test_what_a_background_response_continues_counts(server, monkeypatch):
    first = (await ask(server, "x" * 500)).json["id"]
    of_one = server.app[KEEPER].store.get(first).bytes + 200
    monkeypatch.setattr(background, "MAX_BACKGROUND_BYTES", 2 * of_one)
    server.backend.pause_at = 0
    asked = [await ask(server, previous_response_id=first, background=True) for _ in range(2)]
    assert [answer.status for answer in asked] == [200, 429]


@pytest.mark.parametrize("way", ["previous", "reference"])
async def test_what_a_request_continues_is_held_until_its_answer(serve, backend, monkeypatch, way):
    monkeypatch.setattr("api.http.body.SMALL_BODY", 500)
    server = await serve(body_limit=2000)
    item = {"id": "msg_mine", "type": "message", "role": "user", "content": "x" * 1000}
    first = (await ask(server, [item])).json["id"]
    backend.pause_at = 0
    given = "Hello" if way == "previous" else [{"type": "item_reference", "id": "msg_mine"}]
    more = {"previous_response_id": first} if way == "previous" else {}
    asked = [asyncio.create_task(ask(server, given, **more)) for _ in range(10)]
    async with asyncio.timeout(60):
        done, others = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status for task in done} == {429}
        backend.go_on.set()
        assert 200 in [(await task).status for task in others]
        assert (await ask(server, given, **more)).status == 200


async def test_a_response_in_the_background_takes_no_longer_than_it_may(serve, backend, monkeypatch):
    monkeypatch.setattr(background, "MAX_BACKGROUND_S", 0.1)
    server = await serve()
    backend.pause_at = 1
    response = await ended(server, (await ask(server, background=True)).json["id"])
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert "took longer than" in response.error.message
    assert backend.running == 0


async def test_a_conversation_is_no_longer_than_a_request(serve):
    server = await serve(body_limit=2000)
    first = (await ask(server, "x" * 900)).json["id"]
    second = (await ask(server, "x", previous_response_id=first)).json["id"]
    refused = await ask(server, "x" * 900, previous_response_id=second)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert refused.error["param"] == "previous_response_id"


async def test_one_item_that_is_referred_to_often_counts_each_time(serve):
    server = await serve(body_limit=2000)
    item = {"id": "msg_mine", "type": "message", "role": "user", "content": "x" * 900}
    assert (await ask(server, [item])).status == 200
    reference = {"type": "item_reference", "id": "msg_mine"}
    assert (await ask(server, [reference])).status == 200
    refused = await ask(server, [reference] * 3)
    assert (refused.status, refused.error["code"], refused.error["param"]) == (400, "context_length_exceeded", "input")


async def test_the_background_is_stored(server):
    answer = await ask(server, background=True, store=False)
    assert (answer.status, answer.error["param"]) == (400, "store")


# --- refusals ---


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"model": None}, "model"),
        ({"instructions": 1}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": "x"}, "tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"seed": "x"}, "seed"),
        ({"prediction": "Hello"}, "prediction"),
        ({"prediction": {"type": "poem", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": None}}, "prediction.content"),
        ({"input": "word " * 3000}, "input"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals(server, body, param, stream):
    answer = await server.post("/v1/responses", {"model": MODEL, "input": "Hello", "stream": stream, **body})
    assert answer.status == 400
    assert answer.error["param"] == param
    assert "messages" not in answer.error["message"]
    assert server.backend.requests == []


async def test_unknown_models_and_unknown_parameters(server):
    assert (await ask(server, model="none")).error["code"] == "model_not_found"
    harmless = {"service_tier": "auto", "truncation": "auto", "moderation": None, "no_such_thing": 1, "include": []}
    assert (await ask(server, **harmless)).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"text": {"format": None, "verbosity": None}},
        {"text": {"format": {"type": "text", "name": None, "strict": None}}},
        {"reasoning": {"effort": None, "summary": None}},
        {"temperature": None, "store": None, "tools": None, "metadata": None, "include": None},
    ],
)
async def test_null_means_not_given(server, body):
    answer = await ask(server, **body)
    assert answer.status == 200, answer.body
    given = strictly(Response, answer.json)
    assert (given.text.format.type, given.text.verbosity, given.temperature) == ("text", "medium", 1)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
async def test_efforts_are_those_of_openai(server, effort):
    assert (await ask(server, reasoning={"effort": effort})).json["reasoning"]["effort"] == effort
    assert (await server.chat(reasoning_effort=effort)).status == 200


# --- what a model that thinks and calls would give ---


def test_thoughts_and_calls_have_items_of_their_own():
    body = parse(ResponseRequest, {"model": MODEL, "input": "x"})
    output = ResponseOutput(body, "demo", "resp_1")
    output.open(MODEL, Sampling())
    events = [
        *output.begin(),
        *output.reasoning("Hm"),
        *output.reasoning("."),
        *output.text("I look.", []),
        *output.call(CallDelta(0, "", "call_1", "look")),
        *output.call(CallDelta(0, '{"at":')),
        *output.call(CallDelta(0, " 1}")),
        *output.call(CallDelta(1, "{}", "call_2", "look")),
        *output.finish(truncated=False, usage=None),
    ]
    for event in events:
        strictly(type(EVENTS.validate_python(event, strict=True)), event)
    response = strictly(Response, output.response())
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert {item.status for item in response.output} == {"completed"}
    assert response.output[2].arguments == '{"at": 1}'
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert added[2]["arguments"] == ""
    assert isinstance(response, BaseModel)
    grown = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert grown == ['{"at":', " 1}", "{}"]
