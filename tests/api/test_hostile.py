"""During any request, /health answers, and the process grows by no more than ten times a body.

PIPPIN_HOSTILE=1000 sends all requests; --log-cli-level=info shows the worst ones.
"""

import http.client
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.api.fuzz import GOOD, MODEL, written
from tests.api.hostile import CHAT, MOST, Hostile, hostile

log = logging.getLogger(__name__)

SAMPLE = int(os.environ.get("PIPPIN_HOSTILE", "20"))
HEALTH_S = 1.0
"""It normally takes a twentieth of this."""
COST = 10 * MOST
WITHIN_S = 60


class Child:
    """A gateway in its own process, and measurements of it during requests."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.api.served"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        self._seen = psutil.Process(self.process.pid)

    def ask(self, path: str, body: bytes, encoding: str = "identity") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        connection.request("POST", path, body, {"Content-Encoding": encoding, "Connection": "close"})
        response = connection.getresponse()
        said = response.read()
        connection.close()
        assert b"Traceback" not in said
        assert response.status < 400 or len(said) < 3000
        return response.status

    def watched(self, request: Hostile) -> tuple[int, float, int]:
        """Send a request; return its status, how long /health took at most meanwhile (processor seconds of the process, as
        this machine may be busy), and the process's growth (bytes).
        """
        body, done = request.body(), threading.Event()
        before = self._seen.memory_info().rss
        took, grown = [0.0], [0]

        def watch() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
            while not done.wait(0.002):
                begun = sum(self._seen.cpu_times()[:2])
                connection.request("GET", "/health")
                connection.getresponse().read()
                took.append(sum(self._seen.cpu_times()[:2]) - begun)
                grown.append(self._seen.memory_info().rss - before)
            connection.close()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return self.ask(request.path, body, request.encoding), max(took), max(grown)
        finally:
            done.set()
            watcher.join()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.process.communicate(timeout=WITHIN_S)
    assert child.process.returncode == 0


def sample() -> list[Hostile]:
    every = list(hostile())
    return random.Random(7).sample(every, min(SAMPLE, len(every)))


@pytest.mark.slow
def test_health_answers_meanwhile(child: Child) -> None:
    worst = ["", ""]
    longest, largest = 0.0, 0
    for request in sample():
        status, took, grown = child.watched(request)
        assert status in (200, 400, 404, 413), request.name
        if took > longest:
            longest, worst[0] = took, request.name
        if grown > largest:
            largest, worst[1] = grown, request.name
        assert grown < COST, f"{request.name}: {grown:,} bytes"
    log.info("/health took %.3f s (%s), memory grew by %d bytes (%s)", longest, worst[0], largest, worst[1])
    assert longest < HEALTH_S, worst[0]
    assert child.ask(CHAT, written({"model": MODEL, **GOOD[CHAT]})) == 200
