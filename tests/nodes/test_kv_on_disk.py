"""What was computed outlives the ring, its cut and all processes: the next turn of a long chat takes its KV from the nodes' disks."""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, chat_body, running_cluster, until
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

BLOCK = 256
STORY = " ".join(f"On day {day} we walked {day * 7 % 31} miles to the river." for day in range(1, 82))
FIRST = [{"role": "user", "content": STORY}]
TOKENS = 40


def turn(node: Node, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {**chat_body(""), "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    answer = node.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def next_messages(first: dict[str, Any]) -> list[dict[str, Any]]:
    return [*FIRST, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def blocks_of(answer: dict[str, Any]) -> int:
    return (int(answer["usage"]["prompt_tokens"]) - 1) // BLOCK


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answers of both turns, in a cluster that keeps no KV on disks and to which nothing happens."""
    with running_cluster(tmp_path_factory.mktemp("undisturbed")) as cluster:
        nodes = cluster.start(2, "--model", MODEL, "--stages", "2", "--kv-disk", "0")
        cluster.ready(*nodes, stages=2)
        first = turn(nodes[0], FIRST)
        assert not stored(cluster, nodes[0])
        return first, turn(nodes[0], next_messages(first))


def stored(cluster: Cluster, node: Node) -> int:
    """Of how many blocks a node has the caches of both stages on its disk: its own, and copies, or copies only."""
    files = (cluster.directory / node.name / "kv").glob("*/*.safetensors")
    stages = Counter(file.name.split(".")[1] for file in files)
    return min(stages.values()) if len(stages) == 2 else 0


def first_turn(cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]]) -> int:
    """Have it computed and stored by a ring of two. Returns its blocks."""
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    cluster.ready(*nodes, stages=2)
    first = turn(nodes[0], FIRST)
    assert text(first) == text(undisturbed[0])
    blocks = blocks_of(first)
    assert blocks >= 5
    for node in nodes:
        until(lambda node=node: stored(cluster, node) >= blocks, "the blocks are on the disk")
    return blocks


def test_a_ring_of_other_nodes_and_another_cut_begins_with_it(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    blocks = first_turn(cluster, undisturbed)
    third = cluster.launch("--model", MODEL, "--stages", "3").started()
    cluster.ready(*cluster.nodes, stages=3)
    second = turn(third, next_messages(undisturbed[0]))
    assert text(second) == text(undisturbed[1])
    assert cached(second) >= blocks * BLOCK


def test_it_outlives_the_kill_of_all_nodes(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    blocks = first_turn(cluster, undisturbed)
    second = turn(killed_and_started(cluster), next_messages(undisturbed[0]))
    assert text(second) == text(undisturbed[1])
    assert cached(second) >= blocks * BLOCK


def test_what_was_computed_by_a_kill_in_mid_answer_is_on_the_disks(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    nodes = cluster.start(2, "--model", MODEL, "--stages", "2")
    cluster.ready(*nodes, stages=2)
    prompt_blocks = int(undisturbed[0]["usage"]["prompt_tokens"]) // BLOCK
    body = {**chat_body("", stream=True), "messages": FIRST, "max_tokens": 2000, "temperature": 0, "ignore_eos": True}
    with nodes[0].request("POST", "/v1/chat/completions", body) as response:
        for node in nodes:
            until(lambda node=node: stored(cluster, node) > prompt_blocks, "more than the prompt is on the disk")
        again = killed_and_started(cluster)
        assert response.status == 200
    found = turn(again, FIRST)
    assert text(found) == text(undisturbed[0])
    assert cached(found) >= prompt_blocks * BLOCK


def killed_and_started(cluster: Cluster) -> Node:
    """Kill all nodes and start them again. Returns the first one."""
    nodes = list(cluster.nodes)
    for node in nodes:
        node.kill()
    again = [cluster.launch("--model", MODEL, "--stages", "2", name=node.name) for node in nodes]
    cluster.ready(*(node.started() for node in again), stages=2)
    return again[0]


def test_what_a_killed_node_has_computed_comes_from_the_copy_at_another(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    nodes = cluster.start(3, "--model", MODEL, "--stages", "2")
    ring = cluster.ring(cluster.ready(*nodes, stages=2))
    prompt_blocks = int(undisturbed[0]["usage"]["prompt_tokens"]) // BLOCK
    # The one without layers answers, and keeps the copies of both stages.
    idle = next(node for node in nodes if node not in ring)
    body = {**chat_body("", stream=True), "messages": FIRST, "max_tokens": 2000, "temperature": 0, "ignore_eos": True}
    with idle.request("POST", "/v1/chat/completions", body) as response:
        until(lambda: stored(cluster, idle) > prompt_blocks, "more than the prompt is at the idle node")
        ring[1].kill()
        until(lambda: "took KV of" in idle.written, "the successor takes it from there")
        assert response.status == 200
    taken = int(re.findall(r"took KV of (\d+) tokens", idle.written)[0])
    assert taken > prompt_blocks * BLOCK
    cluster.ready(ring[0], idle, stages=2)
    second = turn(idle, next_messages(undisturbed[0]))
    assert text(second) == text(undisturbed[1])
    assert cached(second) >= prompt_blocks * BLOCK


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next"])
def test_windows_and_recurrent_states_outlive_their_nodes_too(cluster: Cluster, tmp_path: Path, name: str) -> None:
    own = {"vocab_size": 2048, "max_position_embeddings": 4096, "sliding_window": 300, "num_hidden_layers": 4}
    folder = tmp_path / "models" / "other"
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    write_model(folder, CONFIGURATIONS[name] | own)
    options = "--models-dir", str(folder.parent), "--model", "other"

    def turn_of(node: Node, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {**chat_body(""), "model": "other", "messages": messages, "max_tokens": TOKENS, "temperature": 0}
        answer = node.post("/v1/chat/completions", body)
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json
        return found

    nodes = cluster.start(3, *options, "--stages", "2")
    ring = cluster.ring(status := cluster.ready(*nodes, stages=2))
    stages = status["models"][0]["rings"][0]["stages"]
    idle = next(node for node in nodes if node not in ring)
    first = turn_of(idle, FIRST)
    second = turn_of(idle, next_messages(first))
    behind = blocks_of(first) * BLOCK  # the state is that behind the last whole block of the prompt
    assert behind >= 1280
    blocks = blocks_of(second)
    states = 1 + (blocks > behind // BLOCK)
    # Every second layer, the last one too, has blocks, and the others have states.
    expected = sum(states * (stage["end"] - stage["start"] > 1 or stage["end"] % 2) for stage in stages)
    expected += sum(blocks * (stage["end"] - stage["start"] > 1 or not stage["end"] % 2) for stage in stages)
    kept = cluster.directory / idle.name / "kv"
    until(
        lambda: len(list(kept.glob("*/*.safetensors"))) == expected,
        f"{expected} blocks and states are at the idle node",
    )
    ring[1].kill()
    cluster.ready(ring[0], idle, stages=2)
    assert_again(turn_of(idle, next_messages(first)), second, behind)
    for node in (ring[0], idle):
        node.kill()
    again = [cluster.launch(*options, "--stages", "3", name=node.name) for node in nodes]
    cluster.ready(*(node.started() for node in again), stages=3)
    assert_again(turn_of(again[0], next_messages(first)), second, behind)


def assert_again(answer: dict[str, Any], wanted: dict[str, Any], behind: int) -> None:
    assert text(answer) == text(wanted)
    assert cached(answer) >= behind


def test_a_node_starts_whatever_is_in_the_place_of_its_kv(cluster: Cluster) -> None:
    folder = cluster.directory / "odd"
    folder.mkdir()
    (folder / "kv").write_text("a file")
    node = cluster.launch("--model", MODEL, name="odd").started()
    cluster.ready(node, stages=1)
    assert turn(node, FIRST)
    until(lambda: "no KV is written" in node.written, "it says so")
