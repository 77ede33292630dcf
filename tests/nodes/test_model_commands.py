"""`cluster chat`, `run`, `models`, `ps`, `load` and `unload` against real nodes."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, PATIENCE_S, ROOT, Cluster, Node, until

pytestmark = pytest.mark.slow


def asked(node: Node, *arguments: str, stdin: str = "", code: int = 0) -> str:
    """What a command prints; to stderr if it fails."""
    done = node.command(*arguments, stdin=stdin)
    assert done.returncode == code, done
    return done.stderr if code else done.stdout


def in_memory(node: Node) -> list[Any]:
    return [layer for each in node.status()["nodes"] for layer in each["layers"] + each["idle"]]


def test_models_are_shown_loaded_and_unloaded(cluster: Cluster) -> None:
    one = cluster.launch("--model", MODEL, "--alias", f"gpt-4o={MODEL}", "--alias", f"its-own={MODEL}")
    two = cluster.launch("--model", MODEL)
    cluster.ready(one.started(), two.started())
    (model,) = json.loads(asked(two, "models", "--json"))["models"]
    assert (model["id"], model["state"], model["fits"], len(model["nodes"])) == (MODEL, "ready", True, 2)
    assert model["bytes"] > 1 << 20
    assert model["aliases"] == ["gpt-4o", "its-own"]
    assert {entry["id"] for entry in two.get("/v1/models").json["data"]} == {MODEL, "gpt-4o", "its-own"}

    assert asked(two, "unload", MODEL) == f"{MODEL} is unloaded\n"
    until(lambda: one.status()["state"] == two.status()["state"] == "idle", "both know that no model is wanted")
    until(lambda: not in_memory(one), "no node has its layers")
    assert asked(two, "unload", MODEL, code=1).startswith(f"cluster: {MODEL} is not loaded.")
    assert "unloaded" in asked(one, "models")

    assert asked(two, "load", MODEL.upper(), "--stages", "2", "--context", "600") == f"{MODEL} is loaded\n"
    until(
        lambda: [ring["state"] for model in one.status()["models"] for ring in model["rings"]] == ["ready"], "its ring"
    )
    (loaded,) = json.loads(asked(one, "ps", "--json"))
    assert loaded["context"] == 600
    assert [len(ring["stages"]) for ring in loaded["rings"]] == [2]
    assert MODEL in asked(one, "ps")
    assert "There is no model" in asked(one, "load", "no-such-model", code=1)
    assert one.chat("Hello", model=MODEL).text == two.chat("Hello", model="gpt-4o").text


def test_a_model_that_came_just_now_is_fetched_by_another_node_and_deleted(cluster: Cluster, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("n1", "n2")}
    for folder in folders.values():
        folder.mkdir()
    options = ("--max-rings", "1", "--models-dir")
    nodes = [cluster.launch(*options, str(folder), name=name) for name, folder in folders.items()]
    status = cluster.agreed(*(node.started() for node in nodes))
    two = cluster.head(status)
    one = next(node for node in nodes if node is not two)
    mine = folders[one.name]
    text = one.chat("Hello", model=MODEL).text
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, mine / "mine")
    assert asked(one, "run", "mine", "Hello", "--temperature", "0") == f"{text}\n"

    until(lambda: "mine" in asked(two, "models"), "the other node knows the model")
    assert re.fullmatch(r"mine   [0-9.]+ MB\n", asked(two, "pull", "mine"))

    def holders() -> int:
        models = json.loads(asked(two, "models", "--json"))["models"]
        return next(len(each["nodes"]) for each in models if each["id"] == "mine")

    until(lambda: holders() == 2, "both have it")
    asked(two, "unload", "mine")
    assert re.fullmatch(r"mine is deleted: [0-9.]+ MB are free\.\n", asked(two, "rm", "mine"))
    assert "Its folder is a user's" in asked(one, "rm", "mine", code=1)
    assert str(mine / "mine") in one.written


def test_an_idle_model_is_unloaded_unless_somebody_names_it(cluster: Cluster) -> None:
    one, two = cluster.start(2, "--keep-alive", "2s")
    cluster.agreed(one, two)
    assert asked(two, "run", MODEL, "Hello")
    until(lambda: not two.status()["models"] and not in_memory(two), "the idle model is unloaded")
    until(lambda: "has been idle for as long as it may be" in one.written + two.written, "the head tells why")


def test_the_log_of_a_node_by_any_of_its_names(three: Cluster) -> None:
    one, _, last = three.nodes
    ids = {node["name"]: node["id"] for node in one.status()["nodes"]}
    for name in (last.name, ids[last.name], ids[last.name][:8]):
        assert f"node {last.name} of cluster" in asked(one, "logs", name)
    with subprocess.Popen(one.command_line("logs", "-f"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) in (0, 130)


def test_answers_in_the_terminal(three: Cluster) -> None:
    node = three.nodes[0]
    three.ready(*three.nodes)
    text = node.chat("Hello").text
    greedy = ("run", MODEL, "--temperature", "0")
    assert asked(node, *greedy, "Hello") == f"{text}\n"
    assert asked(node, *greedy, stdin="Hello\n") == f"{text}\n"
    assert json.loads(asked(node, *greedy, "--json", "Hello"))["choices"][0]["message"]["content"] == text
    said = asked(node, "chat", stdin="/system You are a poet.\nHello\n/quit\n")
    assert said.strip()


def test_ctrl_c_ends_the_request_too(three: Cluster) -> None:
    node = three.nodes[0]
    command = node.command_line("run", MODEL, "--max-tokens", "100000", "Count from 1 to 100")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    until(lambda: node.running() == 0, "the request ends")
