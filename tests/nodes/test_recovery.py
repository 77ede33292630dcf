"""Streams outlive the nodes of their ring, whatever happens to those, and whenever.

The tests share a cluster and take it as the previous test left it: a gateway too small to hold layers or to be head,
and three nodes of which two form the ring. Eight streams are more than the ring has room for, so some always wait.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jsonschema
import pytest

from tests.conftest import MODEL, PATIENCE_S, Cluster, Node, running_cluster, until
from tests.nodes.calls import DIALECTS, Called

pytestmark = pytest.mark.slow

SESSIONS = 2
OPTIONS = ("--model", MODEL, "--stages", "2", "--context", "1024", "--max-sessions", str(SESSIONS))
GREEDY: dict[str, Any] = {"content": "Count from 1 to 100", "max_tokens": 300}
HALF = "86MB"
"""With a context of 2048, the model takes 82 MB on one node, and half of it 74."""
LONG_PROMPT = " ".join(str(n) for n in range(1, 200))
"""Some seven hundred tokens: several chunks."""
LETTERS = {"type": "array", "items": {"enum": ["a", "b", "é", "日本"]}, "minItems": 30, "maxItems": 30}
GUIDED: dict[str, Any] = {
    "content": "Letters",
    "temperature": 1,
    "seed": 7,
    "response_format": {"type": "json_schema", "json_schema": {"name": "letters", "schema": LETTERS}},
}
"""A demanded format holds after a loss, too: its state is computed anew from the tokens."""
PATH = {
    "type": "object",
    "properties": {"city": {**LETTERS, "minItems": 90, "maxItems": 90}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Of a strict tool. Its grammar holds after a loss, too. Its calls have hundreds of tokens, nearly all of the answer."""
CALLS_AT_ONCE = 12
STREAMS: list[dict[str, Any]] = [
    GREEDY,
    *({"content": f"Count from {n} to 60", "max_tokens": 80} for n in range(1, 4)),
    *({"content": "Tell me a story.", "max_tokens": 80, "temperature": 1, "seed": seed} for seed in range(1, 3)),
    GUIDED,
    {"content": f"{LONG_PROMPT} What comes next?", "max_tokens": 20},
]


@dataclass
class Home:
    cluster: Cluster
    gateway: Node
    rest: list[Node]
    texts: list[str] = field(default_factory=list)
    """The undisturbed text of each stream."""

    def ready(self) -> dict[str, Any]:
        """Wait until two nodes serve the model, with all nodes running: nodes that a test has ended are started again."""
        for node in [node for node in self.rest if node.process.poll() is not None]:
            self.rest.remove(node)
            self.rest.append(self.cluster.launch(*OPTIONS, "--memory", "1GB", name=node.name).started())
        # A node that was left alone serves the model by itself, until the others have been back for a while.
        return self.cluster.ready(self.gateway, *self.rest, stages=2)

    def ring(self) -> list[Node]:
        """The two nodes that serve the model, as in `ready`."""
        return self.cluster.ring(self.ready())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with running_cluster(tmp_path_factory.mktemp("recovery")) as cluster:
        gateway = cluster.launch(*OPTIONS, "--memory", "1MB", name="gateway")
        rest = [cluster.launch(*OPTIONS, "--memory", "1GB", name=f"n{number}") for number in (1, 2, 3)]
        for node in (gateway, *rest):
            node.started()
        home = Home(cluster, gateway, rest)
        home.ready()
        with ThreadPoolExecutor(SESSIONS) as threads:  # as many as the ring has room for
            home.texts = list(threads.map(lambda stream: gateway.streamed(**stream), STREAMS))
        yield home


def through(home: Home, mishap: Callable[[], None]) -> None:
    """Run all streams at once, and call `mishap` when the first has some tokens."""
    on_its_way = threading.Event()

    def read(stream: dict[str, Any]) -> str:
        with home.gateway.stream(**stream) as events:
            for count, _ in enumerate(events):
                if stream is GREEDY and count == 20:
                    on_its_way.set()
            return events.text

    with ThreadPoolExecutor(len(STREAMS)) as threads:
        texts = threads.map(read, STREAMS)
        assert on_its_way.wait(PATIENCE_S), "the first stream begins"
        mishap()
        assert list(texts) == home.texts
    until(lambda: home.gateway.running() == 0, "no session is left")


def test_undisturbed_streams_say_what_stock_says(home: Home, stock: dict[str, str]) -> None:
    assert home.texts[0] == stock[GREEDY["content"]]
    jsonschema.validate(json.loads(home.texts[STREAMS.index(GUIDED)]), LETTERS)


@pytest.mark.parametrize(
    ("place", "number"),
    [(0, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGINT)],
    ids=["driver killed", "stage killed", "stage leaves"],
)
def test_a_node_of_the_ring_ends(home: Home, place: int, number: signal.Signals) -> None:
    victim = home.ring()[place]
    through(home, lambda: victim.signal(number))
    assert victim.wait() in (0, -signal.SIGKILL)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ss"),
    reason="only root can reset others' connections, with Linux's ss; a Mac has no such command",
)
@pytest.mark.parametrize("place", [0, 1], ids=["driver", "stage"])
def test_the_connections_of_a_node_are_reset(home: Home, place: int) -> None:
    """No node is lost, and so no KV: the next ring begins with the KV of its stages."""
    prompt = home.gateway.chat(GREEDY["content"], max_tokens=1).json["usage"]["prompt_tokens"]
    ring = home.ring()
    before = len(ring[0].written)
    through(home, lambda: reset_connections(ring[place]))
    assert home.ring() == ring
    kept = re.findall(r"goes on with the KV of (\d+) tokens", ring[0].written[before:])
    # The first stream has 20 tokens by then. A stage takes back those of which it has not heard that they are right: fewer.
    assert sum(map(int, kept)) > prompt, kept


