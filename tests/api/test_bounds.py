"""Bounds of requests: values within a bound are accepted, values beyond it are refused by name and at once."""

import asyncio
import contextlib
import gzip
import io
import json
import threading
import time
import tracemalloc
import zlib
from contextlib import ExitStack
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.chat.request import ChatRequest
from api.chat.schema import CompletionRequest, parse
from api.chat.stop_strings import Pattern, StopMatcher
from api.http import limits
from api.http.body import Bodies
from api.http.callers import CLIENT
from api.http.errors import error_object
from api.http.json_object import Counts, approximate_bytes, parse_json
from api.openai.embeddings import EmbeddingRequest
from node.core.errors import BadRequest, Overloaded
from node.core.limits import MAX_NAME_CHARS
from node.options import Options
from tests.api.hostile import MOST

MODEL = "pippin/demo"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


def test_the_option_has_the_same_default():
    assert Options(name="mini").max_body == limits.MAX_BODY


def user(content="x"):
    return {"role": "user", "content": content}


def called(*arguments, **more):
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": each}} for each in arguments]
    return {"role": "assistant", "tool_calls": calls, **more}


def function(number):
    return {"type": "function", "function": {"name": f"f{number}"}}


def chosen(count):
    allowed = {"mode": "auto", "tools": [{"type": "function", "name": "f0"}] * count}
    return {"tools": [function(0)], "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}


def predicted(content):
    return {"type": "content", "content": content}


NAME = "x" * MAX_NAME_CHARS
TEXT_PARTS = [{"type": "text", "text": "x"}]
BOUNDS = [
    ("model", lambda more: {"model": NAME + "x" * more}),
    ("messages", lambda more: {"messages": [user()] * (limits.MAX_MESSAGES + more)}),
    ("messages[0].content", lambda more: {"messages": [user(TEXT_PARTS * (limits.MAX_PARTS + more))]}),
    ("messages[0].name", lambda more: {"messages": [user() | {"name": NAME + "x" * more}]}),
    ("messages[0].tool_calls", lambda more: {"messages": [called(*["{}"] * (limits.MAX_CALLS + more))]}),
    ("messages[0].tool_call_id", lambda more: {"messages": [user() | {"tool_call_id": NAME + "x" * more}]}),
    ("tools", lambda more: {"tools": [function(number) for number in range(limits.MAX_TOOLS + more)]}),
    ("tool_choice", lambda more: chosen(limits.MAX_TOOLS + more)),
    ("stop", lambda more: {"stop": ["x"] * (limits.MAX_STOPS + more)}),
    ("stop", lambda more: {"stop": "x" * (limits.MAX_STOP_CHARS + more)}),
    ("logit_bias", lambda more: {"logit_bias": {str(token): 1 for token in range(limits.MAX_BIASES + more)}}),
    ("chat_template_kwargs", lambda more: {"chat_template_kwargs": _entries(limits.MAX_VARIABLES + more)}),
    ("modalities", lambda more: {"modalities": ["text"] * (limits.MAX_VARIABLES + more)}),
    ("prediction.content", lambda more: {"prediction": predicted(TEXT_PARTS * (limits.MAX_PARTS + more))}),
    ("adapter.templates.user.start", lambda more: {"adapter": {"user_start": "x" * (limits.MAX_STOP_CHARS + more)}}),
]


def _entries(count):
    return {f"x{number}": 1 for number in range(count)}


@pytest.mark.parametrize(("param", "made"), BOUNDS)
def test_bounds_of_parameters(param, made):
    parse(ChatRequest, CHAT | made(0))
    with pytest.raises(BadRequest) as refused:
        parse(ChatRequest, CHAT | made(1))
    assert refused.value.param == param
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("text", ["x", [1]])
@pytest.mark.parametrize(("schema", "param"), [(CompletionRequest, "prompt"), (EmbeddingRequest, "input")])
def test_bounds_of_lists_of_texts(schema, param, text):
    parse(schema, {"model": MODEL, param: [text] * limits.MAX_INPUTS})
    with pytest.raises(BadRequest, match="at most 2048 texts"):
        parse(schema, {"model": MODEL, param: [text] * (limits.MAX_INPUTS + 1)})


@pytest.mark.parametrize(
    ("param", "made"),
    [
        ("input", lambda more: {"input": [user()] * (limits.MAX_MESSAGES + more)}),
        ("input[0]", lambda more: {"input": [user(TEXT_PARTS * (limits.MAX_PARTS + more))]}),
        ("include", lambda more: {"include": ["reasoning.encrypted_content"] * (limits.MAX_VARIABLES + more)}),
        ("metadata", lambda more: {"metadata": dict.fromkeys(_entries(limits.MAX_METADATA + more), "x")}),
        ("user", lambda more: {"user": NAME + "x" * more}),
    ],
)
async def test_bounds_of_responses(server, param, made):
    response = await server.post("/v1/responses", {"model": "nobody's", "input": "x", **made(0)})
    assert response.status == 404, response.body
    response = await server.post("/v1/responses", {"model": "nobody's", "input": "x", **made(1)})
    assert (response.status, response.error["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        CHAT | {"messages": [user("word " * 1_000_000)]},
        CHAT | {"messages": [user("x" * 1000)] * 1000},
        CHAT | {"messages": [user('{"a": [1, 2], "b": "\\"c\\""}' * 20) for _ in range(800)]},
        CHAT | {"messages": [user(), *[called(json.dumps({"text": "if (a[0]) { b(); }" * 100}))] * 300]},
        CHAT | {"tools": [function(number) for number in range(128)]},
    ],
)
def test_what_people_send_is_taken(body):
    request = parse(ChatRequest, parse_json(json.dumps(body).encode()))
    assert len(request.messages_for_template) == len(body["messages"])


@pytest.mark.parametrize("prompt", [list(range(1_000_000)), [list(range(500))] * 2000, ["word " * 800] * 2000])
def test_long_contexts_are_taken(prompt):
    parse(CompletionRequest, parse_json(json.dumps({"model": MODEL, "prompt": prompt}).encode()))


# --- JSON ---

values = st.recursive(
    st.one_of(st.integers(), st.text(), st.sampled_from(['"', "\\", '\\"', "[{,", "", "é中😀"]), st.none()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@pytest.fixture(scope="module", params=[1, 2, 3, 7, 2**18])
def piece(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("api.http.json_object.PIECE", request.param)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("piece")
@given(values, st.booleans())
def test_counts_are_of_what_is_there(value, ascii_only):
    data = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    exact, rough = Counts._exact(data), Counts.of(data)
    found = counted(value)
    assert (exact.texts, exact.containers) == found[1:]
    assert exact.values >= found[0]  # an empty list counts as if it had one value
    assert rough.values >= exact.values
    assert rough.texts >= exact.texts
    assert rough.containers >= exact.containers


def counted(value):
    """Return the numbers of values, texts and containers."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    parts = [counted(item) for item in inside]
    names = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(part[0] for part in parts),
        isinstance(value, str) + names + sum(part[1] for part in parts),
        isinstance(value, dict | list) + sum(part[2] for part in parts),
    )


@pytest.mark.parametrize(
    ("item", "said"),
    [("[]", "objects and lists"), ("{}", "objects and lists"), ('"ab"', "texts"), ("0", "values"), ("null", "values")],
)
@pytest.mark.parametrize("close", ["]", "", "}", '"', '\\"'])
def test_too_much_of_anything(item, said, close):
    data = f"[{item}{f',{item}' * 2**21}{close}".encode()
    with pytest.raises(BadRequest, match=f"more than [0-9,]+ {said}"):
        parse_json(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"[" + b",".join(b"%d" % number for number in range(10**5, 4 * 10**5)) + b"]",
        b'["' + b"x" * MOST + b'"]',
        ('["' + "中" * (MOST // 3) + '"]').encode(),
        b'["' + rb"\n" * (MOST // 2) + b'"]',
        b'["' + rb"\"[" * (MOST // 3) + b'"]',
        b"[" + b"[]," * (2**21) + b"0]",
        b"[" + b"9" * MOST + b"]",
        b"[" + b"[]," * 4200 + b"0]",
        b"[" + b'{"a":1},' * 60_000 + b"0]",
        b"[" + b'{"role":"user","content":"x"},' * 60_000 + b"0]",
    ],
)
def test_memory_that_json_takes(data):
    tracemalloc.start()
    try:
        parse_json(data)
    except BadRequest:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 15 * len(data)


@pytest.mark.slow
async def test_memory_of_a_body_that_comes_in_small_pieces():
    data = json.dumps({"text": "x" * 200_000}).encode()
    pieces = (data[start : start + 2] for start in range(0, len(data) + 2, 2))

    async def readany():
        await asyncio.sleep(0)
        return next(pieces)

    class Request(dict):
        headers = MappingProxyType({})
        content_type = "application/json"
        content = SimpleNamespace(readany=readany)

    bodies, request = Bodies(2**20), Request({CLIENT: "me"})
    tracemalloc.start()
    try:
        with bodies.account(request):
            assert await bodies.read(request, len) == 1
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 15 * len(data)


@pytest.mark.usefixtures("piece")
@given(st.integers(0, 20))
def test_half_a_character_is_found_wherever_it_is(before):
    with pytest.raises(BadRequest, match="half a character"):
        parse_json(b'["' + b"x" * before + rb'\ud83d"]')


@pytest.mark.parametrize("number", ["9" * 401, "-" + "9" * 5000])
def test_integers_are_short(number):
    with pytest.raises(BadRequest, match="digits"):
        parse_json(f"[{number}]".encode())


def test_arguments_count_together():
    message = called("[" + "[]," * 500 + "0]")
    parse(ChatRequest, CHAT | {"messages": [user(), message]})
    with pytest.raises(BadRequest, match="objects and lists"):
        parse(ChatRequest, CHAT | {"messages": [user(), *[message] * 200]})


@pytest.mark.slow
@given(values)
def test_weights_are_about_as_long_as_the_json(value):
    written = len(json.dumps(value, ensure_ascii=False))
    assert written / 30 <= approximate_bytes(value) <= 20 * written


# --- encodings ---

GZIP = {"Content-Encoding": "gzip"}


async def packed(server, data, headers=GZIP):
    return await server.post("/v1/chat/completions", data=io.BytesIO(data), headers={**headers, "Connection": "close"})


@pytest.mark.slow
async def test_what_a_body_unpacks_to(serve, caplog):
    server = await serve(body_limit=4 * 2**20)
    good = json.dumps(CHAT).encode()
    for spaces, status in ((2**20 - len(good), 200), (2**20, 413), (5 * 2**20, 413)):
        response = await packed(server, gzip.compress(good + b" " * spaces))
        assert response.status == status, spaces
    random = json.dumps(CHAT | {"made_up": [number * 7919 % 10**6 for number in range(400_000)]}).encode()
    assert (await packed(server, gzip.compress(random))).status == 200
    assert caplog.text == ""


@pytest.mark.parametrize("window", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
async def test_deflate_with_and_without_its_header(server, window):
    packer = zlib.compressobj(wbits=window)
    data = packer.compress(json.dumps(CHAT).encode()) + packer.flush()
    assert (await packed(server, data, {"Content-Encoding": "deflate"})).status == 200


@given(data=st.data())
def test_damaged_packages_leave_no_traceback(data):
    from aiohttp import web

    from api.http.body import _decompressed

    whole = bytearray(gzip.compress(json.dumps(CHAT).encode()))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))]) + data.draw(st.binary(max_size=3))
    with contextlib.suppress(BadRequest, web.HTTPRequestEntityTooLarge):
        _decompressed(cut, 16 + zlib.MAX_WBITS, 10**6)


async def test_corrupt_packages_are_not_logged(server, caplog):
    good = gzip.compress(json.dumps(CHAT).encode())
    for bad in (b"not gzip", good[:40], good[:-1], good + b"x", good[:30] + b"xxxx" + good[34:]):
        assert (await packed(server, bad)).status == 400
    assert caplog.text == ""


# --- slow and many bodies ---


async def test_a_body_that_trickles(serve):
    server = await serve(body_s=0.2)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head)

    async def trickle():
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    trickling = asyncio.create_task(trickle())
    begun = time.monotonic()
    answer = await reader.readuntil(b"\r\n\r\n")
    trickling.cancel()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 0.2 <= time.monotonic() - begun < 10


async def test_large_bodies_that_are_held_are_bounded(serve):
    server = await serve(body_limit=100_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    writers = []
    answers = []
    for _ in range(limits.BODIES_HELD_OF_ONE + 4):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + b" " * 99_999)
        writers.append(writer)
        answers.append(asyncio.create_task(reader.read(13)))
    done, _ = await asyncio.wait(answers, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result() for task in done} == {b"HTTP/1.1 429 "}
    assert (await server.chat()).status == 200
    for task in answers:
        task.cancel()
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_large_bodies_count_until_they_are_answered(serve, backend, encoding):
    server = await serve(body_limit=100_000)
    backend.pause_at = 0
    body = json.dumps(CHAT | {"made_up": "x" * 99_000}).encode()
    data = gzip.compress(body) if encoding == "gzip" else body
    sent = {"data": data, "headers": {"Content-Encoding": encoding}}

    def ask():
        return asyncio.create_task(server.post("/v1/chat/completions", **sent))

    asked = [ask() for _ in range(limits.BODIES_HELD_OF_ONE)]
    async with asyncio.timeout(60):
        while len(backend.requests) < len(asked):  # noqa: ASYNC110 - the backend tells nobody
            await asyncio.sleep(0.01)
        assert (await ask()).status == 429
    small = asyncio.create_task(server.chat())
    backend.go_on.set()
    assert [(await task).status for task in asked] == [200] * len(asked)
    assert (await small).status == 200
    assert (await ask()).status == 200


def keyed(key):
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_one_client_may_hold_half_of_all_bodies(serve, backend, path):
    server = await serve(body_limit=100_000, api_keys=["one", "two", "three"])
    backend.pause_at = 0
    more = {"input": "Hello", "background": True} if path == "/v1/responses" else {"messages": CHAT["messages"]}
    data = json.dumps({"model": MODEL, "made_up": "x" * 99_000, **more}).encode()

    async def ask(key):
        return (await server.post(path, data=data, headers=keyed(key))).status

    asked = []
    async with asyncio.timeout(60):
        for key in ("one", "two"):
            asked += [asyncio.create_task(ask(key)) for _ in range(limits.BODIES_HELD_OF_ONE)]
            while len(backend.requests) < len(asked):  # noqa: ASYNC110 - the backend tells nobody
                await asyncio.sleep(0.01)
            assert await ask(key) == 429
        assert await ask("three") == 429  # all together hold no more than before
        backend.go_on.set()
        assert [await task for task in asked] == [200] * len(asked)
        await backend.idle.wait()
        while await ask("one") != 200:  # noqa: ASYNC110 - nobody is told that a background response has ended
            await asyncio.sleep(0.01)


class Bare(dict):
    """A request with one body that has come."""

    headers = MappingProxyType({})
    content_type = "application/json"

    def __init__(self, client, data):
        super().__init__({CLIENT: client})
        pieces = iter([data, b""])

        async def readany():
            return next(pieces)

        self.content = SimpleNamespace(readany=readany)


async def test_clients_take_turns_with_large_bodies():
    bodies, going, parsed = Bodies(2**20), threading.Event(), []
    data = json.dumps({"text": "x" * 2 * limits.SMALL_BODY}).encode()

    async def read(client):
        request = Bare(client, data)

        def make(_):
            going.wait(60)
            parsed.append(client)

        with bodies.account(request):
            await bodies.read(request, make)

    asked = [asyncio.create_task(read("one")) for _ in range(5)]
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(read("two")))
    await asyncio.sleep(0)
    going.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*asked)
    assert parsed == ["one", "two", "one", "one", "one", "one"]


async def test_bodies_that_one_client_lets_wait_keep_no_other_from_waiting(monkeypatch):
    monkeypatch.setattr("api.http.body.BODIES_WAITING", 2)
    bodies, going = Bodies(2**20), threading.Event()

    def work(client):
        return asyncio.create_task(bodies.work(going.wait, small=False, client=client))

    ones = [work("one") for _ in range(4)]
    await asyncio.wait(ones, return_when=asyncio.FIRST_COMPLETED)
    two = work("two")
    await asyncio.sleep(0)
    going.set()
    assert await two
    assert [type(each) for each in await asyncio.gather(*ones, return_exceptions=True)] == [bool] * 3 + [Overloaded]


async def test_what_is_held_after_the_answer_is_freed_at_the_end():
    """A background response may decode its pictures long after the answer."""
    bodies, request, other = Bodies(2**20), Bare("one", b"{}"), Bare("one", b"{}")
    most = limits.BODIES_HELD_OF_ONE * 2**20
    with bodies.account(other):
        with ExitStack() as background:
            with bodies.account(request):
                background.enter_context(bodies.account(request))
            bodies.hold(request, most)
            with pytest.raises(Overloaded):
                bodies.hold(other, limits.SMALL_BODY + 1)
        bodies.hold(other, most - limits.SMALL_BODY - 1)


# --- texts ---


class Counted(str):
    __slots__ = ()
    looks = 0

    def __getitem__(self, index):
        Counted.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("stop", ["a" * 1000, "a" * 999 + "b", "ab" * 500, "a" * 500 + "b" + "a" * 499])
@pytest.mark.parametrize("text", ["a" * 20_000, ("a" * 999 + "c") * 20, "ab" * 10_000])
def test_stops_take_a_time_that_grows_with_the_text(stop, text):
    Counted.looks = 0
    pattern = Pattern(Counted(stop))
    for char in text:
        pattern.step(char)
    assert Counted.looks < 6 * (len(text) + len(stop))


def test_a_stop_that_never_begins_costs_nothing():
    Counted.looks = 0
    matchers = [StopMatcher([Counted("x" * 1000)] * 4) for _ in range(100)]
    assert [matcher.push("Hello") for matcher in matchers] == ["Hello"] * 100
    assert Counted.looks < 100 * 4 * 10


def test_errors_quote_little():
    error = error_object(400, "x" * 10**6, param="y" * 10**6)["error"]
    assert len(error["message"]) == limits.MAX_MESSAGE_CHARS
    assert len(error["param"]) == limits.MAX_PARAM_CHARS


async def test_echoes_of_a_long_prompt_are_bounded(serve):
    server = await serve(body_limit=20_000)
    prompt = "word " * 100
    assert (await server.complete(prompt, echo=True, n=20, max_tokens=0)).status == 200
    response = await server.complete(prompt, echo=True, n=100, max_tokens=0)
    assert (response.status, response.error["param"]) == (400, "echo")
