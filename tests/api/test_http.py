"""HTTP itself: routes, bodies in all encodings, browsers, clients that hang up or read slowly."""

import asyncio
import contextlib
import gzip
import json

import pytest

from api.chat.prompt import has_thinking_switch, thinks
from api.http.in_flight import IN_FLIGHT
from api.http.limits import FOLLOWERS_OF_ONE
from api.http.stream import StreamTiming
from node.core.errors import HubUnavailable, ModelBusy, ModelNotFetched, ModelNotFound, NodeNotFound, PeerUnavailable
from node.gateway.disk import Pulled
from node.model.hub_search import HubModel

MODEL = "pippin/demo"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


def request_bytes(path, body, *headers, method="POST"):
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


# --- routes ---


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_each_route_is_there_without_v1_too(server, prefix):
    async with server.http.get(f"{server.url}{prefix}/models?limit=5") as response:
        assert await response.json() == {
            "object": "list",
            "data": [
                {
                    "id": MODEL,
                    "object": "model",
                    "created": 1_700_000_000,
                    "owned_by": "pippin",
                    "root": MODEL,
                    "max_model_len": 2048,
                    "capabilities": {"vision": False},
                },
                {"id": "plain", "object": "model", "created": 1_700_000_000, "owned_by": "pippin", "root": "plain"},
            ],
        }
    assert (await server.post(f"{prefix}/chat/completions?a=b", CHAT)).status == 200
    assert (await server.post(f"{prefix}/completions", {"model": MODEL, "prompt": "x"})).status == 200


WIRE = {
    "a slash at the end": ("POST /v1/chat/completions/ HTTP/1.1", 307),
    "two slashes before v1": ("POST //v1/chat/completions HTTP/1.1", 307),
    "two slashes within": ("POST /v1//chat/completions?api-version=1 HTTP/1.1", 307),
    "another host's name, which is none": ("POST //evil.example/v1/chat/completions HTTP/1.1", 404),
    "slashes only": ("GET /// HTTP/1.1", 307),
    "v1 twice": ("POST /v1/v1/chat/completions HTTP/1.1", 404),
    "a method that is not taken": ("PUT /v1/chat/completions/ HTTP/1.1", 307),
    "absolute form": ("POST http://127.0.0.1/v1/chat/completions HTTP/1.1", 200),
    "HTTP/1.0": ("POST /v1/chat/completions HTTP/1.0", 200),
    "a query": ("POST /v1/chat/completions?api-version=2024-10-21 HTTP/1.1", 200),
    "encodings that are offered": ("POST /v1/chat/completions HTTP/1.1\r\nAccept-Encoding: gzip, br, zstd", 200),
    "HTTP/2 is offered": ("POST /v1/chat/completions HTTP/1.1\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", 200),
    "no content type": ("POST /v1/chat/completions HTTP/1.1", 200),
    "a content type with a charset": ("POST /v1/models HTTP/1.1\r\nContent-Type: application/json; charset=utf-8", 405),
    "HEAD": ("HEAD /v1/models HTTP/1.1", 200),
    "HTTP/2 alone": ("PRI * HTTP/2.0", 400),
}


