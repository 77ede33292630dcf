"""Anthropic's Messages API with the official client: answers, every event in its order, counts, models."""

import asyncio
import json

import anthropic
import pytest
from anthropic.types import Message

from api.anthropic.output import Events
from api.http.stream import StreamTiming
from node.core.errors import NotReady, Overloaded, RingLost
from tests.strict_anthropic import check_stream, strictly

MODEL = "pippin/demo"
USER = [{"role": "user", "content": "Hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Weather.", "input_schema": CITY}
NOW = {"name": "now", "input_schema": {"type": "object"}}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
HEADERS = {"anthropic-version": "2023-06-01", "Content-Type": "application/json"}


def body(messages=USER, **more):
    return {"model": MODEL, "max_tokens": 100, "messages": messages, **more}


async def ask(server, messages=USER, /, **more):
    return await server.post("/v1/messages", body(messages, **more), headers=HEADERS)


def events_of(answer):
    """The events of a stream; tests/strict_anthropic.py has checked each, and their order."""
    assert answer.headers["Content-Type"] == "text/event-stream"
    return [json.loads(block.split("\ndata: ")[1]) for block in answer.body.decode().split("\n\n")[:-1]]


def client(server, **more):
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0, **more)


# --- answers ---


async def test_a_plain_message_is_what_anthropic_would_send(server):
    server.backend.cached = 3
    answer = await ask(server, system="Be kind.", metadata={"user_id": "me"}, service_tier="auto")
    message = strictly(Message, answer.json)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert answer.json["content"] == [{"type": "text", "text": "Hello there!"}]
    (request,) = server.backend.requests
    assert answer.json["usage"] == {
        "input_tokens": len(request.prompt) - 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": len(server.backend.model.tokenizer.encode("Hello there!")) + 1,
        "output_tokens_details": {"thinking_tokens": 0},
        "service_tier": "standard",
    }
    assert answer.headers["Request-Id"] == answer.headers["X-Request-ID"]


async def test_the_bytes_of_a_stream(server):
    server.backend.say("Hi")
    answer = await ask(server, stream=True)
    (request,) = server.backend.requests
    start, block, ping, delta, stop, *rest = answer.body.decode().split("\n\n")
    assert answer.headers["Content-Type"] == "text/event-stream"
    assert start.startswith('event: message_start\ndata: {"type":"message_start","message":{"id":"msg_')
    usage = (
        f'"usage":{{"input_tokens":{len(request.prompt)},"cache_creation_input_tokens":0,"cache_read_input_tokens":0,'
    )
    assert usage in start
    assert block == (
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"text","text":""}}'
    )
    assert ping == 'event: ping\ndata: {"type":"ping"}'
    assert delta == (
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":"Hi"}}'
    )
    assert stop == 'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}'
    assert rest[0].startswith(
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
        f'{usage}"output_tokens":{len(server.backend.model.tokenizer.encode("Hi")) + 1},'
    )
    assert rest[1:] == ['event: message_stop\ndata: {"type":"message_stop"}', ""]


async def test_the_official_client(server):
    async with client(server) as official:
        message = await official.messages.create(**body(), extra_body={"temperature": 0})
        assert (message.content[0].text, message._request_id[:4]) == ("Hello there!", "req_")
        async with official.messages.stream(**body()) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert "".join(texts) == final.content[0].text == "Hello there!"
        assert len(texts) > 1
        assert (final.usage, final.stop_reason) == (message.usage, "end_turn")
        counted = await official.messages.count_tokens(model=MODEL, messages=USER)
        assert counted.input_tokens == message.usage.input_tokens
        beta = await official.beta.messages.create(**body(), betas=["interleaved-thinking-2025-05-14"])
        assert beta.content[0].text == "Hello there!"


async def test_the_official_client_without_asyncio(server):
    def use():
        with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as official:
            assert official.messages.create(**body()).content[0].text == "Hello there!"
            with official.messages.stream(**body()) as stream:
                assert stream.get_final_text() == "Hello there!"
            kinds = [event.type for event in official.messages.create(**body(), stream=True)]
            assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")

    await asyncio.to_thread(use)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "text", "reason", "sequence"),
    [
        ({"max_tokens": 2}, None, "max_tokens", None),
        ({"stop_sequences": ["nowhere", "there"]}, "Hello ", "stop_sequence", "there"),
        ({"stop_sequences": ["lo", "Hello"]}, "", "stop_sequence", "Hello"),
        ({"stop_sequences": [f"stop {number}" for number in range(16)]}, "Hello there!", "end_turn", None),
        ({"max_tokens": 0}, "", "max_tokens", None),
        ({"adapter": {"templates": {"user": {"start": "there"}}}}, "Hello ", "end_turn", None),
    ],
)
async def test_reasons_to_stop(server, stream, more, text, reason, sequence):
    answer = await ask(server, **more, stream=stream)
    if stream:
        events = events_of(answer)
        (ending,) = (event["delta"] for event in events if event["type"] == "message_delta")
        texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    else:
        ending, texts = answer.json, [block["text"] for block in answer.json["content"]]
        assert answer.json["usage"]["output_tokens"] <= more.get("max_tokens", 100)
    assert (ending["stop_reason"], ending["stop_sequence"]) == (reason, sequence)
    assert text is None or "".join(texts) == text


