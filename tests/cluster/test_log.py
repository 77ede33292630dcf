"""What a node says, and to whom it matters."""

import re

import pytest

from tests.conftest import Cluster, until

pytestmark = pytest.mark.slow


def test_debug_has_a_line_for_each_request_and_none_of_libraries(cluster: Cluster) -> None:
    (node,) = cluster.start(1, "--log-level", "debug")
    cluster.agreed(node)
    answer = node.get("/v1/models")
    line = rf"DEBUG +{answer.headers['X-Request-ID']} GET /v1/models from 127.0.0.1: 200 after"
    until(lambda: re.search(line, node.written), 5, "the request's line")
    assert not re.search("poller|selector|cygrpc", node.written, re.IGNORECASE), node.written


def test_a_node_without_a_model_says_what_to_do_next(cluster: Cluster) -> None:
    (node,) = cluster.start(1)
    until(lambda: "no model is named" in node.written, 5, "the next step")
    assert "--model llama-3.2-1b" in node.written
    assert "`cluster status`" in node.written
