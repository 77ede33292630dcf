"""Starts nodes by forking a process that has imported the program, because the imports take 2 s of processor time a node.

The node's `main` runs as in a process of its own, with the arguments, environment and log that it is given. Its server
of sandboxes is forked, too, which saves another second; it has no less than the process that a node starts.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from node.text import sandbox, sandbox_server


class Preloaded:
    """Handle of the process that has imported the program. It ends when it is closed, or its handle's process ends."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """`prefix` runs it elsewhere, such as in another network namespace."""
        self._lock = threading.Lock()
        # The hub's client reads these when it is imported: no test that starts a node so uses the hub.
        self._home = tempfile.TemporaryDirectory(prefix="pippin-no-hub-")
        hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": self._home.name}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **hub, "OPENBLAS_NUM_THREADS": "1"},  # a process that is forked has no threads
            cwd=Path(__file__).parents[1],
        )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> "ForkedNode":
        """Start a node. `environment` is added to the process's own."""
        request = {"arguments": arguments, "environment": dict(environment), "log": str(log)}
        return ForkedNode(self, self.ask(request))

    def close(self) -> None:
        assert self._process.stdin
        with self._home, self._process:  # closes its pipes and waits for its end
            self._process.stdin.close()

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        with self._lock:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())


class ForkedNode:
    """A node's process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, parent: Preloaded, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired("node", timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedServer:
    """A node's server of sandboxes, with the methods of `subprocess.Popen` that the node uses."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        try:
            (own,) = pass_fds
            os.closerange(3, own)
            os.closerange(own + 1, os.sysconf("SC_OPEN_MAX"))
            os.environ.clear()
            os.environ.update(env)
            sys.argv = list(command[-2:])
            sandbox_server.main()
        finally:
            os._exit(0)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def _serve() -> list[str]:
    """Fork a node for each request; returns its arguments in the forked process only. Nodes end with whoever asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the tests: they end the nodes
    replies = os.fdopen(os.dup(1), "w")
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            ended, status = os.waitpid(request["ended"], os.WNOHANG)
            reply = os.waitstatus_to_exitcode(status) if ended else None
            running.discard(ended)
        elif reply := os.fork():
            running.add(reply)
        else:
            _become(request)
            return request["arguments"]
        print(json.dumps(reply), file=replies, flush=True)
    for node in running:  # of tests that were killed
        os.kill(node, signal.SIGKILL)
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, stream)
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    from node.__main__ import main
    from node.host.descriptors import fixed_limit

    with fixed_limit():
        import node.daemon.daemon
        import node.start  # noqa: F401
    for module in sandbox_server.IMPORTED:
        importlib.import_module(module)
    setattr(sandbox, "subprocess", SimpleNamespace(Popen=ForkedServer, DEVNULL=subprocess.DEVNULL))  # noqa: B010
    sys.argv = ["node", *_serve()]
    main()
