"""A split model as clients see it: real clients, and rules of the API that only a real model can break."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conftest import DIALOG, MODEL, PATIENCE_S, PROMPTS, ROOT, Cluster, Node, printed, until

pytestmark = pytest.mark.slow

CLIENTS = ROOT / "tests" / "clients"


@pytest.fixture
def node(three: Cluster) -> Node:
    """A node that is neither head nor driver, so all of its answers come over the network."""
    status = three.ready(*three.nodes)
    return next(node for node in three.nodes if node is not three.head(status))


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of stock mlx-lm for the clients' checks."""
    file = tmp_path_factory.mktemp("known") / "known.json"
    file.write_text(json.dumps(printed(str(CLIENTS / "known.py"), str(ROOT / "node" / "builtin" / MODEL))))
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


# --- several at once --------------------------------------------------------------------------------------------------


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
