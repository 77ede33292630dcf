"""A model that no node has: each fetches the files of its own layers from the hub; the answer equals stock's."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hub import ID, demo_hub, of_hub, weights
from tests.conftest import BIN, Cluster, chat_body, until
from tests.model.conftest import FakeHub

pytestmark = pytest.mark.slow


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with demo_hub() as hub:
        hub.repos["someone/gated"] = {"config.json": b"{}"}
        hub.gated = {"someone/gated"}
        yield hub


def files_of(hub: FakeHub, start: int, end: int) -> set[str]:
    """Files with the layers; for the driver also files with tensors outside of the layers."""
    index = json.loads(hub.repos[ID]["model.safetensors.index.json"])["weight_map"]
    found = set()
    for tensor, file in index.items():
        layer = re.search(r"\.layers\.(\d+)\.", tensor)
        if start <= int(layer[1]) < end if layer else start == 0:
            found.add(file)
    return found


def test_two_nodes_fetch_what_they_need(cluster: Cluster, hub: FakeHub, stock: dict[str, str]) -> None:
    homes = [cluster.directory / f"home-{number}" for number in (1, 2)]
    launched = [cluster.launch("--stages", "2", environment=of_hub(hub, home)) for home in homes]
    nodes = [node.started() for node in launched]
    cluster.agreed(*nodes)
    for node in nodes:
        answer = node.post("/v1/chat/completions", chat_body("Hello", model=ID, max_tokens=64))
        assert answer.text == stock["Hello"]
        assert answer.json["model"] == ID
    status = nodes[0].status()
    for node, home in zip(nodes, homes, strict=True):
        (layers,) = next(each["layers"] for each in status["nodes"] if each["name"] == node.name)
        assert weights(home) == files_of(hub, layers["start"], layers["end"])

    gated = nodes[0].post("/v1/chat/completions", chat_body("Hello", model="someone/gated"))
    assert (gated.status, gated.error["code"]) == (403, "model_gated")
    with ThreadPoolExecutor(4) as pool:
        body = chat_body("Hello", model="someone/unknown")
        unknown = list(pool.map(lambda node: node.post("/v1/chat/completions", body), nodes * 2))
    assert {(answer.status, answer.error["code"]) for answer in unknown} == {(404, "model_not_found")}
    assert nodes[1].chat("Hello", model=ID, max_tokens=64).text == stock["Hello"]


def test_a_download_goes_on_after_kill_and_after_ctrl_c(cluster: Cluster, hub: FakeHub, stock: dict[str, str]) -> None:
    """Each time the rest of the file is fetched, and nothing twice."""
    home, (name, size) = cluster.directory / "home", largest(hub)
    parts = [size // 3, size // 3]
    for number, end in enumerate((signal.SIGKILL, signal.SIGINT)):
        hub.stalls[name] = parts[number]
        node = cluster.launch("--model", ID, environment=of_hub(hub, home)).started()
        came = sum(parts[: number + 1])
        until(lambda came=came: incomplete(home) == came, 60, f"{came} bytes of {name}")  # type: ignore[misc]
        node.signal(end)
        if end is signal.SIGKILL:
            node.kill()
        else:
            assert node.wait(10) == 0, "it does not wait for the hub"
    node = cluster.launch("--model", ID, environment=of_hub(hub, home)).started()
    assert node.post("/v1/chat/completions", chat_body("Hello", model=ID, max_tokens=64)).text == stock["Hello"]
    assert hub.begins(name) == [0, parts[0], sum(parts)]


def test_a_download_is_in_sight(cluster: Cluster, hub: FakeHub) -> None:
    """In the status, the log, the table, and the comments of a stream that waits."""
    name, size = largest(hub)
    total = sum(len(content) for file, content in hub.repos[ID].items() if file.endswith(".safetensors"))
    hub.stalls[name] = size // 2
    node = cluster.launch("--model", ID, environment=of_hub(hub, cluster.directory / "home")).started()

    def load() -> dict[str, Any]:
        (own,) = node.status()["nodes"]
        (load,) = own["loads"]
        return load

    until(lambda: 0 < (load()["done_bytes"] or 0) == fetched(cluster.directory / "home"), 30, "the download stalls")
    assert (load()["state"], load()["total_bytes"]) == ("fetching", total)
    share = f"{100 * load()['done_bytes'] / total:.0f} %"
    with node.request("POST", "/v1/chat/completions", chat_body("Hello", model=ID, stream=True)) as response:
        comment = response.readline().decode()  # after 10 s
    assert re.fullmatch(rf": n1 has fetched {share} of layers 0-7 of {ID}: [0-9.]+ of [0-9.]+ MB.*\n", comment), comment
    line = rf"fetching {ID} layers 0-7: {share}, [0-9.]+ of [0-9.]+ MB"
    until(lambda: re.search(line, node.written), 15, "a line every 10 s")
    table = subprocess.run([BIN / "cluster", "status", "--api", node.url], capture_output=True, text=True, check=False)
    assert re.search(rf"^n1 \*  loading .* {share}", table.stdout, re.MULTILINE), table.stdout


def fetched(home: Path) -> int:
    """Bytes of weights on the disk."""
    blobs = home.glob("hub/models--*/snapshots/*/*.safetensors")
    return incomplete(home) + sum(path.stat().st_size for path in blobs)


def largest(hub: FakeHub) -> tuple[str, int]:
    """Name and size of a weight file."""
    sizes = {name: len(content) for name, content in hub.repos[ID].items() if name.endswith(".safetensors")}
    name = max(sizes, key=lambda name: sizes[name])
    return name, sizes[name]


def incomplete(home: Path) -> int:
    """Bytes of files that are incomplete."""
    return sum(path.stat().st_size for path in home.glob("hub/models--*/blobs/*.incomplete"))
