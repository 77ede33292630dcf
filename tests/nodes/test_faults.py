"""Real nodes on a machine that fails: clocks jump, disks of KV fail, are full or slow, and bits flip on the wire."""

import errno
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, Cluster, Node, until
from tests.nodes.faults import Faults, compiled
from tests.nodes.test_kv_on_disk import FIRST, blocks_of, cached, next_messages, stored, text, turn, undisturbed

__all__ = ["undisturbed"]
pytestmark = pytest.mark.slow

DAY_S = 86400
OPTIONS = ("--model", MODEL, "--stages", "2")
SECRET = {"PIPPIN_SECRET": "correct horse battery staple"}
LONG = {"max_tokens": 300, "ignore_eos": True}


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(compiled(tmp_path), tmp_path / "faults")


def started(cluster: Cluster, faults: Faults, environment: dict[str, str], count: int = 2) -> list[Node]:
    """Nodes with a ring of two."""
    nodes = [cluster.launch(*OPTIONS, environment={**faults.environment, **environment}) for _ in range(count)]
    cluster.ready(*(node.started() for node in nodes), stages=2)
    return nodes


def test_clocks_that_jump_change_nothing(cluster: Cluster, faults: Faults) -> None:
    nodes = started(cluster, faults, SECRET)
    right, before = nodes[0].streamed(**LONG), cluster.agreed(*nodes)
    rings = [ring["id"] for ring in before["models"][0]["rings"]]
    for jump in (30 * DAY_S, -2 * DAY_S, -50 * 365 * DAY_S, 20 * 365 * DAY_S):
        with nodes[0].stream(**LONG) as events:
            for count, _ in enumerate(events):
                if count == 20:
                    faults.now.ahead_s = jump
        assert events.text == right
        assert abs(nodes[0].chat(max_tokens=1).json["created"] - time.time() - jump) < DAY_S
    after = cluster.agreed(*nodes)
    assert (after["head"], after["term"]) == (before["head"], before["term"])
    assert [ring["id"] for ring in after["models"][0]["rings"]] == rings
    third = cluster.launch("--model", MODEL, environment=SECRET).started()  # its clock is right, the others' are not
    cluster.ready(*nodes, third)
    assert third.streamed(**LONG) == right


def with_kv(cluster: Cluster, faults: Faults, first: dict[str, Any]) -> list[Node]:
    """Nodes that have the KV of a first turn on their disks only, as they were killed after it."""
    nodes = started(cluster, faults, {})
    assert text(turn(nodes[0], FIRST)) == text(first)
    for node in nodes:
        until(lambda node=node: stored(cluster, node) >= blocks_of(first), "the blocks are on the disk")
    for node in nodes:
        node.kill()
    again = [cluster.launch(*OPTIONS, name=node.name, environment=faults.environment) for node in nodes]
    cluster.ready(*(node.started() for node in again), stages=2)
    return again


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_disk_that_fails_costs_kv_and_no_answer(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]], faults: Faults, error: int
) -> None:
    nodes = with_kv(cluster, faults, undisturbed[0])
    faults.now.read_errno = faults.now.write_errno = error
    second = turn(nodes[0], next_messages(undisturbed[0]))
    assert text(second) == text(undisturbed[1])
    assert cached(second) == 0
    assert faults.now.failed
    until(lambda: all(node.warning("kv-not-stored") for node in nodes), "the nodes say that they keep no KV")


def test_a_slow_disk_costs_kv_and_no_answer(
    cluster: Cluster, undisturbed: tuple[dict[str, Any], dict[str, Any]], faults: Faults
) -> None:
    nodes = with_kv(cluster, faults, undisturbed[0])
    faults.now.open_ms = 60_000
    second = turn(nodes[0], next_messages(undisturbed[0]))
    assert text(second) == text(undisturbed[1])
    assert cached(second) == 0
    assert faults.now.delayed


@pytest.mark.parametrize("place", [0, 1])
def test_a_node_is_killed_while_disks_fail_and_clocks_jump(cluster: Cluster, faults: Faults, place: int) -> None:
    nodes = started(cluster, faults, {}, count=3)
    ring = cluster.ring(cluster.ready(*nodes, stages=2))
    gateway = next(node for node in nodes if node is not ring[place])
    right = gateway.streamed(**LONG)
    faults.now.read_errno = faults.now.write_errno = errno.EIO
    with gateway.stream(**LONG) as events:
        for count, _ in enumerate(events):
            if count == 20:
                faults.now.ahead_s = -DAY_S
                ring[place].kill()
    assert events.text == right


@pytest.fixture
def small_disk(cluster: Cluster) -> Iterator[Path]:
    """The data directory of a node on a file system of its own, of 1 MB."""
    folder = cluster.directory / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    cluster.close()
    subprocess.run(["umount", str(folder)], check=True)


def test_a_node_whose_disk_is_full_is_not_elected_and_serves(
    cluster: Cluster, small_disk: Path, stock: dict[str, str]
) -> None:
    former = cluster.launch("--model", MODEL, "--memory", "1GB").started()
    cluster.agreed(former)
    full = cluster.launch("--model", MODEL, "--memory", "3GB", name=small_disk.name).started()  # it ranks first
    other = cluster.launch("--model", MODEL, "--memory", "2GB").started()
    before = cluster.agreed(former, full, other)
    assert cluster.head(before) is former
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(2 << 20))
    former.kill()
    after = cluster.ready(full, other)
    assert cluster.head(after) is other
    assert after["term"] > before["term"]
    assert "No space left" in until(lambda: full.warning("disk-failed"), "it says that its disk is full")
    assert full.streamed("Hello") == other.streamed("Hello") == stock["Hello"]
    filler.unlink()
    until(lambda: not full.warning("disk-failed"), "its disk has room again")
    assert json.loads((small_disk / "node.json").read_text())["term"] == after["term"]


def test_with_a_secret_a_bit_that_flips_on_the_wire_breaks_its_connection_and_changes_no_answer(
    cluster: Cluster, faults: Faults
) -> None:
    nodes = started(cluster, faults, SECRET)
    right = nodes[0].streamed(**LONG)
    faults.now.flip_every = 300

    def answers() -> bool:
        """Whether one more answer is right, of two that bits flip meanwhile."""
        answer = nodes[0].chat(**LONG)
        assert answer.status in (200, 503), answer.body
        assert answer.status != 200 or answer.text == right
        return answer.status == 200 and faults.now.flipped >= 3

    until(answers, "it answers though bits flip")
    faults.end()
    cluster.ready(*nodes, stages=2)
    assert nodes[1].streamed(**LONG) == right
