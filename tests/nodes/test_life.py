"""Nodes come and go: one head and one term, whatever the order.

The tests share one cluster and take it as the previous test left it; each can also be run alone.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from tests.conftest import MODEL, ROOT, Cluster, Node, chat_body, running_cluster, until

pytestmark = pytest.mark.slow

ONE_RING = ("--model", MODEL, "--max-rings", "1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes started at the same time. The model fits on one."""
    with running_cluster(tmp_path_factory.mktemp("home")) as cluster:
        cluster.ready(*cluster.start(3, *ONE_RING))
        yield cluster


@pytest.fixture
def nodes(home: Cluster) -> list[Node]:
    """The remaining nodes, at least two."""
    alive = [node for node in home.nodes if node.process.poll() is None]
    if len(alive) < 2:
        alive += home.start(1, *ONE_RING)
    home.ready(*alive)
    return alive


def test_nodes_that_hold_no_part_of_the_model_answer(home: Cluster, nodes: list[Node], stock: dict[str, str]) -> None:
    status = home.ready(*nodes)
    holders = {node["name"] for node in status["nodes"] if node["layers"]}
    assert len(holders) == 1
    others = [node for node in nodes if node.name not in holders]
    assert len(others) == len(nodes) - 1
    before = [node.loads for node in others]
    for node in others:
        assert node.chat("Hello").text == stock["Hello"]
        assert node.streamed("Hello") == stock["Hello"]
    assert [node.loads for node in others] == before


def test_a_late_node_joins_and_changes_nothing(home: Cluster, nodes: list[Node]) -> None:
    before = home.ready(*nodes)
    (late,) = home.start(1, *ONE_RING)
    after = home.agreed(*nodes, late)
    assert (after["head"], after["term"]) == (before["head"], before["term"])
    assert late.chat("Hello").status == 200


def test_a_node_is_killed_and_comes_back(home: Cluster, nodes: list[Node], stock: dict[str, str]) -> None:
    before = home.ready(*nodes)
    victim = next(node for node in nodes if node is not home.head(before))
    rest = [node for node in nodes if node is not victim]
    victim.kill()
    until(lambda: {node.state_of(victim) for node in rest} == {"failed"}, f"{victim.name} is shown as failed")
    after = home.ready(*rest)
    assert (after["head"], after["term"]) == (before["head"], before["term"])
    until(lambda: rest[0].warning("node-failed"), "its loss is a warning")
    assert rest[0].chat("Hello").text == stock["Hello"]

    back = home.launch(*ONE_RING, name=victim.name).started()
    again = home.ready(*rest, back)
    assert (again["head"], again["term"]) == (before["head"], before["term"])
    ids = [node["id"] for node in again["nodes"] if node["name"] == victim.name]
    assert ids == [node["id"] for node in before["nodes"] if node["name"] == victim.name], "an identity is for life"


def test_the_head_is_killed(home: Cluster, nodes: list[Node], stock: dict[str, str]) -> None:
    before = home.ready(*nodes)
    victim = home.head(before)
    rest = [node for node in nodes if node is not victim]
    victim.kill()
    until(lambda: {node.state_of(victim) for node in rest} == {"failed"}, f"{victim.name} is shown as failed")
    after = home.ready(*rest)
    assert after["head"] != before["head"]
    assert after["term"] > before["term"]
    for node in rest:
        assert node.chat("Hello").text == stock["Hello"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_says_goodbye(home: Cluster, nodes: list[Node], number: signal.Signals) -> None:
    leaver, *rest = nodes
    leaver.signal(number)
    until(lambda: {node.state_of(leaver) for node in rest} == {"left"}, f"{leaver.name} is shown as left")
    assert leaver.wait() == 0
    home.ready(*rest)
    assert rest[0].chat("Hello").status == 200


def test_the_first_is_head_and_its_end_unloads_nothing(cluster: Cluster, stock: dict[str, str]) -> None:
    """The first node has too little memory for the model, and would not be head if all had started at once."""
    nodes = cluster.start(1, "--memory", "2MB")
    cluster.agreed(*nodes)
    nodes += cluster.start(1, "--memory", "1GB") + cluster.start(1, "--memory", "2GB")
    before = cluster.agreed(*nodes)
    assert before["state"] == "idle"
    assert cluster.head(before) is nodes[0]

    assert nodes[0].chat("Hello").text == stock["Hello"]
    (model,) = cluster.ready(*nodes)["models"]
    nodes[0].kill()
    after = cluster.agreed(*nodes[1:])
    assert after["term"] > before["term"]
    after = cluster.ready(*nodes[1:])
    assert placed(after["models"][0]) == placed(model)
    assert nodes[1].chat("Hello").text == stock["Hello"]
    for node in nodes[1:]:
        assert "unloading" not in node.written


def placed(model: dict[str, Any]) -> list[Any]:
    """Its rings, without `requests`, which are updated a moment later."""
    return [(ring["id"], ring["stages"]) for ring in model["rings"]]


def in_small_files(directory: Path) -> None:
    """Write the model with a file for each layer, so that half of its layers are clearly fewer than
    all of its files.
    """
    source = ROOT / "node" / "builtin" / MODEL
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = {name: array for file in source.glob("*.safetensors") for name, array in load_file(file).items()}
    files = {name: f"model-{name.partition('layers.')[2].partition('.')[0]}.safetensors" for name in tensors}
    for file in set(files.values()):
        save_file({name: array for name, array in tensors.items() if files[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def test_a_model_that_no_other_node_has_whole_outlives_the_head(
    cluster: Cluster, stock: dict[str, str], tmp_path: Path
) -> None:
    """The next head can't read the model's description: its files are on the first node alone, and there is no hub."""
    in_small_files(tmp_path / "models" / "pieces")
    nodes = cluster.start(1, "--memory", "2MB", "--models-dir", str(tmp_path / "models"))
    cluster.agreed(*nodes)
    nodes += cluster.start(2, "--stages", "2")
    assert cluster.head(cluster.agreed(*nodes)) is nodes[0]
    body = chat_body("Hello", model="pieces")
    assert nodes[2].post("/v1/chat/completions", body).text == stock["Hello"]
    (model,) = nodes[2].status()["models"]
    with nodes[2].stream("Count from 1 to 100", model="pieces", max_tokens=300) as events:
        next(iter(events))
        nodes[0].kill()
        assert events.rest() == stock["Count from 1 to 100"]
    after = cluster.ready(*nodes[1:])
    assert placed(after["models"][0]) == placed(model)
    assert nodes[2].post("/v1/chat/completions", body).text == stock["Hello"]
    for node in nodes[1:]:
        assert "unloading" not in node.written
