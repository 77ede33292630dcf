"""No request, however odd, causes a 500, a hang or a traceback, or leaves anything behind.

For a long search: `scripts/test tests/api/test_fuzz.py --hypothesis-profile long`.
"""

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.app import create_app
from api.http.limits import MAX_WAITING
from api.http.server import ApiServer
from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from node.text.tokenizer import Tokenizer
from tests.api.conftest import MODEL, ScriptedBackend, ScriptedModel
from tests.api.fuzz import GOOD, JSON_PIECES, answers_to, bodies, damaged, pipelines, raw_requests, written
from tests.conftest import until
from tests.strict import check_answer

WITHIN_S = 10.0
"""Seconds after which an answer counts as hung."""
QUIET_S = 0.1
"""After this many seconds without a byte, the server is waiting for the rest of a request."""
more = settings(max_examples=3 * settings.default.max_examples)
EXPECTED = (200, 204, 400, 401, 403, 404, 405, 413, 415, 417)


class Served:
    """A gateway on a loop in its own thread, so that Hypothesis can send many requests in one test."""

    def __init__(self, tokenizer: Tokenizer, sandbox_server: SandboxServer) -> None:
        self.backend = ScriptedBackend(ScriptedModel(MODEL, 256, tokenizer), Grammars(sandbox_server))
        hello = [*tokenizer.encode("Hello there!"), *tokenizer.eos]
        self.backend.script = lambda request: [*hello, *[300] * request.max_tokens]
        self.paths: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        app, server = create_app(self.backend), ApiServer(["127.0.0.1"], 0)
        await server.start(app)
        self.address = ("127.0.0.1", server.port)
        self.paths = {resource.canonical for resource in app.router.resources()}
        self._ready.set()
        await self._end.wait()
        await server.stop()
        await self.backend.grammars.end()

    def ask(self, method: str, path: str, data: bytes) -> int:
        """Send a request; check the answer or refusal, and return its status."""
        connection = http.client.HTTPConnection(*self.address, timeout=WITHIN_S)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        assert response.status in EXPECTED, body
        assert b"Traceback" not in body
        check_answer(method, path, response.status, response.headers.get("Content-Type", ""), body)
        return response.status

    def send(self, data: bytes, quiet_s: float = QUIET_S) -> bytes:
        """Send bytes; return the response."""
        answer = b""
        with socket.create_connection(self.address, timeout=quiet_s) as client:
            try:
                client.sendall(data)
                while part := client.recv(65536):
                    answer += part
            except (ConnectionError, TimeoutError):
                pass
        return answer

    def tasks(self) -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return asyncio.run_coroutine_threadsafe(count(), self._loop).result(WITHIN_S)


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer, sandbox_server: SandboxServer) -> Iterator[Served]:
    with Served(tokenizer, sandbox_server) as served:
        yield served


@pytest.fixture(autouse=True)
def left_as_before(served: Served) -> Iterator[None]:
    before = served.tasks()
    yield
    good = {"model": MODEL, **GOOD["/v1/chat/completions"]}
    assert served.ask("POST", "/v1/chat/completions", written(good)) == 200
    until(lambda: served.tasks() <= before, "no request's task is left")
    assert served.backend.running == 0


def endpoints(served: Served) -> list[str]:
    return [path for path in GOOD if path in served.paths]


@more
@given(st.data())
def test_bodies_around_the_schema(served: Served, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(endpoints(served)))
    served.ask("POST", path, written(data.draw(bodies(path))))


@pytest.mark.slow
@given(st.data())
def test_bodies_around_json(served: Served, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(endpoints(served)))
    good = json.dumps({"model": MODEL, **GOOD[path], "stream": True}).encode()
    served.ask("POST", path, data.draw(damaged(good, JSON_PIECES)))


@given(st.data())
def test_any_path_and_method(served: Served, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(served.paths)))
    filled = re.sub(
        r"\{[^}]*\}", data.draw(st.sampled_from(["x", "a/b", "a%2Fb", "%00", "..", "é".encode().hex()])), path
    )
    method = data.draw(st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"]))
    body = data.draw(st.sampled_from([b"", b"{}", b"[]", written({"model": MODEL, **GOOD["/v1/completions"]})]))
    served.ask(method, filled + data.draw(st.sampled_from(["", "?", "?limit=x&after=%ff&stream=true"])), body)


@pytest.mark.slow
@more
@given(st.data())
def test_bytes_around_http(served: Served, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(endpoints(served)))
    answer = served.send(data.draw(raw_requests(path)))
    assert b"Traceback" not in answer
    # The former body may have become another request.
    for each in re.split(rb"(?=HTTP/\d\.\d \d{3} [A-Z])", answer):
        if not each:
            continue
        status = re.match(rb"HTTP/\d\.\d (\d{3}) ", each)
        assert status, answer
        assert int(status[1]) < 500, answer
        head, _, body = each.partition(b"\r\n\r\n")
        if int(status[1]) >= 400 and body:
            assert b"\r\nContent-Type: application/json" in head
            error = json.loads(body)["error"]
            assert (isinstance(error, str) and error) or set(error) >= {"message", "type"}


@given(st.data())
def test_each_request_of_a_connection_has_one_answer(served: Served, data: st.DataObject) -> None:
    sent = data.draw(pipelines(data.draw(st.sampled_from(endpoints(served)))))
    answer = served.send(b"".join(request for _, request in sent), WITHIN_S)
    answers = answers_to([method for method, _ in sent], answer)
    assert answers or len(sent) > MAX_WAITING, "the first request is answered, unless too many wait behind it"
    assert all(status in EXPECTED for status, _ in answers)
    assert b"Traceback" not in answer


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 2,
    ],
)
def test_an_answer_that_confuses_a_proxy_is_seen(answer: bytes) -> None:
    with pytest.raises(ValueError, match="follows the answers to HEAD"):
        answers_to(["HEAD"], answer)


@given(st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_http(served: Served, data: bytes) -> None:
    if answer := served.send(data):
        assert re.match(rb"HTTP/\d\.\d 4\d\d ", answer), answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
