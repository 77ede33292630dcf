"""A model whose config.json makes MLX end its process: no node dies, and what they serve goes on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, running_cluster
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

ONE_EXPERT = {"num_experts_per_tok": 1}
"""MLX then writes beyond the end of an array (`bailing_moe`)."""


def add_model(directory: Path, **own: object) -> None:
    """A tiny one, with the built-in model's tokenizer."""
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory, ignore=shutil.ignore_patterns("model*"))
    write_model(directory, CONFIGURATIONS["bailing_moe"] | {"vocab_size": 2048} | own)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes that have the model."""
    models = tmp_path_factory.mktemp("models")
    add_model(models / "hostile", **ONE_EXPERT)
    add_model(models / "harmless")
    with running_cluster(tmp_path_factory.mktemp("pair")) as cluster:
        cluster.agreed(*cluster.start(2, "--models-dir", str(models)))
        yield cluster


def answers(node: Node, model: str) -> bool:
    body = {"model": model, "prompt": "one", "max_tokens": 3, "ignore_eos": True}
    return node.post("/v1/completions", body).status == 200


def test_a_config_that_crashes_mlx_costs_no_node(pair: Cluster) -> None:
    for node in pair.nodes:
        assert answers(node, MODEL)
        refused = node.post("/v1/completions", {"model": "hostile", "prompt": "one", "max_tokens": 3})
        assert refused.error["code"] == "model_crashes", refused.body
        assert "its process crashed" in refused.error["message"]
    for node in pair.nodes:
        assert node.process.poll() is None
        assert answers(node, MODEL)
        assert answers(node, "harmless")
