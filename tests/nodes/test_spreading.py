"""Two real nodes that both have a model: a stream that is alone moves to a ring of both, and back when several come."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Cluster, Node, under_way, until

pytestmark = pytest.mark.slow

ANSWERS = 60
"""Most answers to wait for: some seconds each, of which ten must show that two nodes would be faster."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose steps take some ten times as long as the way to another process. Its windows can't go back, so that each
    step has one token: what more of them cost would depend on what else the machine did while it was measured.
    """
    out = tmp_path_factory.mktemp("models") / "25m"
    command = [sys.executable, str(ROOT / "scripts" / "make_model.py"), "--preset", "25m", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    config = json.loads((out / "config.json").read_text())
    layers = ["sliding_attention"] * (config["num_hidden_layers"] - 1)
    config |= {"layer_types": [*layers, "full_attention"], "sliding_window": 64}
    (out / "config.json").write_text(json.dumps(config))
    return out


def rings(node: Node) -> list[dict[str, Any]]:
    """Those that stay, if all are ready."""
    found = [ring for ring in node.status()["models"][0]["rings"] if ring["state"] != "retiring"]
    assert all(ring["state"] == "ready" for ring in found)
    return found


def stages(node: Node) -> list[int]:
    return [len(ring["stages"]) for ring in rings(node)]


def told(nodes: Sequence[Node]) -> str:
    return "".join(node.written for node in nodes)


def test_one_stream_gets_both_nodes_and_several_get_one_each(cluster: Cluster, model: Path) -> None:
    nodes = cluster.start(2, "--model", str(model))
    node = nodes[0]
    cluster.ready(*nodes)
    until(lambda: stages(node) == [1, 1], "each node has a replica")
    # What was said before foretells it: that makes two stages faster, whatever this machine's speed is.
    ask = {"model": model.name, "content": "Count.", "max_tokens": 100, "ignore_eos": True}
    text = node.chat(**ask).text
    for _ in range(ANSWERS):
        assert node.chat(**ask).text == text
        if any(ring["gain"] for ring in node.status()["models"][0]["rings"]):
            break
    until(lambda: stages(node) == [2], "both nodes serve it together")
    assert rings(node)[0]["gain"] >= 1.1
    assert "times as fast" in node.command("status").stdout
    assert node.chat(**ask).text == text
    for _ in range(ANSWERS):
        with under_way([(each, ask) for each in (*nodes, *nodes)], tokens=2) as answers:
            assert {answer.result() for answer in answers} == {text}
        if not any(ring["gain"] and ring["state"] != "retiring" for ring in node.status()["models"][0]["rings"]):
            break
    until(lambda: stages(node) == [1, 1], "each node has a replica again")
    assert node.chat(**ask).text == text
    assert "streams of" in told(nodes)
