"""A model whose config.json makes MLX end its process: no node dies, and what they serve goes on."""

import contextlib
import http.client
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, running_cluster, until
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

ONE_EXPERT = {"num_experts_per_tok": 1}
"""MLX then writes beyond the end of an array (`bailing_moe`)."""


def add_model(directory: Path, **own: object) -> None:
    """A tiny one, with the built-in model's tokenizer."""
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
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


UNTRIED = "from node.engine.trials import Trials\n\nasync def check(*_): pass\n\nTrials.check = check\n"


def test_after_a_crash_in_a_load_the_next_start_refuses_until_a_user_asks(cluster: Cluster, tmp_path: Path) -> None:
    """A trial does not see everything: here it sees nothing."""
    add_model(tmp_path / "models" / "hostile", **ONE_EXPERT)
    (tmp_path / "sitecustomize.py").write_text(UNTRIED)
    environment, options = {"PYTHONPATH": str(tmp_path)}, ("--models-dir", str(tmp_path / "models"))
    first = cluster.launch(*options, "--model", "hostile", name="first", environment=environment)
    assert first.wait() == -signal.SIGSEGV
    add_model(tmp_path / "models" / "harmless")
    back = cluster.launch(*options, "--model", "hostile", name="first", environment=environment).started()
    other = cluster.launch(*options, environment=environment).started()
    cluster.agreed(back, other)
    refused = other.post("/v1/completions", {"model": "hostile", "prompt": "one", "max_tokens": 3})
    assert refused.error["code"] == "model_crashes", refused.body
    assert "first ended by a fault (Segmentation fault) while it loaded hostile" in refused.error["message"]
    assert answers(other, "harmless")

    with contextlib.suppress(OSError, http.client.HTTPException):  # the answer may be lost with its node
        back.post("/cluster/models/hostile/load", {})
    until(lambda: any(node.process.poll() == -signal.SIGSEGV for node in (back, other)), "it is tried again")
