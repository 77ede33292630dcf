"""A stream outlives a node of its ring through every API that the server speaks: it is the same chat for the ring."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from tests.conftest import MODEL, PATIENCE_S, PROMPTS, Cluster, Node
from tests.strict import check_answer

pytestmark = pytest.mark.slow

OPTIONS = ("--model", MODEL, "--stages", "2", "--context", "1024", "--max-sessions", "4")
CONTENT = "Count from 1 to 100"
MESSAGES = [{"role": "user", "content": CONTENT}]


class Surface(NamedTuple):
    path: str
    body: Mapping[str, Any]
    texts: Callable[[bytes], Iterator[str]]
    """The pieces of text in a line of the stream."""


def ollama_texts(line: bytes) -> Iterator[str]:
    part = json.loads(line)
    assert "error" not in part, part
    yield part["message"]["content"]


def anthropic_texts(line: bytes) -> Iterator[str]:
    if line.startswith(b"data: "):
        event = json.loads(line.removeprefix(b"data: "))
        assert event["type"] != "error", event
        if event["type"] == "content_block_delta":
            yield event["delta"]["text"]


SURFACES = {
    "ollama": Surface("/api/chat", {"options": {"temperature": 0, "num_predict": PROMPTS[CONTENT]}}, ollama_texts),
    "anthropic": Surface("/v1/messages", {"max_tokens": PROMPTS[CONTENT], "temperature": 0}, anthropic_texts),
}


@pytest.fixture
def ring(cluster: Cluster) -> list[Node]:
    """A gateway that is too small for layers, and two nodes that hold a half each and have room for the whole."""
    gateway = cluster.launch(*OPTIONS, "--memory", "1MB", name="gateway")
    nodes = [cluster.launch(*OPTIONS, "--memory", "1GB", name=f"n{number}") for number in (1, 2)]
    for node in (gateway, *nodes):
        node.started()
    status = cluster.ready(gateway, *nodes, stages=2)
    return [gateway, *cluster.ring(status)]


def read(surface: Surface, node: Node, begun: threading.Event) -> str:
    """Read a whole stream, whose form is checked. `begun` is set when it has some text."""
    text, lines = "", []
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, **surface.body}
    with node.request("POST", surface.path, body) as response:
        for line in response:
            lines.append(line)
            text += "".join(surface.texts(line))
            if len(text) > 50:
                begun.set()
    content_type = response.headers["Content-Type"]
    check_answer("POST", surface.path, response.status, content_type, b"".join(lines))
    return text


def test_the_driver_is_killed(ring: list[Node], stock: dict[str, str]) -> None:
    gateway, driver, _ = ring
    begun = [threading.Event() for _ in SURFACES]
    with ThreadPoolExecutor(len(SURFACES)) as threads:
        texts = threads.map(read, SURFACES.values(), [gateway] * len(SURFACES), begun)
        assert all(each.wait(PATIENCE_S) for each in begun), "the streams begin"
        driver.kill()
        assert dict(zip(SURFACES, texts, strict=True)) == dict.fromkeys(SURFACES, stock[CONTENT])
