"""Two nodes have different commits of one model: its ring and all gateways use one of them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, Cluster, Node, chat_body

pytestmark = pytest.mark.slow

ID = "someone/demo"
COMMITS = ["a" * 40, "b" * 40]


def snapshot(home: Path, commit: str) -> Path:
    """The built-in model as a commit of the hub's cache."""
    repository = home / "hub" / "models--someone--demo"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    directory = repository / "snapshots" / commit
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory)
    return directory


def change(directory: Path) -> None:
    """Change weights in the first and in the last layer, and the template; shapes stay."""
    for path in sorted(directory.glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        by_layer = [name for name in header if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight"))]
        for gate in [name for name in by_layer if "gate_proj" in name]:
            up = gate.replace("gate_proj", "up_proj")
            if up in header:
                header[gate], header[up] = header[up], header[gate]
        text = json.dumps(header, separators=(",", ":")).encode()
        path.write_bytes(raw[:8] + text.ljust(length) + raw[8 + length :])
        assert len(text) <= length
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_start|>", "<|im_start|> "))


def ask(node: Node) -> str:
    body = chat_body("Hello", model=ID, max_tokens=48, ignore_eos=True)
    return node.post("/v1/chat/completions", body).text


def test_nodes_with_different_snapshots_serve_one_of_them(cluster: Cluster) -> None:
    homes = [cluster.directory / f"home-{number}" for number in (1, 2)]
    first, second = (snapshot(home, commit) for home, commit in zip(homes, COMMITS, strict=True))
    change(second)
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()

    alone = {}
    for home, commit in zip(homes, COMMITS, strict=True):
        node = cluster.launch("--model", ID, "--no-mdns", environment={"HF_HOME": str(home)}).started()
        alone[commit] = ask(node)
        node.end()
    assert alone[COMMITS[0]] != alone[COMMITS[1]]

    launched = [cluster.launch("--stages", "2", environment={"HF_HOME": str(home)}) for home in homes]
    nodes = [node.started() for node in launched]
    cluster.agreed(*nodes)
    answers = [ask(node) for node in nodes]
    assert answers[0] == answers[1]
    (served,) = [commit for commit, answer in alone.items() if answer == answers[0]]
    fetched = [cluster.directory / node.name / "fetched" for node in nodes]
    assert [path.name for each in fetched for path in each.glob("*")] == [served], "one node took it from the other"
