"""`cluster models` and `cluster ps`. Their tables are in golden/: change them with care."""

import json
from pathlib import Path

import pytest

from node.cli.__main__ import main

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def models():
    return json.loads((GOLDEN / "models.json").read_text())


def golden(name):
    return (GOLDEN / name).read_text()


def test_the_models_that_nodes_hold(node, models, status, capsys):
    node.answers = [models, status]
    assert main(["models", "--api", node.url]) == 0
    assert capsys.readouterr().out == golden("models.txt")


def test_kv_of_earlier_sessions_is_told_where_there_is_any(node, models, status, capsys):
    for each, size in zip(status["nodes"], (0, 3 << 30), strict=False):
        each["kv_on_disk"] = size
    node.answers = [models, status]
    assert main(["models", "--api", node.url]) == 0
    name = status["nodes"][1]["name"]
    assert f"\nKV of earlier sessions on disks: {name} 3.0 GB\n" in capsys.readouterr().out


def test_models_in_another_format_are_named(node, models, status, capsys):
    models["unusable"] = [{"id": "org/x-GGUF", "reason": "Its files here are GGUF."}]
    node.answers = [models, status]
    assert main(["models", "--api", node.url]) == 0
    assert capsys.readouterr().out.endswith("\n! org/x-GGUF  Its files here are GGUF.\n")


def test_the_loaded_models(node, models, status, capsys):
    node.answers = [status, models]
    assert main(["ps", "--api", node.url]) == 0
    assert capsys.readouterr().out == golden("ps.txt")


def test_a_model_that_could_not_be_loaded_is_shown_with_the_reason(node, models, status, capsys):
    model = {**status["models"][0], "id": "org/m", "state": "refused", "rings": [], "context": 0}
    why = {
        "code": "model-refused",
        "severity": "error",
        "text": "mini-3 could not load org/m: No.",
        "hint": "Try again.",
    }
    status["models"].append(model)
    status["warnings"].append(why | {"node": ""})
    node.answers = [status, models]
    assert main(["ps", "--api", node.url]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].split()[:4] == ["org/m", "refused", "-", "-"]
    assert out.endswith("\n\n! model-refused  mini-3 could not load org/m: No. Try again.\n")


def test_a_ring_that_another_one_replaces_is_marked(node, models, status, capsys):
    (model,) = status["models"]
    old = {**model["rings"][0], "id": "old", "state": "retiring"}
    node.answers = [{**status, "models": [{**model, "rings": [*model["rings"], old]}]}, models]
    assert main(["ps", "--api", node.url]) == 0
    new, former = capsys.readouterr().out.splitlines()[1].split("; ")
    assert "mini-3 44-63 (retiring) " in former
    assert "(" not in new


def test_short_names(node, models, capsys):
    node.answers = [models]
    assert main(["models", "--short-names", "--api", node.url]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "qwen3-8b    mlx-community/Qwen3-8B-4bit"


def test_the_json_is_the_nodes_own(node, models, status, capsys):
    node.answers = [models]
    assert main(["models", "--json", "--api", node.url]) == 0
    assert json.loads(capsys.readouterr().out) == models
    node.answers = [status]
    assert main(["ps", "--json", "--api", node.url]) == 0
    assert json.loads(capsys.readouterr().out) == status["models"]


def test_names_do_not_control_the_terminal(node, models, status, capsys):
    models["models"][0]["id"] = "evil\x1b[2Jname"
    node.answers = [models, status]
    assert main(["models", "--api", node.url]) == 0
    assert "\x1b" not in capsys.readouterr().out
