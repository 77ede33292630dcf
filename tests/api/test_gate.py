"""The gate: keys, size of bodies, a node that is stopping. And the metrics of requests."""

import asyncio
import json
import logging
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.http.in_flight import IN_FLIGHT
from api.http.stream import StreamTiming
from node import PROTOCOL, __version__
from node.core.errors import NotReady
from node.core.generation import PromptProgress

MODEL = "pippin/demo"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
KEYS = ("sk-first-key", "sk-second-key")


def request_bytes(path, body, *headers, method="POST"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode() + body


@pytest.fixture
async def guarded(serve):
    return await serve(api_keys=KEYS)


async def figures(server):
    async with server.http.get(f"{server.url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        families = text_string_to_metric_families(await response.text())
        return {
            (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "le")): sample.value
            for family in families
            for sample in family.samples
        }


# --- keys ---


@pytest.mark.parametrize("key", [*(f"Bearer {key}" for key in KEYS), "bearer sk-first-key", "Bearer  sk-first-key "])
async def test_each_key_opens(guarded, key):
    assert (await guarded.post("/v1/chat/completions", CHAT, headers={"Authorization": key})).status == 200
    async with guarded.http.get(f"{guarded.url}/cluster/status", headers={"Authorization": key}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "Bearer", "Bearer ", "sk-first-key", "Basic sk-first-key", "Bearer wrong", "Bearer sk-first-ke"),
        *("Bearer sk-first-keyy", "Bearer sk", "Bearer SK-FIRST-KEY", "Bearer sk-first-key,sk-second-key"),
        *("Bearer sk-first-key sk-second-key", "Bearer \udcff\udcfe", "Bearer " + "x" * 4000),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/no")]
)
async def test_nothing_else_opens(guarded, header, method, path):
    headers = ["Connection: close", "Origin: app://obsidian.md"]
    if header is not None:
        headers.append(f"Authorization: {header}")
    lines = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""])
    head, _, body = (await guarded.raw(lines.encode("utf-8", "surrogateescape"))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nWWW-Authenticate: Bearer" in head
    assert b"\r\nAccess-Control-Allow-Origin: *" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert "sk-" not in error["message"]
    assert guarded.backend.requests == []


async def test_a_key_is_not_found_in_other_places(guarded):
    answer = await guarded.raw(request_bytes("/v1/models?api_key=sk-first-key", b"", "Connection: close", method="GET"))
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/health", 200), ("HEAD", "/health", 200)])
async def test_health_needs_no_key(guarded, method, path, status):
    async with guarded.http.request(method, guarded.url + path) as response:
        assert response.status == status


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/nowhere"])
async def test_preflights_need_no_key(guarded, path):
    async with guarded.http.options(guarded.url + path, headers={"Origin": "https://chat.example"}) as response:
        assert response.status == 204
        assert "Authorization" in response.headers["Access-Control-Allow-Headers"]


async def test_a_stranger_is_not_asked_for_its_body(guarded):
    head = ("Content-Length: 30000000", "Expect: 100-continue", "Connection: close")
    reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
    writer.write(request_bytes("/v1/chat/completions", b"", *head))
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()
    await writer.wait_closed()


async def test_without_keys_any_bearer_is_accepted(server):
    for header in ("Bearer x", "Basic x", "nonsense", ""):
        assert (await server.post("/v1/chat/completions", CHAT, headers={"Authorization": header})).status == 200


# --- bodies that are not even asked for ---


async def test_a_body_that_is_too_large_is_refused_by_its_length(serve):
    server = await serve(body_limit=1000)
    for extra in ([], ["Expect: 100-continue"]):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_bytes("/v1/chat/completions", b"", "Content-Length: 1001", *extra))
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await writer.wait_closed()


async def test_a_chunked_body_that_is_too_large(serve):
    server = await serve(body_limit=1000)
    chunks = (b"400\r\n" + b"x" * 1024 + b"\r\n") * 4 + b"0\r\n\r\n"
    answer = await server.raw(
        request_bytes("/v1/chat/completions", chunks, "Transfer-Encoding: chunked", "Connection: close")
    )
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/completions"), ("DELETE", "/v1/responses/x")])
async def test_another_expectation(server, method, path):
    answer = await server.raw(
        request_bytes(path, b"{}", "Content-Length: 2", "Expect: tea", "Connection: close", method=method)
    )
    assert answer.startswith(b"HTTP/1.1 417 ")
    assert "tea" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "expected", "status", "said"),
    [
        ("GET", "/nowhere", "tea", 404, "/nowhere"),
        ("GET", "/nowhere", "100-continue", 404, "/nowhere"),
        ("GET", "/v1/chat/completions", "tea", 405, "GET"),
        ("PUT", "/v1/models/x", "tea", 417, "tea"),
        ("POST", "/nowhere", "tea", 417, "tea"),
    ],
)
async def test_an_expectation_where_nothing_is(server, method, path, expected, status, said):
    headers = (f"Expect: {expected}", "Origin: app://obsidian.md", "Connection: close")
    head, _, body = (await server.raw(request_bytes(path, b"", *headers, method=method))).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Access-Control-Allow-Origin: app://obsidian.md" in head
    assert (b"Allow: " in head) == (status == 405)
    error = json.loads(body)["error"]
    assert said in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


