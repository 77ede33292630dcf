"""A split model as clients see it: real clients, and rules of the API that only a real model can break."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conftest import DIALOG, MODEL, NODE_ENVIRONMENT, PATIENCE_S, PROMPTS, ROOT, Cluster, Node, chat_body, until

pytestmark = pytest.mark.slow

CLIENTS = ROOT / "tests" / "clients"
LONG: dict[str, Any] = {"content": "Count from 1 to 100", "ignore_eos": True, "max_tokens": 1500}


@pytest.fixture
def node(three: Cluster) -> Node:
    """A node that is neither head nor driver, so all of its answers come over the network."""
    status = three.ready(*three.nodes)
    return next(node for node in three.nodes if node is not three.head(status))


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of stock mlx-lm for the clients' checks, computed in a separate process, as for `stock`."""
    command = [sys.executable, str(CLIENTS / "known.py"), str(ROOT / "node" / "builtin" / MODEL)]
    environment = os.environ | NODE_ENVIRONMENT
    done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    file = tmp_path_factory.mktemp("known") / "known.json"
    file.write_bytes(done.stdout)
    return file


@pytest.mark.parametrize(
    ("client", "checks"),
    [
        ("openai", []),
        ("anthropic", ["plain_and_streamed", "the_cache", "tools"]),
        ("llm", ["plain_and_streamed"]),
        ("org_ai", []),
        ("browser", []),
        ("mantella", []),
        ("ollama", []),
        ("ollama_tools", []),
    ],
)
def test_clients(node: Node, known: Path, client: str, checks: list[str]) -> None:
    """Clients without packages of their own; scripts/clients.py runs all of them."""
    given = {"CLIENT_URL": f"{node.url}/v1", "CLIENT_KNOWN": str(known), "PYTHONPATH": str(CLIENTS)}
    command = [sys.executable, str(CLIENTS / client / "check.py"), *checks]
    environment = {**os.environ, **given}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_openai_responses(node: Node, stock: dict[str, str]) -> None:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="any", max_retries=0) as client:
        with client.responses.stream(model=MODEL, input="Hello", temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            first = stream.get_final_response()
        assert text == first.output_text == stock["Hello"]
        assert client.responses.retrieve(first.id).output_text == text
        again = client.responses.create(model=MODEL, input="Hello", temperature=0, previous_response_id=first.id)
        whole: Any = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "Hello"},
        ]
        chat = client.chat.completions.create(model=MODEL, messages=whole, temperature=0)
        assert again.output_text == chat.choices[0].message.content


# --- what an answer holds -----------------------------------------------------------------------------------------------


def test_no_control_token_is_shown(node: Node) -> None:
    for content in PROMPTS:
        assert "<|" not in node.chat(content, max_tokens=100).text
    beyond = node.chat("Hello", ignore_eos=True, max_tokens=60)
    assert "<|" not in beyond.text
    assert beyond.json["choices"][0]["finish_reason"] == "length"
    assert beyond.json["usage"]["completion_tokens"] == 60


def test_a_conversation(node: Node, stock: dict[str, str]) -> None:
    answer = node.post("/v1/chat/completions", {"model": MODEL, "messages": DIALOG, "temperature": 0})
    assert answer.text == stock["dialog"]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("8", "1, 2, 3, 4, 5, 6, 7, "),
        ("5, 6", "1, 2, 3, 4, "),  # several tokens
        (["nothing", "11", "7, 8"], "1, 2, 3, 4, 5, 6, "),
        ("1", ""),
    ],
)
def test_stop_strings(node: Node, stop: Any, text: str) -> None:
    with node.stream("Count from 1 to 20", stop=stop) as events:
        assert events.rest() == text
        assert events.finish == "stop"
    answer = node.chat("Count from 1 to 20", stop=stop)
    assert answer.text == text
    assert answer.json["choices"][0]["finish_reason"] == "stop"
    until(lambda: node.running() == 0, "what follows a stop string is not generated")


def test_emoji_are_never_split(node: Node, stock: dict[str, str]) -> None:
    for content in ("Hello", "Repeat after me: apple banana 🙂 orange"):
        with node.stream(content) as events:
            pieces = [choice["delta"].get("content") or "" for chunk in events for choice in chunk["choices"]]
        assert "".join(pieces) == stock[content]
        assert not any("\ufffd" in piece for piece in pieces)
    assert any(ord(char) > 0xFFFF for char in stock["Hello"])


def test_any_bytes_stream_as_they_are_answered_plain(node: Node) -> None:
    """Noise: tokens of half characters in any order."""
    noise = {"temperature": 2.0, "seed": 11, "ignore_eos": True, "max_tokens": 150}
    assert node.streamed("Hello", **noise) == node.chat("Hello", **noise).text


def test_max_tokens(node: Node) -> None:
    answer = node.chat("Count from 1 to 100", max_tokens=7)
    assert answer.json["choices"][0]["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 7
    assert node.chat("Count from 1 to 100", max_completion_tokens=7).text == answer.text
    with node.stream("Count from 1 to 100", max_tokens=7) as events:
        assert events.rest() == answer.text
        assert events.finish == "length"


def test_a_seed_repeats_and_no_seed_does_not(node: Node) -> None:
    hot = {"temperature": 2.0, "max_tokens": 40}
    seeded = {node.chat("Tell me a story.", seed=5, **hot).text for _ in range(2)}
    seeded.add(node.streamed("Tell me a story.", seed=5, **hot))
    assert len(seeded) == 1
    unseeded = {node.chat("Tell me a story.", **hot).text for _ in range(3)}
    assert len(unseeded) == 3


def test_usage(node: Node) -> None:
    plain = node.chat("Hello").json["usage"]
    assert plain["prompt_tokens"] > 1
    assert plain["completion_tokens"] > 5
    assert plain["total_tokens"] == plain["prompt_tokens"] + plain["completion_tokens"]
    with node.stream("Hello", stream_options={"include_usage": True}) as events:
        *_, last = events
    assert last["choices"] == []
    assert {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens")} == {
        name: plain[name] for name in ("prompt_tokens", "completion_tokens")
    }
    with node.stream("Hello") as events:
        assert not any("usage" in chunk for chunk in events)


# --- several at once, and closed connections --------------------------------------------------------------------------


def test_requests_at_once_do_not_mix(three: Cluster, stock: dict[str, str]) -> None:
    asked = list(PROMPTS)[:8]

    def ask(number: int) -> str:
        node, content = three.nodes[number % len(three.nodes)], asked[number]
        if number % 2:
            return node.streamed(content, max_tokens=PROMPTS[content])
        return node.chat(content, max_tokens=PROMPTS[content]).text

    with ThreadPoolExecutor(len(asked)) as threads:
        texts = list(threads.map(ask, range(len(asked))))
    assert texts == [stock[content] for content in asked]


@contextlib.contextmanager
def hung_up(node: Node) -> Iterator[None]:
    """Send a plain request and close the connection before the answer."""
    connection = http.client.HTTPConnection(node.host, node.port)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(**LONG)))
        yield
    finally:
        connection.close()


def test_a_client_that_hangs_up_frees_its_session(node: Node) -> None:
    until(lambda: node.running() == 0, "the cluster is idle")
    before = node.answered()
    with node.stream(**LONG) as events:
        next(iter(events))
        until(lambda: node.running() == 1, "the stream is shown")
    until(lambda: node.running() == 0, "the stream's session is freed")
    with hung_up(node):
        until(lambda: node.running() == 1, "the plain request is shown")
    until(lambda: node.running() == 0, "the plain request's session is freed")
    assert node.answered() < before + LONG["max_tokens"], "neither went on to its end"
