"""Two hundred streams through a node that the system starts with 256 file descriptors, as macOS does."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import BIN, MODEL, PATIENCE_S, Cluster

pytestmark = pytest.mark.slow

STREAMS = 200
FEW = ("sh", "-c", 'ulimit -Sn 256; exec "$0" "$@"', str(BIN / "node"))
OPTIONS = ("--model", MODEL, "--stages", "2", "--max-rings", "1")
BODY = {"max_tokens": 16, "ignore_eos": True}


def test_streams_outlive_a_node_though_the_limit_was_low(cluster: Cluster) -> None:
    nodes = [node.started() for node in [cluster.launch(*OPTIONS, program=FEW) for _ in range(3)]]
    status = cluster.ready(*nodes, stages=2)
    _, victim = ring = cluster.ring(status)
    gateway = next(node for node in nodes if node not in ring)
    questions = [f"Count from {number % 20} to 100" for number in range(STREAMS)]
    alone = {question: gateway.streamed(question, **BODY) for question in questions[:20]}
    begun = threading.Semaphore(0)

    def read(question: str) -> str:
        with gateway.stream(question, **BODY) as events:
            for number, _ in enumerate(events):
                if number == 2:
                    begun.release()
            return events.text

    with ThreadPoolExecutor(STREAMS) as threads:
        answers = [threads.submit(read, question) for question in questions]
        assert begun.acquire(timeout=PATIENCE_S), "the first stream begins"
        victim.kill()
        texts = [answer.result() for answer in answers]
    assert texts == [alone[question] for question in questions]
    for node in nodes:
        assert "Too many open files" not in node.written
