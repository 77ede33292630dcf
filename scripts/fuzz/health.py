"""Polls `/health` of each node from its own process, so that the attacker's work does not delay the polls."""

import contextlib
import http.client
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

EVERY_S = 0.02
TIMEOUT_S = 30.0


class Watch:
    """A running poller."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def figures(self) -> tuple[float, float, int, int]:
        """99th percentile and maximum in ms, number of polls, and of failed ones, since these were last asked for."""
        self._pipe.send(None)
        told: tuple[float, float, int, int] = self._pipe.recv()
        return told


@contextlib.contextmanager
def watching(ports: Sequence[int]) -> Iterator[Watch]:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=_poll, args=(tuple(ports), theirs))
    process.start()
    theirs.close()  # so that the end of the process ends a wait for its figures
    try:
        yield Watch(mine)
    finally:
        process.kill()
        process.join()


def _poll(ports: Sequence[int], pipe: Connection) -> None:
    with contextlib.suppress(PermissionError, OSError):  # needs root
        os.nice(-10)
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S) for port in ports]
    times: list[float] = []
    failed = 0
    while True:
        for connection in connections:
            began = time.perf_counter()
            try:
                connection.request("GET", "/health")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                failed += 1
            times.append((time.perf_counter() - began) * 1000)
        if pipe.poll(EVERY_S):
            pipe.recv()
            times.sort()
            pipe.send((times[len(times) * 99 // 100], times[-1], len(times), failed))
            times, failed = [], 0