def reset_connections(node: Node) -> None:
    """Reset all connections to its gRPC port."""
    listening = subprocess.run(["ss", "-tHlnp"], capture_output=True, text=True, check=True).stdout
    lines = [line for line in listening.splitlines() if f"pid={node.process.pid}," in line]
    ports = {re.search(r":(\d+)\s", line)[1] for line in lines} - {str(node.port)}
    assert ports
    for port in ports:
        command = ["ss", "-tHK", "state", "established", "sport", "=", f":{port}"]
        assert subprocess.run(command, capture_output=True, text=True, check=False).stdout


def test_a_stage_hangs(home: Home) -> None:
    _, victim = home.ring()
    try:
        through(home, lambda: victim.signal(signal.SIGSTOP))
        seen = next(node for node in home.rest if node is not victim)
        until(lambda: seen.state_of(victim) == "failed", "the others see that it hangs")
    finally:
        victim.signal(signal.SIGCONT)
    home.ready()


def test_a_stage_hangs_for_a_moment(home: Home) -> None:
    victim = home.ring()[1]

    def pause() -> None:
        victim.signal(signal.SIGSTOP)
        time.sleep(0.7)  # shorter than --fail-after, unless this machine is busy
        victim.signal(signal.SIGCONT)

    through(home, pause)
    home.ready()


def test_the_driver_dies_while_the_others_elect_a_head(home: Home) -> None:
    status = home.ready()
    head = home.cluster.head(status)
    other = next(node for node in home.cluster.ring(status) if node is not head)

    def mishap() -> None:
        head.kill()
        time.sleep(0.2)  # the other nodes have noticed, and have no head yet
        other.kill()

    through(home, mishap)


def test_a_node_dies_while_it_loads_what_another_left(home: Home) -> None:
    driver, stage = home.ring()
    spare = next(node for node in home.rest if node not in (driver, stage))
    before = len(spare.written)

    def mishap() -> None:
        stage.kill()
        until(lambda: re.search("loading|unloading", spare.written[before:]), "the spare node takes over")
        spare.kill()

    through(home, mishap)


@pytest.mark.parametrize("place", [0, 1], ids=["driver", "stage"])
def test_calls_of_strict_tools_are_valid_though_a_node_dies_in_their_midst(home: Home, place: int) -> None:
    gateway, victim = home.gateway, home.ring()[place]
    tool = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": PATH}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]

    def ask(seed: int) -> Called:
        ask_in = DIALECTS[seed % len(DIALECTS)]
        return ask_in(gateway, messages, tool, model=MODEL, temperature=1, seed=seed)

    before, resumed = gateway.metric("pippin_first_token_seconds_count"), gateway.metric("pippin_recoveries_total")
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        called = threads.map(ask, range(CALLS_AT_ONCE))
        begun = before + SESSIONS
        until(lambda: gateway.metric("pippin_first_token_seconds_count") >= begun, "the first calls have begun")
        victim.kill()
        calls = [call for calls in called for call in calls]
    assert gateway.metric("pippin_recoveries_total") > resumed
    assert len(calls) > CALLS_AT_ONCE // 2
    for name, arguments in calls:
        assert name == "get_weather"
        jsonschema.validate(arguments, PATH)
    home.ready()


def test_what_fits_no_more_is_told(cluster: Cluster) -> None:
    """Two nodes that hold a half each; neither can hold the whole."""
    gateway, other = cluster.start(2, "--model", MODEL, "--memory", HALF, "--context", "2048", "--max-sessions", "1")
    cluster.ready(gateway, other)
    with gateway.stream(**GREEDY) as events:
        reading = iter(events)
        for _ in range(10):
            next(reading)
        other.kill()
        with pytest.raises(AssertionError, match="no_capacity"):
            events.rest()
    answer = gateway.chat("Hello")
    assert (answer.status, answer.error["code"]) == (503, "no_capacity")
    assert int(answer.headers["Retry-After"]) > 0


def test_a_node_that_is_away_for_a_while_costs_nobody_a_load(cluster: Cluster) -> None:
    """Longer than --fail-after, with no room for its half on another node."""
    nodes = cluster.start(2, "--model", MODEL, "--memory", HALF, "--context", "2048", "--max-sessions", "1")
    head = cluster.head(cluster.ready(*nodes, stages=2))
    text = nodes[0].chat("Hello").text
    before = [(node.loads, node.written.count("unloading")) for node in nodes]
    victim = next(node for node in nodes if node is not head)
    victim.signal(signal.SIGSTOP)
    try:
        until(lambda: head.status()["models"][0]["state"] == "refused", "the model has no place")
        until(lambda: [layer["model"] for layer in head.own()["idle"]] == [MODEL], "the head keeps its layers")
    finally:
        victim.signal(signal.SIGCONT)
    cluster.ready(*nodes)
    assert head.chat("Hello").text == text
    until(lambda: not head.own()["idle"], "the head's layers are in the ring again")
    assert [(node.loads, node.written.count("unloading")) for node in nodes] == before