@pytest.mark.parametrize("form", WIRE)
async def test_forms_in_which_programs_write_a_request(server, form):
    line, status = WIRE[form]
    body = json.dumps(CHAT).encode()
    head, _, answer = (
        await server.raw(
            f"{line}\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )
    ).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"content-encoding" not in head.lower()
    if status == 307:
        query = "?api-version=1" if "?" in line else ""
        meant = "/" if "///" in line else f"/v1/chat/completions{query}"
        assert f"\r\nLocation: {meant}\r\n".encode() in head
    if line.startswith("POST") and status == 200:
        assert json.loads(answer)["object"] == "chat.completion"


async def test_a_client_that_is_sent_elsewhere_gets_its_answer(server):
    assert (await server.post("//v1/chat/completions/", CHAT)).status == 200


@pytest.mark.parametrize("id_in_path", ["pippin/demo", "pippin%2Fdemo", "plain"])
async def test_a_model_is_found_by_its_id_quoted_or_not(server, id_in_path):
    answer = await server.raw(request_bytes(f"/v1/models/{id_in_path}", b"", "Connection: close", method="GET"))
    assert b" 200 OK" in answer
    assert json.loads(answer.split(b"\r\n\r\n")[1])["id"] == id_in_path.replace("%2F", "/")


async def test_a_short_name_gives_the_model_that_it_stands_for(server):
    async with server.http.get(f"{server.url}/v1/models/short-plain") as response:
        assert (response.status, (await response.json())["id"]) == (200, "plain")


async def test_an_unknown_model_id(server):
    async with server.http.get(f"{server.url}/v1/models/no/such") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "path", ["/", "/health", "/metrics", "/cluster/logs", "/v1/models", "/v1/models/no/such", "/nothing"]
)
async def test_no_browser_takes_an_answer_for_markup(server, path):
    async with server.http.get(f"{server.url}{path}") as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    async with server.http.post(f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/health", "/cluster/status", "/cluster/models", "/v1/models", "/v1/models/plain"])
async def test_head_works_where_get_does(server, path):
    async with server.http.get(f"{server.url}{path}") as got, server.http.head(f"{server.url}{path}") as head:
        assert got.status == head.status == 200
        assert got.headers["Content-Length"] == head.headers["Content-Length"]
        assert await head.read() == b""


@pytest.mark.parametrize(("way", "draining"), [("drain", True), ("undrain", False)])
async def test_a_node_is_drained_by_its_name(server, backend, way, draining):
    answer = await server.post(f"/cluster/nodes/mini%201/{way}", data=b"")
    assert (answer.status, answer.json) == (200, {"node": "mini 1", "draining": draining})
    assert backend.drained == ("mini 1", draining)
    backend.refusal = NodeNotFound("No node is named so.", param="node")
    answer = await server.post(f"/cluster/nodes/nobody/{way}", data=b"")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "node_not_found", "node")


async def test_the_log_is_text_and_goes_on(server, backend):
    async with server.http.get(f"{server.url}/cluster/logs?lines=5") as response:
        assert (response.status, response.content_type, await response.text()) == (200, "text/plain", "")
    async with server.http.get(f"{server.url}/cluster/logs?lines=-1") as response:
        assert response.status == 400
    async with server.http.get(f"{server.url}/cluster/logs?follow=true") as response:
        for message in ("one", "two"):
            backend.recent.write(f"12:00:00 {message}\n")
            assert await next_line(response) == f"12:00:00 {message}"
    assert backend.logs_of == ["", ""]


async def next_line(response):
    while not (line := await asyncio.wait_for(response.content.readline(), 30)).strip():
        assert line, "the answer has ended"
    return line.decode().strip()


@pytest.mark.parametrize("follow", ["false", "true"])
async def test_the_log_of_another_node(server, backend, follow):
    backend.recent.write("one\ntwo\n")
    async with server.http.get(f"{server.url}/cluster/logs?node=mini%202&lines=1&follow={follow}") as response:
        assert await next_line(response) == "two"
    backend.refusal = NodeNotFound("No node is named so.", param="node")
    async with server.http.get(f"{server.url}/cluster/logs?node=nobody&follow={follow}") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "node_not_found")
    assert backend.logs_of == ["mini 2"]


async def test_a_client_follows_few_logs_the_newest_ones(server, backend):
    """So pages and forgotten readers take no place for long."""
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for number in range(FOLLOWERS_OF_ONE + 2):
            backend.recent.write(f"line {number}\n")
            reader = await stack.enter_async_context(server.http.get(f"{server.url}/cluster/logs?lines=1&follow=true"))
            assert await next_line(reader) == f"line {number}"
            readers.append(reader)
        for reader in readers[:2]:
            rest = (await asyncio.wait_for(reader.text(), 30)).splitlines()
            assert "Newer readings took this one's place" in rest[-1]
        backend.recent.write("the last line\n")
        for reader in readers[2:]:
            while await next_line(reader) != "the last line":
                pass


