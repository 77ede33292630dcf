"""A real node's answers to requests that it can't serve; and that it continues to serve others."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, chat_body, running_cluster, until

pytestmark = pytest.mark.slow

BUILTIN = ROOT / "node" / "builtin" / MODEL


def copy_of_model(target: Path) -> Path:
    shutil.copytree(BUILTIN, target)
    return target


def cut_short(directory: Path) -> Path:
    """Remove the last bytes of a weight file."""
    file = max(directory.glob("*.safetensors"))
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1000)
    return file


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model and damaged ones, for one of two nodes."""
    directory = tmp_path_factory.mktemp("models")
    copy_of_model(directory / "copy")
    cut_short(copy_of_model(directory / "short"))
    cut_short(copy_of_model(directory / "someone" / "short"))
    max(copy_of_model(directory / "garbled").glob("*.safetensors")).write_bytes(b"\xff" * 5000)
    (copy_of_model(directory / "alien") / "config.json").write_text('{"model_type": "alien", "num_hidden_layers": 8}')
    (copy_of_model(directory / "no-config") / "config.json").write_text("{")
    (copy_of_model(directory / "no-template") / "chat_template.jinja").write_bytes(b"\xff")
    (copy_of_model(directory / "no-tokenizer") / "tokenizer.json").write_text("[")
    return directory


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Cluster]:
    """Two nodes; only the first has the models' directory."""
    with running_cluster(tmp_path_factory.mktemp("pair")) as cluster:
        nodes = [cluster.launch("--stages", "2", "--models-dir", str(models)), cluster.launch("--stages", "2")]
        cluster.agreed(*[node.started() for node in nodes])
        yield cluster


@pytest.fixture(params=[0, 1], ids=["holder", "other"])
def node(request: pytest.FixtureRequest, pair: Cluster, stock: dict[str, str]) -> Iterator[Node]:
    """Each of the two; it must still serve after the test."""
    node = pair.nodes[request.param]
    yield node
    assert node.chat("Hello").text == stock["Hello"]


BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b'{"model": "pippin-demo", ', 400, "invalid_value"),
    "no object": (b"[]", 400, "invalid_value"),
    "no text": (b"\xff\xfe\x00", 400, "invalid_value"),
    "no messages": ({"model": MODEL}, 400, "invalid_value"),
    "messages of another type": (chat_body("x") | {"messages": "Hello"}, 400, "invalid_value"),
    "content of another type": (chat_body({"a": 1}), 400, "invalid_value"),
    "too hot": (chat_body("x", temperature="hot"), 400, "invalid_value"),
    "no tokens": (chat_body("x", max_tokens=-2), 400, "invalid_value"),
    "unknown model": (chat_body("x") | {"model": "nothing"}, 404, "model_not_found"),
    "too long": (chat_body("word " * 20_000), 400, "context_length_exceeded"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests(pair: Cluster, stock: dict[str, str], case: str) -> None:
    body, status, code = BAD[case]
    node = pair.nodes[0]
    for streamed in (False, True):
        sent = body | {"stream": streamed} if isinstance(body, dict) else body
        answer = node.post("/v1/chat/completions", sent)
        assert (answer.status, answer.error["code"]) == (status, code), answer.body
        assert answer.error["message"]
    assert node.chat("Hello").text == stock["Hello"]


@pytest.mark.parametrize("model", ["short", "garbled", "someone/short"])
def test_broken_files(node: Node, models: Path, model: str) -> None:
    file = max((models / model).glob("*.safetensors")).name
    answer = node.post("/v1/chat/completions", chat_body("Hello") | {"model": model})
    assert (answer.status, answer.error["code"]) == (500, "model_broken"), answer.body
    assert file in answer.error["message"]


@pytest.mark.parametrize(
    "model", ["short", "garbled", "someone/short", "alien", "no-config", "no-template", "no-tokenizer"]
)
def test_no_answer_tells_whose_mac_it_is(node: Node, models: Path, pair: Cluster, model: str) -> None:
    """Clients and peers are told a model's name, the log its path."""
    asked = {"model": model}
    answers = [node.post("/v1/chat/completions", chat_body("Hello") | asked), node.post("/api/show", asked)]
    answers += [node.delete("/api/delete", asked), node.get("/cluster/status")]
    bodies = [answer.body.decode() for answer in answers]
    assert [answer.status for answer in answers[:1]] != [200], bodies
    for secret in (str(models), str(pair.directory), str(Path.home() / ".")):
        assert secret == "/" or not any(secret in body for body in bodies), bodies


def test_unknown_architecture(node: Node) -> None:
    answer = node.post("/v1/chat/completions", chat_body("Hello") | {"model": "alien"})
    assert (answer.status, answer.error["code"]) == (400, "model_unsupported"), answer.body
    assert "alien" in answer.error["message"]


def ask_for_a_model_of_the_hub(node: Node) -> None:
    answer = node.post("/v1/chat/completions", chat_body("Hello") | {"model": "someone/something"})
    assert (answer.status, answer.error["code"]) == (503, "hub_unavailable"), answer.body
    assert answer.headers["Retry-After"]


def test_a_hub_that_may_not_be_asked(node: Node) -> None:
    ask_for_a_model_of_the_hub(node)


def test_a_model_that_only_one_node_has(pair: Cluster, stock: dict[str, str]) -> None:
    """The other node fetches its files from the first, because neither the hub nor its own disk has them."""
    first, second = pair.nodes
    for node in (second, first):
        answer = node.post("/v1/chat/completions", chat_body("Hello") | {"model": "copy"})
        assert answer.text == stock["Hello"]
    (model,) = [model for model in first.status()["models"] if model["id"] == "copy"]
    assert len(model["rings"][0]["stages"]) == 2
    fetched = pair.directory / second.name / "fetched"
    held = {file.name for file in fetched.glob("*/copy/*.safetensors")}
    assert held < {file.name for file in BUILTIN.glob("*.safetensors")}, "only the files of its layers"
    assert held


def test_neither_memory_nor_hub(cluster: Cluster) -> None:
    """Nothing listens on the hub's port, and no node has enough memory."""
    no_hub = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    node = cluster.launch("--memory", "1MB", "--model", MODEL, environment=no_hub).started()
    cluster.agreed(node)
    ask_for_a_model_of_the_hub(node)
    answer = node.chat("Hello")
    assert (answer.status, answer.error["code"]) == (503, "no_capacity"), answer.body
    assert node.name in answer.error["message"]
    assert "MB" in answer.error["message"]
    assert answer.headers["Retry-After"]
    status = until(lambda: (status := node.status())["state"] == "degraded" and status, "its status tells of it")
    (warning,) = [warning for warning in status["warnings"] if warning["code"] == "no-capacity"]
    assert warning["text"] in json.dumps(answer.error["message"], ensure_ascii=False)
    assert node.get("/health").status == 200
