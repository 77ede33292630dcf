"""A plug-in in a browser, such as Obsidian's: the browser's preflights, and the headers that it
needs in each answer.
"""

import http.client
import json
from urllib.parse import urlsplit

from harness import ASK, HELLO, MODEL, URL, run

ORIGIN = "app://obsidian.md"
SENT = ("authorization", "content-type", "x-stainless-lang", "x-stainless-os", "x-stainless-retry-count")
"""Headers that the openai package for JavaScript adds in a browser."""
WHERE = urlsplit(URL)


def _ask(method: str, path: str, body: object = None, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(WHERE.hostname or "", WHERE.port, timeout=60)
    data = None if body is None else json.dumps(body)
    connection.request(method, WHERE.path + path, data, {"Origin": ORIGIN, **headers})
    response = connection.getresponse()
    told = response.read()
    connection.close()
    return response, told


def _fetch(method: str, path: str, body: object = None) -> tuple[int, bytes]:
    """Like a browser's `fetch`: a preflight, the request, and a check that the page may read the answer."""
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": ",".join(SENT)}
    preflight, _ = _ask("OPTIONS", path, **asked)
    assert preflight.status in (200, 204), "without a key, and on every path"
    assert preflight.headers["Access-Control-Allow-Origin"] in ("*", ORIGIN)
    allowed = {name.strip().lower() for name in preflight.headers["Access-Control-Allow-Headers"].split(",")}
    assert allowed >= set(SENT), "each by its name: * does not cover Authorization"
    assert method in preflight.headers["Access-Control-Allow-Methods"]
    response, told = _ask(method, path, body, Authorization="Bearer any", **{"Content-Type": "application/json"})
    assert response.headers["Access-Control-Allow-Origin"] in ("*", ORIGIN)
    assert "Access-Control-Allow-Credentials" not in response.headers
    return response.status, told


def plain_and_streamed() -> None:
    body = {"model": MODEL, "messages": ASK, "temperature": 0}
    status, told = _fetch("POST", "/chat/completions", body)
    assert status == 200
    assert json.loads(told)["choices"][0]["message"]["content"] == HELLO
    status, told = _fetch("POST", "/chat/completions", {**body, "stream": True})
    *events, end = told.decode().split("\n\n")
    assert (status, end, events.pop()) == (200, "", "data: [DONE]")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == HELLO


def models() -> None:
    status, told = _fetch("GET", "/models")
    assert status == 200
    assert MODEL in [model["id"] for model in json.loads(told)["data"]]


def refusals() -> None:
    """A page may read the reason."""
    for path, body, expected in (
        ("/chat/completions", {"model": MODEL}, 400),
        ("/chat/completions", {"model": "nothing", "messages": ASK}, 404),
        ("/nowhere", {}, 404),
    ):
        status, told = _fetch("POST", path, body)
        assert status == expected
        assert json.loads(told)["error"]["message"]


if __name__ == "__main__":
    run(plain_and_streamed, models, refusals)
