"""A computation that never ends: its node gives up its rings and ends, and others take over."""

import http.client
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MODEL, Cluster, until

pytestmark = pytest.mark.slow

HANG = """
import threading
from pathlib import Path
from node.engine.stage import Stage

begin = Stage.begin

def hang(*args, **kwargs):
    if Path({flag!r}).exists():
        threading.Event().wait()
    return begin(*args, **kwargs)

Stage.begin = hang
"""
"""For a node's process, which runs it before its own code: it computes no more as soon as there is a file of that name."""


def hanging(directory: Path) -> tuple[Path, dict[str, str]]:
    """The file, and the environment of a node that heeds it."""
    flag = directory / "hang"
    (directory / "sitecustomize.py").write_text(HANG.format(flag=str(flag)))
    return flag, {"PYTHONPATH": str(directory)}


def test_a_ring_of_one_node_hangs(cluster: Cluster, tmp_path: Path, stock: dict[str, str]) -> None:
    flag, environment = hanging(tmp_path)
    options = ("--model", MODEL, "--max-rings", "1", "--step-timeout", "3")
    first = cluster.launch(*options, environment=environment).started()
    cluster.ready(first)
    second = cluster.launch(*options).started()
    status = cluster.ready(first, second)
    assert [node["name"] for node in status["nodes"] if node["layers"]] == [first.name]
    with (
        first.stream("Count from 1 to 100", max_tokens=300) as here,
        second.stream("Count from 1 to 100", max_tokens=300) as there,
    ):
        next(iter(here))
        next(iter(there))
        flag.touch()
        assert there.rest() == here.rest() == stock["Count from 1 to 100"]
    assert first.wait(15) == 70
    assert "ends with 70" in first.written
    assert "in hang" in first.written, "where the threads are"
    cluster.ready(second)
    flag.unlink()
    again = cluster.launch(*options, name=first.name).started()
    cluster.ready(again, second)
    assert again.chat("Hello").text == stock["Hello"]


def test_the_second_signal_ends_a_node_that_hangs(cluster: Cluster, tmp_path: Path) -> None:
    flag, environment = hanging(tmp_path)
    node = cluster.launch("--model", MODEL, environment=environment).started()
    cluster.ready(node)
    flag.touch()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(node.chat)
        until(lambda: node.running() == 1, 5, "the request runs")
        node.signal(signal.SIGINT)
        until(lambda: "stopping" in node.written, 5, "the node is told to stop")
        began = time.monotonic()
        node.signal(signal.SIGINT)
        assert node.wait(10) == 0
        assert time.monotonic() - began < 5
        assert isinstance(answer.exception(10), OSError | http.client.HTTPException)
