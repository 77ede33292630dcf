"""A draft model guesses the tokens of a model that is spread over nodes: the same text, also when its node dies."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.conftest import MODEL, ROOT, Cluster, Node
from tests.nodes.test_guesses import GREEDY, SEEDED, right_guesses

pytestmark = pytest.mark.slow

COUNT, STORY = GREEDY | {"model": "twin"}, SEEDED | {"model": "twin"}
BUILTIN = ROOT / "node" / "builtin" / MODEL


def deepen(model: Path, layers: int = 16) -> None:
    """Add layers that change nothing, as they add zeros: a draft model has to be quicker than its model. The MTP layer goes."""
    config = json.loads((model / "config.json").read_text())
    tensors = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    for name, tensor in list(tensors.items()):
        if name.startswith("model.layers.0."):
            adds = name.endswith(("o_proj.weight", "down_proj.weight"))
            for layer in range(config["num_hidden_layers"], layers):
                tensors[name.replace(".0.", f".{layer}.")] = np.zeros_like(tensor) if adds else tensor
    for file in model.glob("*.safetensors*"):
        file.unlink()
    save_file(tensors, model / "model.safetensors", {"format": "mlx"})
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))


@pytest.fixture
def models(cluster: Cluster) -> Path:
    """Copies of the built-in model: a twin that takes longer, and one with two tokens exchanged."""
    folder = cluster.directory / "models"
    for name in ("twin", "stranger"):
        shutil.copytree(BUILTIN, folder / name)
    deepen(folder / "twin")
    tokenizer = json.loads((BUILTIN / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = sorted(vocabulary, key=vocabulary.get)[500:502]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (folder / "stranger" / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def started(cluster: Cluster, models: Path, *options: str, count: int = 2) -> list[Node]:
    nodes = cluster.start(count, "--models-dir", str(models), "--stages", "2", "--model", "twin", *options)
    cluster.ready(*nodes, stages=2)
    return nodes


def ring(node: Node) -> dict[str, Any]:
    (model,) = node.status()["models"]
    (found,) = model["rings"]
    return dict(found)


def test_a_draft_model_guesses_and_a_death_changes_nothing(cluster: Cluster, models: Path) -> None:
    nodes = started(cluster, models, "--draft", MODEL)
    gateway = cluster.launch("--models-dir", str(models), "--stages", "2", "--memory", "1MB", name="gateway").started()
    cluster.ready(*nodes, gateway, stages=2)
    assert ring(gateway)["draft"] == MODEL
    texts = [gateway.chat(**ask).text for ask in (COUNT, STORY)]
    assert right_guesses(nodes) > 0, (
        "how many are made depends on how often the driver waits, and on whether they pay here"
    )
    for victim in (1, 0):  # the stage, and then the driver
        killed = cluster.ring(cluster.ready(*nodes, gateway, stages=2))[victim]
        with gateway.stream(**COUNT) as events:
            for count, _ in enumerate(events):
                if count == 60:
                    killed.kill()
            assert events.text == texts[0]
        nodes = [node for node in nodes if node is not killed]
        nodes += cluster.start(1, "--models-dir", str(models), "--stages", "2", "--draft", f"twin={MODEL}")
        assert gateway.chat(**STORY).text == texts[1]


def test_the_text_is_the_same_without_a_draft_model(cluster: Cluster, models: Path) -> None:
    one, other = started(cluster, models)
    assert ring(one)["draft"] is None
    texts = [one.chat(**ask).text for ask in (COUNT, STORY)]
    late = cluster.launch("--models-dir", str(models), "--draft", f"twin={MODEL}", "--memory", "1MB", name="late")
    cluster.ready(one, other, late.started())
    assert [one.chat(**ask).text for ask in (COUNT, STORY)] == texts


@pytest.mark.parametrize(
    ("draft", "why", "hint"),
    [
        (
            "stranger",
            "stranger can't be the draft of twin, as it has other tokens: 2 of its tokens differ, the first is 500",
            "Choose a smaller model of the same family",
        ),
        ("missing", "No node has a model missing.", ""),
        ("damaged", "", ""),
    ],
)
def test_a_model_is_served_without_a_draft_that_cannot_be_used(
    cluster: Cluster, models: Path, draft: str, why: str, hint: str
) -> None:
    shutil.copytree(BUILTIN, models / "damaged")
    (models / "damaged" / "config.json").write_text('{"model_type": "llama"')
    node = cluster.launch("--models-dir", str(models), "--model", "twin", "--draft", draft, name="node").started()
    cluster.ready(node)
    assert node.chat(**COUNT).text
    (warning,) = [each for each in node.status()["warnings"] if each["code"] == "draft-refused"]
    assert f"twin is served without its draft model {draft}: {why}" in warning["text"]
    assert hint in warning["hint"]
