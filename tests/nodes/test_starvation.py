"""Whatever one client sends, another client's small chats take turns with it. Real nodes."""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.conftest import MODEL, PATIENCE_S, ROOT, Answer, Cluster, Node, chat_body, running_cluster
from tests.model.conftest import FakeHub, running_hub
from tests.nodes.hub import ID, of_hub
from tests.nodes.test_access import from_elsewhere

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="has one loopback address only"),
]

WORDS = "The quick brown fox, 12 of them. "


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_cluster(tmp_path_factory.mktemp("one")) as cluster:
        cluster.ready(*cluster.start(1, "--model", MODEL, "--no-mdns"))
        yield cluster.nodes[0]


AT_ONCE = 6
"""Requests that have turns at once at what a chat needs: two at the threads for texts, one at a tokenizer's process, two at making
grammars, and one at compiling them.
"""


def beside(load: Sequence[Callable[[], Answer]], ask: Callable[[], Answer]) -> list[int]:
    """Ask again and again while all of a load is under way; return the load's statuses.

    Who takes turns with the load waits at each place until some that are there have ended: most often AT_ONCE at most. Who has
    to wait for the whole load is answered once.
    """
    waits: list[int] = []
    with ThreadPoolExecutor(len(load)) as greedy:
        asked = [greedy.submit(each) for each in load]
        while not all(each.done() for each in asked):
            before = sum(each.done() for each in asked)
            assert ask().status == 200
            waits.append(sum(each.done() for each in asked) - before)
    statuses = [each.result().status for each in asked]
    assert sorted(waits)[len(waits) // 2] <= AT_ONCE, waits
    return statuses


def test_long_texts(node: Node) -> None:
    ask = partial(replace(node, connect=from_elsewhere).chat, "Hello", max_tokens=16)
    tokenize = partial(node.post, "/tokenize", {"model": MODEL, "prompt": WORDS * (2**20 // len(WORDS))})
    assert (ask().status, tokenize().status) == (200, 200)
    assert beside([tokenize] * 12, ask) == [200] * 12


def test_large_schemas(node: Node) -> None:
    numbers = itertools.count()

    def with_enum(asked: Node, size: int) -> Answer:
        """Each schema is new, so none is kept."""
        schema = {"enum": [f"{next(numbers)}" for _ in range(size)]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        return asked.chat("Hello", max_tokens=4, response_format=form)

    ask = partial(with_enum, replace(node, connect=from_elsewhere), 2)
    large = partial(with_enum, node, 18_000)
    assert (ask().status, large().status) == (200, 200)
    assert set(beside([large] * 66, ask)) <= {200, 429}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """Three models that can be loaded, and sixteen whose weights never come."""
    hub = FakeHub()
    files = {file.name: file.read_bytes() for file in (ROOT / "node" / "builtin" / MODEL).iterdir()}
    hub.repos = {f"{ID}-{number}": files for number in range(3)} | {f"slow/{number}": files for number in range(16)}
    hub.silent = {f"slow/{number}" for number in range(16)}
    with running_hub(hub):
        yield hub


def test_slow_pulls(cluster: Cluster, hub: FakeHub) -> None:
    """The other client's chats have models loaded that it names first."""
    environment = of_hub(hub, cluster.directory / "home")
    node = cluster.launch("--no-mdns", environment=environment).started()
    cluster.agreed(node)
    other = replace(node, connect=from_elsewhere)

    def ask(number: int) -> Answer:
        return other.post("/v1/chat/completions", chat_body("Hello", model=f"{ID}-{number}", max_tokens=4))

    def pull(number: int) -> bytes:
        with node.request("POST", f"/cluster/models/slow%2F{number}/pull") as response:
            return response.read()

    assert ask(0).status == 200
    with ThreadPoolExecutor(16) as greedy:
        pulls = [greedy.submit(pull, number) for number in range(16)]
        try:
            for _ in range(2):
                assert hub.silenced.acquire(timeout=PATIENCE_S)
            assert [ask(number).status for number in (1, 2)] == [200, 200]
            assert not any(each.done() for each in pulls)
            health: dict[str, Any] = node.get("/health").json
            assert (health["status"], health["warnings"]) == ("ok", [])
        finally:
            node.end()  # and with it the pulls
