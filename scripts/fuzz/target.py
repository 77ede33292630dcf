"""Two nodes that split the built-in model, observed from outside while they are attacked."""

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import health
import psutil

from tests.conftest import MODEL, ROOT, Cluster, Node, running_cluster, until

AT_ONCE = 8
"""Number of attacks that run at the same time."""
SETTLE_S = 30.0
"""Time for a node to return memory to the system: it does so every 10 s (`keep_memory` in node/daemon/upkeep.py)."""
HANG_S = 90.0
"""Seconds after which an attack counts as hung: requests may wait 60 s for a model."""
MOST_COMPLAINTS = 50
MEMORY = "300MB"
"""Memory of each node for models: small, because weights that stay in memory would hide leaks."""
TRACEBACK = re.compile(r"^ *Traceback .*(?:\n +.*)*", re.MULTILINE)
Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class Limits:
    health_p99_ms: float
    health_max_ms: float
    growth: float
    """Maximum growth of a node's resident memory, as a multiple of its size after the first attacks."""


@dataclass(slots=True)
class Findings:
    answers: Counter[str] = field(default_factory=Counter)
    """Number of answers by kind of attack and answer."""
    complaints: list[str] = field(default_factory=list)

    def complain(self, what: str) -> None:
        self.complaints.append(what)
        if len(self.complaints) <= MOST_COMPLAINTS:
            print(f"  ! {what[:2000]}", flush=True)


def documented_codes() -> dict[str, int]:
    """Return the error codes with a 5xx status in docs/troubleshooting.md, except `internal_error`, which no attack may cause."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    found = {code: int(status) for code, status in re.findall(r"^### (\w+)\n\n(5\d\d)\b", text, re.MULTILINE)}
    assert found, "the page has no such codes"
    return {code: status for code, status in found.items() if code != "internal_error"}


class NodeEnded(Exception):
    """A node under attack has ended."""


class Target:
    def __init__(
        self, cluster: Cluster, models: Path, secret: bytes | None, watch: "health.Watch", limits: Limits
    ) -> None:
        self.nodes = cluster.nodes
        self.cluster = cluster.name
        self.models = models
        """A models directory of the first node."""
        self.secret = secret
        self.findings = Findings()
        self._limits = limits
        self._watch = watch
        self._documented = documented_codes()
        self._hello = self.nodes[0].chat("Hello").text
        self._processes = [psutil.Process(node.process.pid) for node in self.nodes]
        self._memory: list[int] = []
        self._most = [0] * len(self.nodes)
        self._read = dict.fromkeys([node.name for node in self.nodes], 0)
        """Characters of each node's log that have been checked."""

    async def each(self, what: str, items: Sequence[Sent], send: Callable[[Node, Sent], Awaitable[str]]) -> None:
        """Send all items, some at once, to the nodes in turns; `send` returns a word for the answer."""
        waiting = iter(enumerate(items))

        async def client() -> None:
            for number, item in waiting:
                node = self.nodes[number % len(self.nodes)]
                try:
                    async with asyncio.timeout(HANG_S):
                        word = await send(node, item)
                except TimeoutError:
                    word = "hung"
                    self.findings.complain(f"{what}: no answer within {HANG_S:.0f} s to {item!r}")
                self.findings.answers[f"{what}: {word}"] += 1
                self.check_processes(f"{what} {item!r}")

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        self._weigh()

    def check_answer(self, what: str, item: object, status: int, body: bytes) -> str:
        """Return a word for an HTTP answer; report an answer that no request may get."""
        if b"Traceback" in body:
            self.findings.complain(f"{what}: a traceback in the answer to {item!r}: {body!r}")
        if status < 400 or not body:
            return str(status)
        try:
            error = json.loads(body)["error"]
            if isinstance(error, str):  # as Ollama writes it
                error = {"message": error}
            message, code = error["message"], error.get("code")
        except (ValueError, KeyError, TypeError, AttributeError):
            self.findings.complain(f"{what}: {status} without an error object to {item!r}: {body[:300]!r}")
            return f"{status} without error"
        documented = self._documented.get(code) == status if code else status in self._documented.values()
        if status >= 500 and not documented:  # only OpenAI's errors have codes
            self.findings.complain(f"{what}: {status} {code} to {item!r}: {message}")
        return f"{status} {code}"

    # --- after the attacks -------------------------------------------------------------------------------------------

    def check(self, what: str) -> None:
        """Check between two kinds of attacks that both nodes live and answer as before."""
        for node in self.nodes:
            self.check_processes(what)
            try:
                until(lambda node=node: node.chat("Hello").text == self._hello, f"{node.name} answers Hello")
            except AssertionError as error:
                self.findings.complain(f"after {what}: {error}")
            for traceback in set(TRACEBACK.findall(node.written[self._read[node.name] :])):
                self.findings.complain(f"after {what}: {node.name} logged {traceback}")
            self._read[node.name] = len(node.written)
        self._weigh()
        self._check_limits(what)

    def check_processes(self, what: str) -> None:
        """Raises NodeEnded."""
        for node in self.nodes:
            if (status := node.process.poll()) is not None:
                raise NodeEnded(f"after {what[:600]}: {node.name} ended with {status}: {node.written[-600:]}")

    def _weigh(self) -> None:
        now = [process.memory_info().rss for process in self._processes]
        self._memory = self._memory or now
        self._most = [max(pair) for pair in zip(self._most, now, strict=True)]

    def _growth(self) -> float:
        now = [process.memory_info().rss for process in self._processes]
        return max(size / first for size, first in zip(now, self._memory, strict=True))

    def _check_limits(self, what: str) -> None:
        """Check health during these attacks, and the memory that the nodes keep after them.

        While requests run, their grammars take memory: up to MAX_IN_USE of node/text/grammars.py. So their peak is only shown.
        """
        limits = self._limits
        p99_ms, max_ms, polls, failed = self._watch.figures()
        deadline = time.monotonic() + SETTLE_S
        while (growth := self._growth()) > limits.growth and time.monotonic() < deadline:
            time.sleep(0.5)
        peak = max(most / first for most, first in zip(self._most, self._memory, strict=True))
        told = (
            f"{what}: /health p99 {p99_ms:.1f} ms, max {max_ms:.1f} ms, {failed} of {polls} not answered; "
            f"memory {growth:.2f}x, at the peak {peak:.2f}x, {max(self._most) / 1e6:.0f} MB"
        )
        print(f"  {told}", flush=True)
        if p99_ms > limits.health_p99_ms or max_ms > limits.health_max_ms or failed or growth > limits.growth:
            self.findings.complain(f"over the limits: {told}")

    def report(self, kind: str) -> None:
        print(f"{kind}:")
        for word, count in sorted(self.findings.answers.items()):
            print(f"  {count:>8,}  {word}")


@contextlib.contextmanager
def running_target(directory: Path, limits: Limits, *, has_secret: bool) -> Iterator[Target]:
    models = directory / "models"
    models.mkdir()
    options = ["--model", MODEL, "--stages", "2", "--memory", MEMORY]
    secret = None
    if has_secret:
        file = directory / "secret"
        file.touch(0o600)
        file.write_text(secrets.token_hex(16))
        secret = file.read_bytes()
        options += ["--secret-file", str(file)]
    with running_cluster(directory) as cluster:
        cluster.launch(*options, "--models-dir", str(models))
        cluster.launch(*options)
        cluster.ready(*[node.started() for node in cluster.nodes], stages=2)
        with health.watching([node.port for node in cluster.nodes]) as watch:
            yield Target(cluster, models, secret, watch, limits)