async def test_a_log_that_breaks_off_says_why(server, backend):
    async def read(lines, *, follow):
        yield ["one"]
        raise PeerUnavailable("mini-2 did not answer.")

    backend.recent.read = read
    async with server.http.get(f"{server.url}/cluster/logs?node=mini-2&follow=true") as response:
        assert await asyncio.wait_for(response.text(), 30) == "one\nmini-2 did not answer.\n"


async def test_a_model_is_loaded_and_unloaded_by_its_name(server, backend):
    for name, body, wish in (("org%2Fm", b"", (0, 0)), ("org/m", b'{"stages": 2, "context": null}', (2, 0))):
        answer = await server.post(f"/cluster/models/{name}/load", data=body)
        assert (answer.status, answer.json) == (200, {"model": "org/m"})
        assert backend.loaded == {"org/m": wish}
    assert (await server.post("/cluster/models/org/m/unload", data=b"")).json == {"model": "org/m"}
    answer = await server.post("/cluster/models/org/m/unload", data=b"")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "body", [b'{"stages": 0}', b'{"context": -1}', b'{"stages": "2"}', b'{"context": 1e300}', b"["]
)
async def test_an_odd_wish_is_refused(body, server, backend):
    answer = await server.post("/cluster/models/m/load", data=body)
    assert answer.status == 400
    assert backend.loaded == {}


async def test_a_download_is_streamed(server, backend):
    answer = await server.post("/cluster/models/org/m/pull", data=b"")
    first, second = b'{"model":"org/m","done":1,"bytes":4}', b'{"model":"org/m","done":4,"bytes":4}'
    assert answer.body == b"data: %b\n\ndata: %b\n\ndata: [DONE]\n\n" % (first, second)
    backend.failure = (0, HubUnavailable("The hub is away."))
    answer = await server.post("/cluster/models/org/m/pull", data=b"")
    assert answer.body.startswith(b"data: %b\n\n" % first)
    assert b"The hub is away." in answer.body
    backend.refusal = ModelNotFound("There is none.")
    answer = await server.post("/cluster/models/org/m/pull", data=b"")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_a_download_does_not_hold_up_a_node_that_stops(server, backend):
    async def pull(name, client):
        for done in range(4):
            yield Pulled(name, done, 4)
            server.app[IN_FLIGHT].stopping = True

    backend.pull = pull
    answer = await server.post("/cluster/models/org/m/pull", data=b"")
    assert answer.body.startswith(b'data: {"model":"org/m","done":0,"bytes":4}\n\ndata: {"error":')
    assert b"This node is stopping." in answer.body
    assert answer.body.count(b"data: ") == 2


async def test_the_files_of_a_model_are_removed(server, backend):
    async with server.http.delete(f"{server.url}/cluster/models/org%2Fm") as response:
        assert (response.status, await response.json()) == (200, {"model": "org/m", "bytes": 4})
    backend.refusal = ModelBusy("It is in memory.")
    async with server.http.delete(f"{server.url}/cluster/models/org/m") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (409, "model_busy")


async def test_what_pippin_did_not_fetch_is_removed_only_if_the_request_says_so(server, backend):
    backend.refusal = ModelNotFetched("Another program fetched it.")
    for body, status in ((None, 409), ({}, 409), ({"not_fetched": False}, 409), ({"not_fetched": 1}, 400)):
        async with server.http.delete(f"{server.url}/cluster/models/m", json=body) as response:
            assert response.status == status
    async with server.http.delete(f"{server.url}/cluster/models/m", json={"not_fetched": True}) as response:
        assert (response.status, await response.json()) == (200, {"model": "m", "bytes": 4})


