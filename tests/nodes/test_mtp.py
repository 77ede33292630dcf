"""The built-in model's MTP layer guesses its tokens on rings of several nodes: the same text, with it and without."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, ROOT, Cluster
from tests.nodes.test_guesses import GREEDY, GUIDED, PENALIZED, SEEDED, right_guesses

pytestmark = pytest.mark.slow

BUILTIN = ROOT / "node" / "builtin" / MODEL
ASKED: tuple[dict[str, Any], ...] = (GREEDY, SEEDED, PENALIZED, GUIDED, SEEDED | {"logprobs": True, "seed": 5})


def answers(cluster: Cluster, count: int, *options: str) -> list[Any]:
    """Of a ring of so many nodes; afterwards they are killed."""
    nodes = cluster.start(count, "--stages", str(count), "--model", MODEL, *options)
    cluster.ready(*nodes, stages=count)
    found = [nodes[-1].chat(**ask).json["choices"] for ask in ASKED]
    right = right_guesses(nodes)
    for node in nodes:
        node.kill()
    if "--no-guesses" not in options and count > 1:
        assert right > 0, (
            "how many are made depends on how often the driver waits, and on whether they pay on this machine"
        )
    return found


def test_it_guesses_and_changes_nothing(cluster: Cluster) -> None:
    expected = answers(cluster, 1, "--no-guesses")
    for count in (2, 3):
        assert answers(cluster, count) == expected


def test_a_node_dies_and_the_text_goes_on(cluster: Cluster) -> None:
    nodes = cluster.start(2, "--stages", "2", "--model", MODEL)
    gateway = cluster.launch("--stages", "2", "--memory", "1MB", name="gateway").started()
    cluster.ready(*nodes, gateway, stages=2)
    text = gateway.chat(**GREEDY).text
    for victim in (1, 0):  # the stage, and then the driver
        killed = cluster.ring(cluster.ready(*nodes, gateway, stages=2))[victim]
        with gateway.stream(**GREEDY) as events:
            for count, _ in enumerate(events):
                if count == 60:
                    killed.kill()
            assert events.text == text
        nodes = [node for node in nodes if node is not killed]
        nodes += cluster.start(1, "--stages", "2", "--model", MODEL)
    assert gateway.chat(**GREEDY).text == text


def test_a_damaged_layer_refuses_no_model(cluster: Cluster, tmp_path: Path) -> None:
    model = tmp_path / "models" / "damaged"
    shutil.copytree(BUILTIN, model)
    path = model / "mtp.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"mtp.norm.weight"', b'"mtp.warm.weight"'))
    index = model / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("mtp.norm.weight", "mtp.warm.weight"))
    options = ("--models-dir", str(tmp_path / "models"), "--stages", "2", "--model", "damaged")
    nodes = cluster.start(2, *options)
    cluster.ready(*nodes, stages=2)
    assert nodes[0].chat(**GREEDY | {"model": "damaged", "max_tokens": 20}).text
    codes = {issue["code"] for issue in nodes[0].status()["warnings"]}
    assert "no-guesses" in codes