async def test_a_full_context_is_no_limit_of_tokens(server):
    server.backend.script = lambda request: [300] * request.max_tokens
    answer = await ask(server, max_tokens=1_000_000)
    assert answer.json["stop_reason"] == "model_context_window_exceeded"


# --- counting ---


async def test_tokens_are_counted_without_an_answer(server):
    asked = {
        "model": MODEL,
        "messages": USER,
        "system": "Be kind.",
        "tools": [WEATHER],
        "thinking": {"type": "adaptive"},
    }
    answer = await server.post("/v1/messages/count_tokens?beta=true", asked, headers=HEADERS)
    message = await server.post("/v1/messages", {**asked, "max_tokens": 5}, headers=HEADERS)
    assert answer.json == {"input_tokens": message.json["usage"]["input_tokens"]}
    assert len(server.backend.requests) == 1
    server.backend.model.context = 4
    assert (await server.post("/v1/messages/count_tokens", asked, headers=HEADERS)).json == answer.json


# --- models ---


async def test_models_in_pages(server):
    async with client(server) as official:
        assert [model.id async for model in official.models.list(limit=1)] == [MODEL, "plain"]
        first = (await official.models.list(limit=1)).data[0]
        assert (first.type, first.display_name, first.created_at.timestamp()) == ("model", "demo", 1_700_000_000)
        before = await official.models.list(before_id="plain")
        assert ([model.id for model in before.data], before.has_more) == ([MODEL], False)
        assert (before.first_id, before.last_id) == (MODEL, MODEL)
        assert (await official.models.retrieve("short-plain")).id == "plain"
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            await official.models.retrieve("nothing")
        for wrong in ({"after_id": "nothing"}, {"before_id": "nothing"}, {"limit": 0}, {"limit": 1001}):
            with pytest.raises(anthropic.BadRequestError, match=next(iter(wrong))):
                await official.models.list(**wrong)


# --- failures in streams ---


async def test_a_refusal_comes_before_a_stream(server):
    server.backend.refusal = Overloaded("The queue is full.")
    answer = await ask(server, stream=True)
    assert (answer.status, answer.headers["Retry-After"]) == (429, "2")
    assert answer.json == {"type": "error", "error": {"type": "rate_limit_error", "message": "The queue is full."}}


async def test_a_failure_in_the_middle_is_an_event(server):
    server.backend.failure = (2, RingLost("A node went away."))
    answer = await ask(server, stream=True)
    assert events_of(answer)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "A node went away."},
    }
    async with client(server) as official:
        with pytest.raises(anthropic.APIStatusError, match="A node went away"):
            async with official.messages.stream(**body()) as stream:
                await stream.get_final_message()


async def test_a_quiet_stream_has_pings(serve, backend):
    server = await serve(timing=StreamTiming(keepalive_s=0.02))
    backend.pause_at = 2
    async with server.http.post(f"{server.url}/v1/messages", json=body(stream=True)) as response:
        events = [await response.content.readuntil(b"\n\n") for _ in range(8)]
        backend.go_on.set()
        events.append(await response.content.read())
    assert events.count(PING) > 3
    check_stream(b"".join(events))


async def test_a_stream_waits_for_its_model_with_pings(serve, backend):
    server = await serve(timing=StreamTiming(keepalive_s=0.02))
    opened = backend.open

    async def open_later(model_id, client):
        if not backend.go_on.is_set():
            await backend.go_on.wait()
            raise NotReady("Still loading.")
        return await opened(model_id, client)

    backend.open = open_later
    async with server.http.post(f"{server.url}/v1/messages", json=body(stream=True)) as response:
        assert await response.content.readuntil(b"\n\n") == PING
        backend.go_on.set()
        assert b"message_stop" in await response.read()


async def test_the_official_client_takes_pings_before_an_answer_and_an_empty_answer(serve, backend, monkeypatch):
    server = await serve(timing=StreamTiming(keepalive_s=0.02))
    opened, waiting = backend.open, Events.waiting

    async def open_later(model_id, client):
        await backend.go_on.wait()
        return await opened(model_id, client)

    def ping(self, awaited):
        backend.go_on.set()
        return waiting(self, awaited)

    monkeypatch.setattr(Events, "waiting", ping)
    backend.open = open_later
    backend.say("")
    async with client(server) as official, official.messages.stream(**body()) as stream:
        message = await stream.get_final_message()
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "end_turn", 1)
    assert backend.go_on.is_set()
