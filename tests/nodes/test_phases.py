"""Losses at an exact moment: the test waits for a node's state, and holds it, before the node is lost.

Meanwhile eight requests of all kinds run, greedy and with seeds. Each must have its undisturbed result: texts, calls,
log-probabilities, finish reasons. The tests share a cluster and take it as the previous test left it: a gateway too
small for layers, and four nodes of which two form the ring.
"""

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from typing import Any

import pytest

from tests.conftest import MODEL, PATIENCE_S, Cluster, Node, running_cluster, until

pytestmark = pytest.mark.slow

OPTIONS = ("--model", MODEL, "--stages", "2", "--context", "2048", "--max-sessions", "2", "--max-rings", "1")
LETTERS = {"type": "array", "items": {"enum": ["a", "b", "é", "日本"]}, "minItems": 25, "maxItems": 25}
MOVE = {"type": "object", "properties": {"to": LETTERS}, "required": ["to"], "additionalProperties": False}
NUMBERS = " ".join(str(n) for n in range(1, 420))
"""Some fifteen hundred tokens: a dozen chunks."""


def chat(content: str, **body: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **body}


LOSSES = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
"""The node dies, hangs, or leaves."""
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
TOOLS = [{"type": "function", "function": {"name": "move", "parameters": MOVE}}]
REQUESTS = [
    chat("Count from 1 to 100", temperature=0, max_tokens=100),
    chat("Tell me a story.", temperature=1, seed=1, max_tokens=80, **LOGPROBS),
    chat("Tell me a story.", temperature=1, seed=2, n=2, max_tokens=60),
    chat("Move", temperature=1, seed=3, max_tokens=200, tools=TOOLS, tool_choice="required"),
    chat("Count from 1 to 60", temperature=0.7, seed=4, frequency_penalty=0.3, logit_bias={"5": -2}, max_tokens=80),
    ("/v1/completions", {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 60, "logprobs": 2}),
    ("/v1/completions", {"prompt": ["Hello", "I am"], "temperature": 1, "seed": 5, "n": 2, "max_tokens": 40}),
    chat(f"{NUMBERS[:600]} What comes next?", temperature=0, max_tokens=20),
]


@dataclass
class Choice:
    text: str = ""
    calls: str = ""
    tokens: str = ""
    logprobs: Any = field(default_factory=list)
    finish: str | None = None


Choices = dict[int, Choice]


def read(node: Node, path: str, body: dict[str, Any], begun: Callable[[], None] = lambda: None) -> Choices:
    """Return all choices of a streamed answer; call `begun` with each event."""
    whole = {"model": MODEL, "stream": True, "ignore_eos": "tools" not in body, **body}
    choices: Choices = defaultdict(Choice)
    with node.request("POST", path, whole) as response:
        assert response.status == 200, response.read()
        for line in response:
            if line == b"\n" or line.startswith(b": "):
                continue
            if line == b"data: [DONE]\n":
                return choices
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                _take(choices[choice["index"]], choice)
            begun()
    raise AssertionError(f"the stream broke off: {choices}")


def _take(seen: Choice, choice: dict[str, Any]) -> None:
    delta, logprobs = choice.get("delta", {}), choice.get("logprobs") or {}
    seen.text += choice.get("text") or delta.get("content") or ""
    for call in delta.get("tool_calls") or []:
        seen.calls += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
    told = [(token["token"], token["logprob"]) for token in logprobs.get("content") or []]
    told += zip(logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [], strict=True)
    for token, logprob in told:
        seen.tokens += token
        seen.logprobs.append(logprob)
    seen.finish = choice.get("finish_reason") or seen.finish


def alike(choices: Choices) -> Choices:
    """For a comparison with another run: in another batch, the last digits of a log-probability may differ."""
    return {n: replace(seen, logprobs=pytest.approx(seen.logprobs, abs=0.01)) for n, seen in choices.items()}


