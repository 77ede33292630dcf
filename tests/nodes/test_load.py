"""Many requests at once on a split model: batches, kept prefixes, and the memory freed when a client hangs up."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MODEL, Cluster, Node, chat_body, running_cluster, until

pytestmark = pytest.mark.slow

QUESTIONS = [f"Count from {first} to {first + 6}" for first in range(1, 13)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("pair")) as cluster:
        cluster.ready(*cluster.start(2, "--model", MODEL, "--stages", "2"), stages=2)
        yield cluster


def kv_bytes(nodes: list[Node]) -> list[int]:
    """Current KV of each node. The status would be as old as the last heartbeats."""
    found = [re.search(rb"^pippin_kv_bytes (\S+)", node.get("/metrics").body, re.MULTILINE) for node in nodes]
    return [int(float(each[1])) for each in found]


def test_batched_answers_are_the_same_as_alone(pair: Cluster) -> None:
    alone = {question: pair.nodes[0].chat(question, max_tokens=64).text for question in QUESTIONS}
    asked = QUESTIONS * 3

    def ask(number: int) -> str:
        node = pair.nodes[number % 2]
        ask = node.streamed if number % 3 == 0 else lambda *args, **kwargs: node.chat(*args, **kwargs).text
        return ask(asked[number], max_tokens=64)

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(ask, range(len(asked))))
    assert answers == [alone[question] for question in asked]


def test_a_turn_of_a_chat_computes_only_what_is_new(pair: Cluster) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    first = pair.nodes[0].post("/v1/chat/completions", {**chat_body(""), "messages": messages, "max_tokens": 60}).json
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Another one, please."}]
    body = {**chat_body(""), "messages": messages, "max_tokens": 40}
    second = pair.nodes[1].post("/v1/chat/completions", body).json
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] + 30
    whole = {**body, "messages": [{"role": "system", "content": "Be brief."}, *messages]}
    assert (
        pair.nodes[0].post("/v1/chat/completions", whole).json["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    )


def test_who_hangs_up_again_and_again_leaves_no_more_than_one_answer_does(cluster: Cluster) -> None:
    """Each stage keeps the KV once, for a later request."""
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    cluster.ready(*nodes, stages=2)
    node = nodes[1]
    node.streamed("Count from 1 to 500", max_tokens=300, ignore_eos=True)
    kept = kv_bytes(nodes)
    assert all(kept)
    for _ in range(4):
        with node.stream("Count from 1 to 500", max_tokens=300, ignore_eos=True) as events:
            for number, _ in enumerate(events):
                if number > 120:
                    break
        until(lambda: node.running() == 0, "no session is left")
    until(
        lambda: all(now <= then for now, then in zip(kv_bytes(nodes), kept, strict=True)),
        f"the caches are freed: {kv_bytes(nodes)}, not {kept}",
    )


def test_a_full_queue_is_told_and_the_others_are_served(cluster: Cluster) -> None:
    options = ("--model", MODEL, "--max-sessions", "1", "--max-batch", "1", "--max-queue", "2")
    (node,) = cluster.start(1, *options)
    cluster.ready(node)
    arrived = threading.Barrier(12)

    def ask(_: int) -> tuple[int, str | None]:
        arrived.wait()
        answer = node.chat("Count from 1 to 20", max_tokens=150, ignore_eos=True)
        return answer.status, answer.headers.get("Retry-After")

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    assert set(answers) == {(200, None), (429, "2")}
    assert sum(status == 200 for status, _ in answers) >= 3
    assert node.chat("Hello").status == 200
