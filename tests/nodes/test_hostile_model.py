"""Models of a hub whose files name files of the node's user, or code: a client learns nothing, and nothing runs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Answer, Node, running_cluster
from tests.model.conftest import FakeHub
from tests.nodes.hub import ID, demo_hub, of_hub

pytestmark = pytest.mark.slow

Files = dict[str, bytes]
FIRST, SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjE"
WORDS = [FIRST, "one", "two", "three"]


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def settings(secret: Path) -> dict[str, Any]:
    """Settings that name the secret in each way that a class of transformers knows."""
    names = ("vocab", "vocab_file", "merges", "merges_file", "tokenizer_file", "name_or_path")
    return {"tokenizer_class": "BertTokenizer", "unk_token": FIRST, **dict.fromkeys(names, str(secret))}


def without_a_vocabulary(files: Files, secret: Path, marker: Path) -> None:
    del files["tokenizer.json"]
    files["tokenizer_config.json"] = as_json(settings(secret))


def with_its_own(files: Files, secret: Path, marker: Path) -> None:
    without_a_vocabulary(files, secret, marker)
    files["special_tokens_map.json"] = files["tokenizer_config.json"]
    files["vocab.txt"] = "\n".join(WORDS).encode()


def with_a_path_as_vocabulary(files: Files, secret: Path, marker: Path) -> None:
    options = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    model = {"type": "WordPiece", "vocab": str(secret), "unk_token": FIRST, **options}
    files["tokenizer.json"] = as_json({"version": "1.0", "added_tokens": [], "model": model})
    files["tokenizer_config.json"] = as_json({"tokenizer_class": "BertTokenizer", "unk_token": FIRST})


def with_code_of_its_own(files: Files, secret: Path, marker: Path) -> None:
    code = f"open({str(marker)!r}, 'w')".encode()
    files |= dict.fromkeys(("evil.py", "tokenization_evil.py", "modeling_evil.py", "configuration_evil.py"), code)
    auto = {
        "AutoConfig": "evil.Config",
        "AutoTokenizer": ["evil.Slow", "evil.Fast"],
        "AutoModelForCausalLM": "evil.Model",
    }
    for name in ("config.json", "tokenizer_config.json"):
        files[name] = as_json(json.loads(files[name]) | {"auto_map": auto, "trust_remote_code": True})


def with_a_model_of_its_own(files: Files, secret: Path, marker: Path) -> None:
    with_code_of_its_own(files, secret, marker)
    files["config.json"] = as_json(json.loads(files["config.json"]) | {"model_file": "evil.py"})


Make = Callable[[Files, Path, Path], None]
MODELS: dict[str, tuple[Make, int, str]] = {
    "none": (without_a_vocabulary, 500, "has no tokenizer: there is none of tokenizer.json"),
    "own": (with_its_own, 200, ""),
    "path": (with_a_path_as_vocabulary, 500, "tokenizer.json or vocab.json has no list of tokens"),
    "code": (with_code_of_its_own, 200, ""),
    "model": (with_a_model_of_its_own, 400, "code of its own"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a hub that has each of the models."""
    with demo_hub() as hub, running_cluster(tmp_path_factory.mktemp("hostile")) as cluster:
        (cluster.directory / "secret").write_text(f"{FIRST}\n{SECRET}\n")
        _add_models(hub, cluster.directory)
        node = cluster.launch(environment=of_hub(hub, cluster.directory / "home")).started()
        yield node
        assert not (cluster.directory / "code has run").exists()
        assert SECRET not in node.written


def _add_models(hub: FakeHub, directory: Path) -> None:
    for name, (make, _, _) in MODELS.items():
        hub.repos[f"someone/{name}"] = files = dict(hub.repos[ID])
        make(files, directory / "secret", directory / "code has run")


@pytest.mark.parametrize("name", MODELS)
def test_no_client_reads_a_file_of_the_nodes_user(node: Node, name: str) -> None:
    _, status, reason = MODELS[name]
    model = f"someone/{name}"
    answers: list[Answer] = [
        node.post("/v1/detokenize", {"model": model, "tokens": [0, 1, 2, 3]}),
        node.post("/v1/tokenize", {"model": model, "prompt": f"{FIRST} one {SECRET}"}),
        node.post("/v1/completions", {"model": model, "prompt": "one", "max_tokens": 3, "logprobs": 5}),
    ]
    for answer in answers:
        assert SECRET not in answer.body.decode()
    assert answers[0].status == status, answers[0].body
    if reason:
        assert reason in answers[0].error["message"]
    if name == "own":
        assert "one two three" in answers[0].json["prompt"]