async def test_what_is_known_of_a_model(server, backend):
    backend.model.sampling = {"temperature": 0.6, "top_k": 20}
    async with server.http.get(f"{server.url}/cluster/models/{MODEL}") as response:
        known = {"model": MODEL, "context": 2048, "parameters": 1_836_000, "thinks": True, "thinking_switch": True}
        assert await response.json() == known | {"sampling": backend.model.sampling}
    async with server.http.get(f"{server.url}/cluster/models/org/none") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("template", "thinking", "switch"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}", True, True),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}<think>", True, True),
        ("<|assistant|><think>\n", True, False),
        ('{% if "thinking" in message %}{{ message.thinking }}{% endif %}{{ reasoning_effort }}', True, False),
        ("{{ messages }}", False, False),
    ],
)
def test_a_template_may_have_a_switch_of_thinking(template, thinking, switch):
    assert (thinks(template), has_thinking_switch(template)) == (thinking, switch)


async def test_the_hub_is_searched(server, backend):
    backend.on_hub = [HubModel("org/Qwen3-8B", 4 << 30, 10), HubModel("org/other", 0, 1)]
    async with server.http.get(f"{server.url}/cluster/hub?search=Qwen3") as response:
        assert await response.json() == {"models": [{"id": "org/Qwen3-8B", "bytes": 4 << 30, "downloads": 10}]}
    for query in ("", "?search=", "?search=%20", f"?search={'x' * 513}"):
        async with server.http.get(f"{server.url}/cluster/hub{query}") as response:
            assert response.status == 400
    async with server.http.get(f"{server.url}/cluster/hub?model=org/other") as response:
        assert await response.json() == {"models": [{"id": "org/other", "bytes": 0, "downloads": 1}]}
    async with server.http.get(f"{server.url}/cluster/hub?model=org/typo") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
    backend.refusal = HubUnavailable("The hub is away.")
    async with server.http.get(f"{server.url}/cluster/hub?search=Qwen3") as response:
        assert (response.status, (await response.json())["error"]["message"]) == (503, "The hub is away.")


async def test_health_is_200_while_work_waits_for_threads(server):
    server.backend.state = "full"
    async with server.http.get(f"{server.url}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "full"})


async def test_health_is_503_while_the_node_is_stuck(server):
    server.backend.state = "stuck"
    async with server.http.get(f"{server.url}/health") as response:
        assert (response.status, await response.json()) == (503, {"status": "stuck"})


async def test_health_and_cluster_status(server):
    async with server.http.get(f"{server.url}/health") as response:
        assert await response.json() == {"status": "ok"}
    async with server.http.get(f"{server.url}/cluster/status") as response:
        assert await response.json() == {"cluster": "home", "nodes": []}


# --- bodies ---


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "text/plain", "", "application/x-www-form-urlencoded"],
)
async def test_json_with_any_content_type(server, content_type):
    response = await server.post("/v1/chat/completions", CHAT, headers={"Content-Type": content_type})
    assert response.status == 200


async def test_json_without_a_content_type(server):
    body = json.dumps(CHAT).encode()
    answer = await server.raw(
        request_bytes("/v1/chat/completions", body, f"Content-Length: {len(body)}", "Connection: close")
    )
    assert b" 200 OK" in answer


async def test_a_chunked_body(server):
    body = json.dumps(CHAT).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:3], body[3:9], body[9:])) + b"0\r\n\r\n"
    head = ("Transfer-Encoding: chunked", "Connection: close")
    assert b" 200 OK" in await server.raw(request_bytes("/v1/chat/completions", chunks, *head))


async def test_a_compressed_body(server):
    good = gzip.compress(json.dumps(CHAT).encode())
    headers = {"Content-Encoding": "gzip", "Connection": "close"}
    assert (await server.post("/v1/chat/completions", data=good, headers=headers)).status == 200
    for bad in (b"not gzip", good[:40]):
        response = await server.post("/v1/chat/completions", data=bad, headers=headers)
        assert response.status == 400
        assert response.error["type"] == "invalid_request_error"


