"""Ctrl-C while a program starts: at the import of a module, whatever the machine's speed."""

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import BIN, NODE_ENVIRONMENT, ROOT

INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("INTERRUPT_AT"):  # the sandboxes start without it
            sys.meta_path.remove(self)
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
"""A sitecustomize.py."""
PROGRAMS = {
    "cluster": (
        [str(BIN / "cluster"), "status", "--api", "127.0.0.1:1"],
        ["node.cli", "click", "http", "node.cli.wait"],
    ),
    "pippin": ([str(BIN / "pippin"), "status"], ["node.cli.__main__", "json"]),
    "node": (
        [str(BIN / "node"), "--host", "127.0.0.1", "--no-mdns", "--api-port", "0"],
        [
            "node.host",
            "node.options",
            "click",
            "psutil",
            "node.start",
            "logging",
            "asyncio",
            "grpc",
            "node.daemon",
            "aiohttp",
        ],
    ),
    "check": ([str(BIN / "node"), "--check", "--quick"], ["node.check.command", "tempfile", "node.check.parts"]),
    "run": (
        [sys.executable, str(ROOT / "scripts" / "run_nodes.py")],
        ["json", "psutil", "node.cli.client", "node.host.ports"],
    ),
}


@pytest.mark.parametrize(
    ("program", "module"), [(name, module) for name, (_, modules) in PROGRAMS.items() for module in modules]
)
def test_no_import_ends_in_a_traceback(program, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    more = {"PYTHONPATH": str(tmp_path), "INTERRUPT_AT": module, "HOME": str(tmp_path)}
    done = subprocess.run(
        PROGRAMS[program][0],
        env=os.environ | NODE_ENVIRONMENT | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "interrupted\n", done.stderr
    assert done.stderr in ("", "node: stopped before it had started.\n")
    assert done.returncode in (0, 130, -signal.SIGINT)


class Process:
    """One that notes the signals that it gets."""

    def __init__(self):
        self.got = []

    def send_signal(self, number):
        self.got.append(number)


@pytest.fixture
def run_nodes(monkeypatch):
    """scripts/run_nodes.py as a module. It sets handlers of signals."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    spec = importlib.util.spec_from_file_location("run_nodes", ROOT / "scripts" / "run_nodes.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_nodes", module)  # its dataclasses look there
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_ctrl_c_while_nodes_are_started_reaches_them(run_nodes):
    stopping, process = run_nodes.Stopping(), Process()
    os.kill(os.getpid(), signal.SIGINT)
    stopping.pass_on_to([run_nodes.Started("a node", process)])
    assert process.got == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGHUP)
    assert process.got == [signal.SIGTERM], "a terminal that is closed tells it after its Ctrl-C, too"
    os.kill(os.getpid(), signal.SIGINT)
    assert (process.got, stopping.killed) == ([signal.SIGTERM] * 2, False)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (process.got[2:], stopping.killed) == ([signal.SIGKILL], True)