@dataclass
class Home:
    cluster: Cluster
    gateway: Node
    rest: list[Node]
    undisturbed: list[Choices] = field(default_factory=list)

    def ring(self) -> list[Node]:
        """The nodes of the ring, with all nodes running: nodes that a test has ended are started again."""
        for node in [node for node in self.rest if node.process.poll() is not None]:
            self.rest.remove(node)
            self.rest.append(self.cluster.launch(*OPTIONS, "--memory", "1GB", name=node.name).started())
        return self.cluster.ring(self.cluster.ready(self.gateway, *self.rest, stages=2))

    def node(self, node_id: str) -> Node:
        return self.cluster.node(self.gateway.status(), node_id)

    def model(self) -> dict[str, Any]:
        """The model as the gateway sees it now."""
        return self.gateway.status()["models"][0]

    @contextmanager
    def disturbed(self, *, begun: bool = True) -> Iterator[None]:
        """Run all requests, and the body once the first has some tokens. At the end all must have
        their usual results.
        """
        on_its_way = threading.Semaphore(0)
        with ThreadPoolExecutor(len(REQUESTS)) as threads:
            answers = [threads.submit(read, self.gateway, *request, on_its_way.release) for request in REQUESTS]
            for _ in range(40 if begun else 0):
                assert on_its_way.acquire(timeout=PATIENCE_S), "the first request begins"
            yield
            for answer, undisturbed in zip(answers, self.undisturbed, strict=True):
                assert answer.result() == alike(undisturbed)
        until(lambda: self.gateway.running() == 0, "no session is left")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with running_cluster(tmp_path_factory.mktemp("phases")) as cluster:
        gateway = cluster.launch(*OPTIONS, "--memory", "1MB", name="gateway")
        rest = [cluster.launch(*OPTIONS, "--memory", "1GB", name=f"n{number}") for number in (1, 2, 3, 4)]
        home = Home(cluster, gateway.started(), [node.started() for node in rest])
        home.ring()
        with ThreadPoolExecutor(len(REQUESTS)) as threads:
            home.undisturbed = list(threads.map(lambda request: read(gateway, *request), REQUESTS))
        assert all(seen.text or seen.calls for choices in home.undisturbed for seen in choices.values())
        yield home


def over(lost: Node, number: signal.Signals) -> None:
    """End the loss: a node that hung continues; a node that left has ended."""
    if number == signal.SIGSTOP:
        lost.signal(signal.SIGCONT)
    else:
        lost.wait()


@pytest.mark.parametrize("number", LOSSES)
def test_while_requests_wait_in_the_queue(home: Home, number: signal.Signals) -> None:
    driver, _ = home.ring()
    with home.disturbed(begun=False):
        until(lambda: home.model()["requests"]["queued"] > 0, "some have to wait")
        driver.signal(number)
    over(driver, number)


@pytest.mark.parametrize("mishap", ["driver killed", "driver leaves", "stage killed", "stage hangs"])
def test_between_two_chunks_of_a_prompt(home: Home, mishap: str) -> None:
    """The stage is stopped, so the driver can run the first chunks but not the rest."""
    driver, stage = home.ring()
    unheard = chat(f"Not heard so far, {mishap}: {NUMBERS}", temperature=0, max_tokens=40)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        stage.signal(signal.SIGSTOP)
        try:
            answer = thread.submit(read, home.gateway, *unheard, begun.set)
            until(lambda: home.model()["requests"]["running"] == 1, "the prompt has a place")
            assert not begun.is_set()
            if mishap == "stage killed":
                stage.kill()
            elif mishap != "stage hangs":
                driver.signal(signal.SIGKILL if mishap == "driver killed" else signal.SIGTERM)
                stage.signal(signal.SIGCONT)
            disturbed = answer.result()
        finally:
            stage.signal(signal.SIGCONT)
    assert disturbed == alike(read(home.gateway, *unheard))
    if mishap.startswith("driver"):
        driver.wait()


def test_another_node_hangs_while_a_head_is_elected(home: Home) -> None:
    """The node that would be the next head, so there is no head until its hang is detected."""
    home.ring()
    status = home.gateway.status()
    head = home.node(status["head"])
    ranked = sorted(node["id"] for node in status["nodes"] if node["name"] in {node.name for node in home.rest})
    heir = home.node(next(node for node in ranked if node != status["head"]))
    try:
        with home.disturbed():
            heir.signal(signal.SIGSTOP)
            head.kill()
            until(lambda: not home.gateway.status()["head"], "there is no head")
        until(lambda: home.gateway.status()["head"] not in (status["head"], ""), "another node is head")
        assert home.gateway.status()["term"] > status["term"]
    finally:
        heir.signal(signal.SIGCONT)


@pytest.mark.parametrize("number", LOSSES)
def test_the_next_driver_is_lost_before_it_has_taken_over(home: Home, number: signal.Signals) -> None:
    driver, _ = home.ring()
    before = home.model()["rings"][0]["id"]

    def next_driver() -> Node | None:
        ring = home.model()["rings"][0]
        return home.node(ring["driver"]) if ring["id"] != before else None

    with home.disturbed():
        driver.kill()
        heir = until(next_driver, "there is another ring")
        heir.signal(number)
    over(heir, number)


def test_who_asked_a_node_that_dies_sees_it_and_is_served_by_another(home: Home) -> None:
    driver, _ = home.ring()
    begun = threading.Semaphore(0)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(read, driver, *REQUESTS[0], begun.release)
        for _ in range(20):
            assert begun.acquire(timeout=PATIENCE_S)
        driver.kill()
        with pytest.raises((AssertionError, OSError, HTTPException)):
            answer.result()
    assert read(home.gateway, *REQUESTS[0]) == alike(home.undisturbed[0])
