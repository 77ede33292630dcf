"""A device that fails, once or for good: no client sees it. Nodes run as ever, but for MLX, which raises Metal's errors."""

import json
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, Cluster, Node, until

pytestmark = pytest.mark.slow

FAILED = "[METAL] Command buffer execution failed: {}."
HANG = FAILED.format("Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)")
TIMEOUT = FAILED.format("Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)")
IGNORED = FAILED.format(
    "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
)
OPTIONS = ("--model", MODEL, "--context", "2048", "--max-sessions", "2", "--max-rings", "1")
GREEDY: dict[str, Any] = {"content": "Count from 1 to 100", "max_tokens": 300}
SEEDED: dict[str, Any] = {"content": "Tell me a story.", "max_tokens": 200, "temperature": 1, "seed": 5}
STORY: dict[str, Any] = {"content": "Tell me a story.", "max_tokens": 200}
LONG: dict[str, Any] = {"content": " ".join(map(str, range(1, 330))), "max_tokens": 30}
"""Two chunks of tokens."""
CHUNK = 512
KEPT = 40
"""Tokens whose KV the next ring would take over, if it were not void."""
MLX = """
import json
from pathlib import Path

import mlx.core as mx
import node.ring.limits

FLAG, due, chunks = Path({flag!r}), [], 0

def flat(tree):
    if isinstance(tree, (list, tuple)):
        return [array for each in tree for array in flat(each)]
    return [tree] if isinstance(tree, mx.array) else []

def failing(evaluate):
    def evaluate_or_raise(*trees):
        global chunks
        arrays = flat(trees)
        of_kv = any(each.ndim == 4 for each in arrays)
        if due and of_kv:
            raise RuntimeError(due.pop())
        evaluate(*trees)
        chunks += evaluate is do_eval and len(trees) == 2 and of_kv
        if not FLAG.exists():
            return
        asked = json.loads(FLAG.read_text())
        if chunks < asked["chunks"] or not (of_kv or asked["chunks"]):
            return
        if of_kv:  # the work has failed: its results are garbage, and count as computed
            for each in arrays:
                each[...] = 1000 * each
        due.append(asked["error"])
        if asked["once"]:
            FLAG.unlink()

    return evaluate_or_raise

do_eval = mx.eval
mx.eval, mx.async_eval = failing(mx.eval), failing(mx.async_eval)
do_synchronize = mx.synchronize

def synchronize():
    do_synchronize()
    if due:
        raise RuntimeError(due.pop())

mx.synchronize = synchronize
node.ring.limits.prefill_chunk = lambda *_: {chunk}
"""
"""Runs in a node's process before its own code. As with Metal, an error surfaces later: at the next step, of any
lane, or where all work is waited for.
"""


class Fallible:
    """Files that make the devices of a cluster's nodes fail."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._directory = cluster, directory

    def launch(self, name: str, *options: str, chunk: int = 128) -> Node:
        folder = self._directory / f"of-{name}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(MLX.format(flag=str(self._flag(name)), chunk=chunk))
        return self._cluster.launch(*OPTIONS, *options, name=name, environment={"PYTHONPATH": str(folder)})

    def fail(self, node: Node, error: str, *, once: bool = False, chunks: int = 0) -> None:
        """From now on, or with the chunk of a prompt that has this number since the start."""
        draft = self._flag(f"{node.name}-draft")
        draft.write_text(json.dumps({"error": error, "once": once, "chunks": chunks}))
        draft.rename(self._flag(node.name))

    def _flag(self, name: str) -> Path:
        return self._directory / f"{name}.fails"


@pytest.fixture
def fallible(cluster: Cluster, tmp_path: Path) -> Fallible:
    return Fallible(cluster, tmp_path)


def codes(node: Node) -> set[str]:
    return {issue["code"] for issue in node.status()["warnings"]}


def test_devices_that_fail_for_good_in_two_of_three_nodes(
    cluster: Cluster, fallible: Fallible, stock: dict[str, str], tmp_path: Path
) -> None:
    """First the driver's, then that of the next ring's second stage."""
    nodes = [node.started() for node in [fallible.launch(f"n{number}", "--stages", "2") for number in (1, 2, 3)]]
    cluster.ready(*nodes, stages=2)
    seeded = nodes[0].streamed(**SEEDED)
    for place, error in ((0, HANG), (1, IGNORED)):
        failing = cluster.ring(cluster.ready(*nodes, stages=2))[place]
        nodes.remove(failing)
        with nodes[0].stream(**GREEDY) as one, nodes[-1].stream(**SEEDED) as other:
            next(iter(one))
            next(iter(other))
            fallible.fail(failing, error)
            assert [one.rest(), other.rest()] == [stock[GREEDY["content"]], seeded]
        assert failing.wait() == 70
        assert "ends with 70" in failing.written
        assert json.loads((tmp_path / failing.name / "failures.json").read_text())["in_row"] == 1
        cluster.ready(*nodes)
        assert nodes[0].chat("Hello").text == stock["Hello"]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_device_that_fails_once(cluster: Cluster, fallible: Fallible, stock: dict[str, str], stages: int) -> None:
    """The ring goes on with the same nodes, and with no KV. With two stages each stream has a lane, and the failure of
    one's KV surfaces in the step of the other.
    """
    options = ("--stages", str(stages), "--no-guesses")  # with guesses a lane may have two steps in a row
    launched = [fallible.launch(f"n{number}", *options) for number in range(1, stages + 1)]
    node, *_ = nodes = [each.started() for each in launched]
    cluster.ready(*nodes, stages=stages)
    assert "gpu-failed" not in codes(node)
    with node.stream(**GREEDY) as one, node.stream(**STORY) as other:
        for _ in islice(zip(one, other, strict=False), KEPT):
            pass
        fallible.fail(node, HANG, once=True)
        assert one.rest() == stock[GREEDY["content"]]
        assert other.rest() == stock[STORY["content"]]
    assert node.written.count("the GPU failed") == 1
    assert "gpu-failed" in codes(node)
    assert node.chat("Hello").text == stock["Hello"]


def test_work_that_takes_the_device_too_long_is_halved(cluster: Cluster, fallible: Fallible) -> None:
    node = fallible.launch("n1", "--no-guesses", chunk=CHUNK).started()  # an MTP layer has prompts, too
    cluster.ready(node)
    before = node.chat("Hello, how are you, and what is the capital of France?", max_tokens=2)
    assert before.status == 200
    fallible.fail(node, TIMEOUT, once=True, chunks=2)  # the first of two of the long prompt
    found = node.streamed(**LONG)
    assert f"in chunks of {CHUNK // 2} tokens" in node.written
    node.end()
    undisturbed = cluster.launch(*OPTIONS, name="n2").started()
    cluster.ready(undisturbed)
    assert undisturbed.streamed(**LONG) == found


def test_after_two_ends_in_a_row_a_node_waits(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    record = tmp_path / "n1" / "failures.json"
    record.write_text(json.dumps({"in_row": 2, "ended_at": time.time() + 3600}))  # by a clock that was set back since
    node = cluster.launch("--model", MODEL, name="n1")
    until(lambda: "it waits 30 s before it starts" in node.written, "the node waits")
    node.signal(signal.SIGINT)
    assert node.wait() == 0
    assert "API on" not in node.written
    record.unlink()
    cluster.launch("--model", MODEL, name="n1").started()