async def test_allow_names_the_methods_that_work(server):
    async with server.http.put(f"{server.url}/v1/responses/x") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "DELETE,GET,HEAD"


async def test_a_body_is_asked_for_once(server):
    head = ("Content-Length: 2", "Expect: 100-continue", "Connection: close")
    answer = await server.raw(request_bytes("/v1/responses/x", b"{}", *head, method="DELETE"))
    assert answer.count(b"HTTP/1.1 100 Continue") == 1


async def test_an_expectation_without_a_body_is_ignored(server):
    answer = await server.raw(request_bytes("/v1/models", b"", "Expect: tea", "Connection: close", method="GET"))
    assert answer.startswith(b"HTTP/1.1 200 ")


# --- the end of a node ---


async def test_a_stopping_node_finishes_its_streams_and_takes_no_new_ones(server):
    backend, drain = server.backend, server.app[IN_FLIGHT]
    backend.pause_at = 2
    running = asyncio.create_task(server.chat(stream=True))
    await backend.paused.wait()
    ending = asyncio.create_task(drain.finish(60))
    await asyncio.sleep(0)

    refused = await server.chat()
    assert refused.status == 503
    assert refused.error["code"] == "shutting_down"
    assert refused.headers["Retry-After"] == "2"
    assert refused.headers["Connection"] == "close"
    async with server.http.get(f"{server.url}/health") as response:
        assert (response.status, (await response.json())["status"]) == (503, "stopping")
    async with server.http.get(f"{server.url}/v1/models") as response:
        assert response.status == 200
    assert not ending.done()

    backend.go_on.set()
    answer = await running
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in answer.events) == "Hello there!"
    await ending


async def test_the_end_waits_no_longer_than_it_should(server):
    server.backend.pause_at = 0
    running = asyncio.create_task(server.chat(stream=True))
    await server.backend.paused.wait()
    await server.app[IN_FLIGHT].finish(0.01)
    assert not running.done()
    server.backend.go_on.set()
    assert (await running).status == 200


# --- a model that is still loading ---


