"""A computation that never ends: its node gives up its rings and exits, and others take over."""

import http.client
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import MODEL, PATIENCE_S, Cluster, until

pytestmark = pytest.mark.slow

HANG = """
import threading
from pathlib import Path
from {module} import {owner}

do = {owner}.{method}

def hang(*args, **kwargs):
    if Path({flag!r}).exists():
        Path({flag!r}).with_suffix(".reached").touch()
        threading.Event().wait()
    return do(*args, **kwargs)

{owner}.{method} = hang
"""
"""Runs in a node's process before its own code: the method never returns once the file exists."""
COMPUTES = ("node.engine.stage", "Stage", "run")
LOOKS_AT_ITS_DISK = ("node.model.catalogue", "Catalogue", "refresh")


def hanging(directory: Path, module: str, owner: str, method: str) -> tuple[Path, dict[str, str]]:
    """Return the file, and the environment of a node that reacts to it."""
    flag = directory / "hang"
    code = HANG.format(flag=str(flag), module=module, owner=owner, method=method)
    (directory / "sitecustomize.py").write_text(code)
    return flag, {"PYTHONPATH": str(directory)}


def test_a_ring_of_one_node_hangs(cluster: Cluster, tmp_path: Path, stock: dict[str, str]) -> None:
    flag, environment = hanging(tmp_path, *COMPUTES)
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
    assert first.wait() == 70
    assert "ends with 70" in first.written
    assert "in hang" in first.written, "where the threads are"
    cluster.ready(second)
    flag.unlink()
    again = cluster.launch(*options, name=first.name).started()
    cluster.ready(again, second)
    assert again.chat("Hello").text == stock["Hello"]


def test_the_second_signal_ends_a_node_that_hangs(cluster: Cluster, tmp_path: Path) -> None:
    flag, environment = hanging(tmp_path, *COMPUTES)
    node = cluster.launch("--model", MODEL, environment=environment).started()
    cluster.ready(node)
    flag.touch()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(node.chat)
        until(lambda: node.running() == 1, "the request runs")
        node.signal(signal.SIGINT)
        until(lambda: "stopping" in node.written, "the node is told to stop")
        began = time.monotonic()
        node.signal(signal.SIGINT)
        assert node.wait() == 0
        assert time.monotonic() - began < 30, "it does not wait as after the first signal"
        assert isinstance(answer.exception(PATIENCE_S), OSError | http.client.HTTPException)


def test_a_disk_that_never_answers_holds_up_neither_answers_nor_the_end(
    cluster: Cluster, tmp_path: Path, stock: dict[str, str]
) -> None:
    flag, environment = hanging(tmp_path, *LOOKS_AT_ITS_DISK)
    node = cluster.launch("--model", MODEL, environment=environment).started()
    cluster.ready(node)
    flag.touch()
    until(flag.with_suffix(".reached").exists, "the node looks at its disk")
    assert node.chat("Hello").text == stock["Hello"]
    node.signal(signal.SIGINT)
    assert node.wait() == 0
