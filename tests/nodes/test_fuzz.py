"""Odd requests to a model that is split over three nodes: each is answered or refused, and leaves nothing behind."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.fuzz import GOOD, JSON_PIECES, bodies, damaged, written
from tests.conftest import MODEL, Answer, Cluster, Node, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(three: Cluster) -> Node:
    """A node that is neither head nor driver, so all of its answers come over the network."""
    status = three.ready(*three.nodes)
    return next(node for node in three.nodes if node is not three.head(status))


@pytest.fixture(scope="module")
def endpoints(node: Node) -> list[str]:
    return [path for path in GOOD if node.post(path, {}).status != 404]


@pytest.fixture(autouse=True)
def left_as_before(three: Cluster, node: Node, stock: dict[str, str]) -> Iterator[None]:
    yield
    until(lambda: node.running() == 0, "nothing runs on")
    for each in three.nodes:
        assert each.chat("Hello").text == stock["Hello"]
        assert "Traceback" not in each.written


def answered_or_refused(answer: Answer) -> bool:
    return answer.status == 200 or 400 <= answer.status < 500


@given(st.data())
def test_bodies_around_the_schema(node: Node, endpoints: list[str], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(endpoints))
    answer = node.post(path, data.draw(bodies(path, MODEL)))
    assert answered_or_refused(answer), answer.body
    assert b"Traceback" not in answer.body


@given(st.data())
def test_bodies_around_json(node: Node, endpoints: list[str], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(endpoints))
    answer = node.post(path, data.draw(damaged(written({"model": MODEL, **GOOD[path], "stream": True}), JSON_PIECES)))
    assert answered_or_refused(answer), answer.body