async def test_expect_100_continue(server):
    body = json.dumps(CHAT).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close")
    writer.write(request_bytes("/v1/chat/completions", b"", *head))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    for byte in body:
        writer.write(bytes([byte]))
        await writer.drain()
    assert b" 200 OK" in await reader.read()
    writer.close()
    await writer.wait_closed()


@pytest.mark.slow
async def test_large_bodies(serve, backend):
    server = await serve(body_limit=4_000_000)
    backend.model.context = 10_000_000
    content = "a " * 1_000_000
    assert (await server.chat(content)).status == 200
    response = await server.chat(content * 3)
    assert response.status == 413
    assert "4000000" in response.error["message"]


async def test_a_truncated_body_harms_nobody(server, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/chat/completions", b'{"model":', "Content-Length: 1000"))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await server.chat()).status == 200
    assert await reader.read() == b""
    assert caplog.text == ""


async def test_the_connection_is_kept_after_a_stream(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for stream in (True, False, True):
        body = json.dumps({**CHAT, "stream": stream}).encode()
        writer.write(request_bytes("/v1/chat/completions", body, f"Content-Length: {len(body)}"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 OK" in head
        if stream:
            assert b"Transfer-Encoding: chunked" in head
            assert (await reader.readuntil(b"0\r\n\r\n")).count(b"data: [DONE]\n\n") == 1
        else:
            length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["object"] == "chat.completion"
    writer.close()
    await writer.wait_closed()


# --- clients that go away ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause_at", [0, 2])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_hangs_up_frees_its_place(server, stream, pause_at, n):
    server.backend.pause_at = pause_at
    body = json.dumps({**CHAT, "stream": stream, "n": n}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes("/v1/chat/completions", body, f"Content-Length: {len(body)}"))
    await server.backend.paused.wait()
    writer.close()
    await server.backend.idle.wait()
    assert server.backend.running == 0
    server.backend.pause_at = None
    assert (await server.chat()).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": CHAT["messages"]}),
        ("chat/completions", {"messages": CHAT["messages"], "stream": True}),
        ("completions", {"prompt": "x", "stream": True}),
        ("embeddings", {"input": "x"}),
        ("responses", {"input": "x", "stream": True}),
        ("responses", {"input": "x", "background": True}),
    ],
)
async def test_a_client_that_hangs_up_waits_for_no_model(serve, backend, monkeypatch, path, body):
    monkeypatch.setattr("api.responses.routes.QUEUED_AFTER_S", 60)
    waiting, over = asyncio.Event(), asyncio.Event()

    async def opening(model_id, client):
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    monkeypatch.setattr(backend, "open", opening)
    server = await serve(StreamTiming(keepalive_s=0.01))
    body = json.dumps({"model": MODEL, **body}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request_bytes(f"/v1/{path}", body, f"Content-Length: {len(body)}"))
    async with asyncio.timeout(60):
        await waiting.wait()
        writer.close()
        await over.wait()
        await writer.wait_closed()


async def test_comments_keep_a_long_prefill_alive(serve, backend):
    server = await serve(StreamTiming(keepalive_s=0.01))
    backend.pause_at = 0
    async with server.http.post(f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert await response.content.readline() == b": keep-alive\n"
        assert await response.content.readline() == b"\n"
        backend.go_on.set()
        rest = (await response.read()).decode().split("\n\n")
    events = [event for event in rest if not event.startswith(":")]
    assert json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    assert events[-2:] == ["data: [DONE]", ""]
    async with server.client() as client:
        chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
        assert chunks[-1].choices[0].finish_reason == "stop"


async def test_many_streams_at_once_do_not_mix(server):
    tokenizer = server.backend.model.tokenizer
    server.backend.script = lambda request: [*tokenizer.encode(f"I am number {request.sampling.seed}."), *tokenizer.eos]

    async def ask(number):
        events = (await server.chat(stream=True, seed=number)).events
        return "".join(event["choices"][0]["delta"].get("content", "") for event in events)

    answers = await asyncio.gather(*(ask(number) for number in range(40)))
    assert answers == [f"I am number {number}." for number in range(40)]