async def test_a_stream_waits_for_its_model_with_comments(serve, backend, monkeypatch):
    server = await serve(StreamTiming(keepalive_s=0.01))
    loaded, tries = asyncio.Event(), []

    async def opening(model_id, client, open_model=backend.open):
        tries.append(model_id)
        if len(tries) == 1:
            await loaded.wait()
            raise NotReady("still loading")
        return await open_model(model_id, client)

    monkeypatch.setattr(backend, "open", opening)
    async with server.http.post(f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert response.status == 200
        assert await response.content.readline() == b": keep-alive\n"
        backend.awaited = "n1 has fetched 26 %.\r\ndata: x"
        while (comment := await response.content.readline()) in (b"\n", b": keep-alive\n"):
            pass
        assert comment == b": n1 has fetched 26 %.??data: x\n", "one line, whatever a node is called"
        loaded.set()
        text = (await response.read()).decode()
    assert text.endswith("data: [DONE]\n\n")
    assert len(tries) == 2


async def test_a_stream_tells_how_far_its_prompt_is(serve, backend):
    """In comments, at most one in a while; an answer that is no stream is what it would be without them."""
    backend.progress = [PromptProgress(1280, 4096), PromptProgress(2560, 4096)]
    server = await serve(StreamTiming(progress_s=0.0))
    told = (await server.chat(stream=True)).body.decode().split("\n\n")
    assert told[:2] == [": prompt: 1280 of 4096 tokens", ": prompt: 2560 of 4096 tokens"]
    assert all(line.startswith("data: ") for line in told[2:-1])
    assert (await server.chat()).json["choices"][0]["message"]["content"] == "Hello there!"
    seldom = await serve(StreamTiming(progress_s=3600.0))
    assert (await seldom.chat(stream=True)).body.startswith(b"data: ")


async def test_a_model_that_does_not_come(serve, backend, monkeypatch):
    asked = asyncio.Event()

    async def opening(model_id, client):
        if asked.is_set():
            await asyncio.sleep(0.05)
        raise NotReady("still loading")

    monkeypatch.setattr(backend, "open", opening)
    server = await serve(StreamTiming(keepalive_s=0.01, loading_s=0.0))
    plain = await server.chat(stream=True)
    assert (plain.status, plain.headers["Retry-After"], plain.error["code"]) == (503, "2", "not_ready")
    asked.set()
    late = await server.chat(stream=True)
    assert late.status == 200
    last = [line for line in late.body.decode().split("\n\n") if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "not_ready"


# --- figures ---


async def test_version(server):
    async with server.http.get(f"{server.url}/version") as response:
        assert await response.json() == {"version": __version__, "protocol": PROTOCOL}


async def test_metrics(server):
    server.backend.cached = 2
    answers = [await server.chat(), await server.chat(stream=True), await server.post("/v1/chat/completions", {})]
    assert [answer.status for answer in answers] == [200, 200, 400]
    for method, path in (("GET", "/such/a/typo"), ("PUT", "/v1/chat/completions")):
        async with server.http.request(method, server.url + path):
            pass
    found = await figures(server)
    usage = answers[0].json["usage"]
    assert found["pippin_http_requests_total", "POST", "/v1/chat/completions", "200"] == 2
    assert found["pippin_http_requests_total", "POST", "/v1/chat/completions", "400"] == 1
    assert found["pippin_http_requests_total", "any", "none", "404"] == 1
    assert found["pippin_http_requests_total", "any", "none", "405"] == 1
    assert found["pippin_tokens_total", "prompt", MODEL] == 2 * usage["prompt_tokens"]
    assert found["pippin_tokens_total", "answer", MODEL] == 2 * usage["completion_tokens"]
    assert found["pippin_tokens_total", "cached", MODEL] == 4
    assert found["pippin_first_token_seconds_count", MODEL] == 2
    assert found["pippin_http_request_seconds_count", "/v1/chat/completions"] == 3
    assert found[("pippin_kv_bytes",)] == 1000
    assert found[("pippin_loop_lag_seconds",)] == 0.25
    assert found[("pippin_tasks",)] >= 1
    assert found["pippin_ring_running", "r1"] == 0
    assert found["pippin_ring_recomputed_tokens_total", "r1"] == 0


async def test_figures_of_two_gateways_are_apart(serve):
    one, two = await serve(), await serve()
    await one.chat()
    assert ("pippin_first_token_seconds_count", MODEL) in await figures(one)
    assert ("pippin_first_token_seconds_count", MODEL) not in await figures(two)


async def test_requests_have_numbers(server):
    first, second = await server.chat(), await server.post("/nowhere", {})
    assert first.headers["X-Request-ID"] != second.headers["X-Request-ID"]
    assert first.headers["X-Request-ID"].startswith("req_")


async def test_the_log_has_a_line_for_each_request(server, caplog):
    caplog.set_level(logging.DEBUG, "api")
    answers = [await server.chat(), await server.post("/nowhere?key=sk-1", {}), await server.chat(stream=True)]
    lines, chat = [r.message for r in caplog.records if r.name == "api.http.access_log"], "/v1/chat/completions"
    for answer, line, path in zip(answers, lines, (chat, "/nowhere", chat), strict=True):
        number = answer.headers["X-Request-ID"]
        assert re.fullmatch(rf"{number} POST {path} from 127.0.0.1: {answer.status} after [0-9.]+ s, \d+ bytes", line)


async def test_the_log_has_a_line_for_a_client_that_hangs_up(server, caplog):
    caplog.set_level(logging.DEBUG, "api")
    server.backend.pause_at = 0
    running = asyncio.create_task(server.chat())
    await server.backend.paused.wait()
    running.cancel()
    async with asyncio.timeout(10):
        while "left by its client" not in caplog.text:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "asked", "last"),
    [
        ("/v1/responses", {"input": "Hello"}, b"response.completed"),
        ("/v1/messages", {**CHAT, "max_tokens": 9}, b"message_stop"),
        ("/api/chat", CHAT, b'"done":true'),
    ],
)
async def test_a_client_may_leave_once_it_has_been_told_all(server, monkeypatch, caplog, path, asked, last):
    """As the clients of OpenAI's Responses do, whose streams have no other end."""
    caplog.set_level(logging.DEBUG, "api")
    generate, never = server.backend.generate, asyncio.Event()

    async def generate_and_close(request):
        try:
            async for token in generate(request):
                yield token
        finally:
            await never.wait()  # as closing the stream of a node may take long

    monkeypatch.setattr(server.backend, "generate", generate_and_close)
    async with server.http.post(server.url + path, json={"model": MODEL, "stream": True, **asked}) as response:
        while last not in (line := await response.content.readline()):
            assert line
        response.close()
    async with asyncio.timeout(10):
        while f"POST {path}" not in caplog.text:  # noqa: ASYNC110 - the log tells nobody
            await asyncio.sleep(0.01)
    assert f"POST {path} from 127.0.0.1: 200 after" in caplog.text
    assert (await figures(server))["pippin_http_requests_total", "POST", path, "200"] == 1


async def test_what_is_no_request_has_a_number(server):
    assert re.search(rb"\r\nX-Request-ID: req_[0-9a-f]{32}\r\n", await server.raw(b"\0\r\n\r\n"))
