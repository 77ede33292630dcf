"""The first Ctrl-C: running answers finish. The second one: the node ends at once."""

import signal

import pytest

from tests.conftest import Cluster, until

pytestmark = pytest.mark.slow


def test_the_first_lets_answers_end_and_the_second_quits(cluster: Cluster, stock: dict[str, str]) -> None:
    first, second = cluster.start(2)
    cluster.agreed(first, second)
    with first.stream("Count from 1 to 100", max_tokens=300) as events:
        next(iter(events))
        first.signal(signal.SIGINT)
        assert events.rest() == stock["Count from 1 to 100"]
    assert first.wait(5) == 0
    until(lambda: second.state_of(first) == "left", 5, "the node that drained is shown as left")

    with second.stream("Hello", ignore_eos=True, max_tokens=1900) as events:
        reading = iter(events)
        next(reading)
        second.signal(signal.SIGINT)
        for _ in range(20):
            next(reading)
        refused = second.chat("Hello")
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert second.get("/health").status == 503
        assert second.process.poll() is None
        second.signal(signal.SIGINT)
        assert second.wait(5) == 0
