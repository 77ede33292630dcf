"""Requests to Ollama's API say how long a model stays in memory, and the head sees to it."""

import shutil
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, until

pytestmark = pytest.mark.slow


def ask(node: Node, model: str, **more: object) -> None:
    body = {"model": model, "prompt": "Hello", "stream": False, "options": {"num_predict": 4}, **more}
    answer = node.post("/api/generate", body)
    assert answer.status == 200, answer.body


def loaded(node: Node) -> list[str]:
    return [each["name"].removesuffix(":latest") for each in node.get("/api/ps").json["models"]]


def left(node: Node) -> timedelta:
    (told,) = node.get("/api/ps").json["models"]
    return datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)


def test_a_model_stays_for_as_long_as_a_request_said(cluster: Cluster) -> None:
    first, second = nodes = cluster.start(2)
    status = cluster.agreed(*nodes)
    gateway = next(node for node in nodes if node is not cluster.head(status))
    ask(gateway, MODEL, keep_alive="5m")
    until(lambda: MODEL in loaded(first) and MODEL in loaded(second), "both nodes know it")
    until(lambda: timedelta(minutes=4) < left(gateway) < timedelta(minutes=6), "it stays for the time that was said")
    ask(gateway, MODEL, keep_alive=0)
    until(lambda: not loaded(first) and not loaded(second), "it is unloaded after the answer")
    ask(gateway, MODEL, keep_alive=-1)
    assert loaded(gateway) == [MODEL]
    ask(gateway, MODEL, keep_alive=0.5)
    until(lambda: not loaded(gateway), "it is unloaded when it is idle")


def test_a_model_that_the_user_asked_for_stays(cluster: Cluster) -> None:
    models = cluster.directory / "models"
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, models / "other")
    (node,) = cluster.start(1, "--model", MODEL, "--models-dir", str(models))
    cluster.ready(node)
    for model in (MODEL, "other"):
        ask(node, model, keep_alive=0)
    until(lambda: "other" not in loaded(node), "the head has looked for idle models")
    assert loaded(node) == [MODEL]
