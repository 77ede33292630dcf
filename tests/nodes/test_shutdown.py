"""The first Ctrl-C: running answers finish. The second one: the node ends at once. A terminal that is closed is like the
first.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import BIN, NODE_ENVIRONMENT, PATIENCE_S, Cluster, until

pytestmark = pytest.mark.slow


def test_the_first_lets_answers_end_and_the_second_quits(cluster: Cluster, stock: dict[str, str]) -> None:
    first, second = cluster.start(2)
    cluster.agreed(first, second)
    with first.stream("Count from 1 to 100", max_tokens=300) as events:
        next(iter(events))
        first.signal(signal.SIGINT)
        assert events.rest() == stock["Count from 1 to 100"]
    assert first.wait() == 0
    until(lambda: second.state_of(first) == "left", "the node that drained is shown as left")

    with second.stream("Hello", ignore_eos=True, max_tokens=1900) as events:
        reading = iter(events)
        next(reading)
        second.signal(signal.SIGINT)
        refused = until(lambda: (answer := second.chat("Hello")).status != 200 and answer, "it takes no more requests")
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert second.get("/health").status == 503
        for _ in range(20):
            next(reading)
        assert second.process.poll() is None
        second.signal(signal.SIGINT)
        assert second.wait() == 0
        with pytest.raises((AssertionError, OSError, HTTPException)):
            events.rest()


TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def node_in_terminal(*options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A node, and the other end of its terminal."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", TERMINAL, str(BIN / "node"), "--host", "127.0.0.1", "--api-port", "0", *options]
    environment = os.environ | NODE_ENVIRONMENT
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


def test_a_terminal_is_closed(cluster: Cluster, tmp_path: Path) -> None:
    (other,) = cluster.start(1)
    options = ("--cluster", cluster.name, "--name", "shown", "--data-dir", str(tmp_path / "shown"))
    with node_in_terminal(*options) as (process, terminal):
        until(lambda: "idle" in states(other.status()), "the node in the terminal has joined")
        os.close(terminal)
        until(lambda: "left" in states(other.status()), "the node in the terminal has said goodbye")
        assert process.wait(PATIENCE_S) == 0


def states(status: dict[str, Any]) -> list[str]:
    return [node["state"] for node in status["nodes"] if node["name"] == "shown"]


def test_ctrl_c_while_the_node_starts(tmp_path: Path) -> None:
    with node_in_terminal("--data-dir", str(tmp_path)) as (process, terminal):
        children = psutil.Process(process.pid).children
        until(children, "the node starts its first process")  # before it imports most of the program
        os.write(terminal, b"\x03")
        assert process.wait(PATIENCE_S) == 0
        shown = os.read(terminal, 65536).decode()
        os.close(terminal)
    assert shown.replace("^C", "").splitlines() == ["node: stopped before it had started."]
