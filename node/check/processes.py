"""Processes that a check starts: parts that compute with MLX, and nodes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from node.cli.client import Api, Json, StatusFailed

PART_S = 300.0
START_S = 120.0
"""Seconds for the first start on this machine: macOS examines each library at its first use."""
Found = TypeVar("Found")


class PartFailed(Exception):
    """A process of the check ended without a result; the message says how."""


def compute(part: str, **arguments: Any) -> Any:
    """Run a part of `compute.py` and return its result. Raises PartFailed."""
    command = [sys.executable, "-P", "-m", "node.check.compute", part, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PART_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PartFailed(f"not ready within {PART_S:.0f} s") from error
    if done.returncode:
        raise PartFailed(f"ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


@dataclass
class Node:
    """A node process on this machine. Its API is found in its log."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    def status(self) -> Json:
        with self._asked() as api:
            return api.status(PART_S)

    def complete(self, model: str, prompt: list[int], tokens: int) -> Json:
        """Stream a greedy answer. Returns its `text`, `first`, seconds to its first token, and `rest`, from there to the
        last. Raises PartFailed.
        """
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        begin, text, stamps = time.perf_counter(), "", []
        with self._asked() as api:
            for event in api.events("/v1/completions", body | {"ignore_eos": True}):
                if isinstance(event, dict):  # else a comment
                    stamps.append(time.perf_counter())
                    text += "".join(choice["text"] for choice in event["choices"])
        if not stamps:
            raise PartFailed(f"an answer came to nothing. {self.last_words}")
        return {"text": text, "first": stamps[0] - begin, "rest": stamps[-1] - stamps[0]}

    @contextlib.contextmanager
    def _asked(self) -> Iterator[Api]:
        """Its API. Inside, an answer that fails is raised as PartFailed."""
        try:
            yield Api("http", "127.0.0.1", self.port)
        except StatusFailed as error:
            raise PartFailed(f"{error} {self.last_words}") from error

    @property
    def last_words(self) -> str:
        return f"The node's log ends: {self.log.read_text(errors='replace').strip()[-600:]}"

    def started(self) -> bool:
        """Whether it takes requests. Raises PartFailed if it has ended."""
        if self.process.poll() is not None:
            raise PartFailed(f"the node ended with {self.process.returncode}. {self.last_words}")
        _, found, rest = self.log.read_text(errors="replace").partition("API on http://")
        if found and "/v1" in rest:
            self.port = int(rest.partition("/v1")[0].rpartition(":")[2])
        return bool(self.port)

    def end(self) -> None:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):  # the second leaves without waiting for answers
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(1 if number is signal.SIGINT else None)


@contextlib.contextmanager
def nodes(folder: Path, *options: Sequence[str]) -> Iterator[list[Node]]:
    """Nodes with these options, one for each sequence, that take requests; at the end they are ended. Raises PartFailed."""
    running: list[Node] = []
    folder.mkdir(exist_ok=True)
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "PIPPIN_CONFIG": os.devnull}
    try:
        for number, given in enumerate(options, start=1):
            where = ["--data-dir", str(folder / f"node-{number}"), "--name", f"node-{number}", "--api-port", "0"]
            log = folder / f"node-{number}.log"
            with log.open("wb") as file:
                command = [sys.executable, "-P", "-m", "node", *where, *given]
                process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **quiet})
            running.append(Node(process, log))
        for node in running:
            until(node.started, START_S, "a node starts")
        yield running
    finally:
        for node in running:
            node.end()


def until(ask: Callable[[], Found], within: float, what: str) -> Found:
    """Ask until the result is true. Raises PartFailed after `within` seconds."""
    deadline = time.monotonic() + within
    while not (found := ask()):
        if time.monotonic() > deadline:
            raise PartFailed(f"not within {within:.0f} s: {what}")
        time.sleep(0.1)
    return found
