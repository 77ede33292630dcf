"""What a node says, and to whom it matters."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Cluster, until

pytestmark = pytest.mark.slow


def test_debug_has_a_line_for_each_request_and_none_of_libraries(cluster: Cluster) -> None:
    (node,) = cluster.start(1, "--log-level", "debug")
    cluster.agreed(node)
    answer = node.get("/v1/models")
    line = rf"DEBUG +{answer.headers['X-Request-ID']} GET /v1/models from 127.0.0.1: 200 after"
    until(lambda: re.search(line, node.written), "the request's line")
    assert not re.search("poller|selector|cygrpc", node.written, re.IGNORECASE), node.written


def test_a_node_without_a_model_says_what_to_do_next(cluster: Cluster) -> None:
    (node,) = cluster.start(1)
    until(lambda: "no model is named" in node.written, "the next step")
    assert "--model llama-3.2-1b" in node.written
    assert "`cluster status`" in node.written


@pytest.mark.parametrize("secret", [False, True])
def test_a_node_shows_the_log_of_another_one_which_takes_another_key(
    cluster: Cluster, tmp_path: Path, secret: bool
) -> None:
    """The key goes to the asked node alone. The other one is killed while its log is followed."""
    keys = [tmp_path / name for name in ("first", "second")]
    for file in keys:
        file.write_text(f"sk-{file.name}-key\n")
        file.chmod(0o600)
    environment = {"PIPPIN_SECRET": "correct horse battery staple"} if secret else {}
    first, second = [
        cluster.launch("--api-key-file", str(file), "--log-level", "debug", environment=environment).started()
        for file in keys
    ]
    logs = ("logs", second.name, "--api-key-file", str(keys[0]))

    def shown() -> str:
        return first.command(*logs).stdout

    line = until(lambda: re.search(r"node n2 of cluster .*: API on \S+", second.written), "its first line")
    until(lambda: line[0] in shown(), "the other node's log")
    with subprocess.Popen(first.command_line(*logs, "--follow"), stdout=subprocess.PIPE, text=True) as following:
        asked = until(lambda: second.get("/v1/models"), "a line of its log").headers["X-Request-ID"]
        until(lambda: asked in shown(), "the request's line")
        assert any(asked in line for line in following.stdout)
        second.kill()
        assert "did not answer" in following.stdout.read().splitlines()[-1]
    assert "GET /cluster/logs" not in second.written
