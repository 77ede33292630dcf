"""Shared by the checks of coding agents: a proxy that records what an agent sends, and makes it call a tool.

A model of random weights calls no tools by itself. So the proxy asks for a call where the agent only allows one: the node answers with a
call of that tool whose arguments follow its schema, and the agent runs it, which must do no harm whatever the arguments are.
"""

import contextlib
import http.client
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

URL = urlsplit(os.environ["CLIENT_URL"])
MODEL = os.environ["CLIENT_AGENT_MODEL"]
"""A model of random weights with a context that is long enough for an agent's prompts."""
RUN_S = 240.0
END = "2"
"""The token that ends an answer, of that model."""
_NOT_PASSED_ON = {"host", "content-length", "transfer-encoding", "connection"}

Change = Callable[[dict[str, Any]], None]


def end_soon(body: dict[str, Any]) -> None:
    """Make the end of the answer likely. Some agents take an answer that reaches a limit for an error."""
    body["logit_bias"] = {END: 6}


@dataclass
class Exchange:
    path: str
    sent: Any
    status: int
    answer: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream, or the whole answer as one."""
        lines = [line.removeprefix("data: ") for line in self.answer.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines or [self.answer]]


@dataclass
class Recorder:
    """`change` may change a request before the node gets it."""

    change: Change
    exchanges: list[Exchange] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def of(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.path.partition("?")[0] == path]


@contextlib.contextmanager
def recording(change: Change = end_soon) -> Iterator[Recorder]:
    recorder = Recorder(change)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            recorder.change(body)
            self._pass_on(body)

        def _pass_on(self, body: Any) -> None:
            node = http.client.HTTPConnection(URL.hostname or "", URL.port, timeout=RUN_S)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_PASSED_ON}
            node.request(self.command, self.path, None if body is None else json.dumps(body), headers)
            answer = node.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", ""))
            self.send_header("Connection", "close")
            self.end_headers()
            got = b""
            while part := answer.read1(65536):
                got += part
                self.wfile.write(part)
            recorder.exchanges.append(Exchange(self.path, body, answer.status, got.decode()))
            node.close()
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    recorder.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_agent(command: list[str], folder: Path, **environment: str) -> str:
    """Run an agent in a folder that is also its home, until it exits with 0; return its output."""
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "127.0.0.1", **environment}
    done = subprocess.run(
        command,
        cwd=folder,
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout + done.stderr


def all_answered(exchanges: list[Exchange]) -> None:
    assert exchanges, "nothing was sent"
    for exchange in exchanges:
        assert exchange.status == 200, f"{exchange.path}: {exchange.status} {exchange.answer[:500]}"
        assert '"error":{' not in exchange.answer.replace(" ", ""), exchange.answer[-500:]
