"""A model that no node has: each gets the files of its own layers, which leave the hub once; the answer equals stock's."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from node.model.hub import Hub
from tests.conftest import PATIENCE_S, Cluster, Node, chat_body, until
from tests.model.conftest import FakeHub
from tests.nodes.hub import ID, demo_hub, of_hub, weights

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
    for node, home in zip(nodes, homes, strict=True):
        (layers,) = until(lambda node=node: node.own()["layers"], "the node tells of its layers")
        fetched = (cluster.directory / node.name / "fetched").rglob("*.safetensors")
        assert weights(home) | {path.name for path in fetched} == files_of(hub, layers["start"], layers["end"])
    assert sorted(hub.fetched()) == sorted(name for name in hub.repos[ID] if name.endswith(".safetensors"))

    gated = nodes[0].post("/v1/chat/completions", chat_body("Hello", model="someone/gated"))
    assert (gated.status, gated.error["code"]) == (403, "model_gated")
    with ThreadPoolExecutor(4) as pool:
        body = chat_body("Hello", model="someone/unknown")
        unknown = list(pool.map(lambda node: node.post("/v1/chat/completions", body), nodes * 2))
    assert {(answer.status, answer.error["code"]) for answer in unknown} == {(404, "model_not_found")}
    assert nodes[1].chat("Hello", model=ID, max_tokens=64).text == stock["Hello"]


UNREACHABLE = "http://127.0.0.1:9"


def pull(node: Node) -> subprocess.Popen[bytes]:
    return subprocess.Popen(node.command_line("pull", ID), stdout=subprocess.DEVNULL)


def test_files_leave_the_hub_once_and_a_node_without_internet_serves(
    cluster: Cluster, hub: FakeHub, stock: dict[str, str]
) -> None:
    hub.repos[ID] |= {"LICENSE": b"Do as you like.\n", "NOTICE.txt": b"By us.", "license_check.py": b"exit()"}
    homes = [cluster.directory / f"home-{number}" for number in (1, 2, 3)]
    launched = [cluster.launch("--max-rings", "1", environment=of_hub(hub, home)) for home in homes[:2]]
    one, two = (node.started() for node in launched)
    cluster.agreed(one, two)
    pulls = [pull(node) for node in (one, two)]
    assert [each.wait(PATIENCE_S) for each in pulls] == [0, 0]
    files = {name: content for name, content in hub.repos[ID].items() if name.endswith(".safetensors")}
    assert sorted(hub.fetched()) == sorted(files)

    requests = len(hub.log)
    offline = {**of_hub(hub, homes[2]), "HF_ENDPOINT": UNREACHABLE}
    three = cluster.launch("--model", ID, environment=offline, name="n3").started()
    cluster.agreed(one, two, three)
    with pull(three) as pulling:
        assert pulling.wait(PATIENCE_S) == 0
    one.kill()
    two.kill()
    cluster.agreed(three)
    answer = three.post("/v1/chat/completions", chat_body("Hello", model=ID, max_tokens=64))
    assert answer.text == stock["Hello"]
    assert three.post("/api/show", {"model": ID}).json["license"] == "Do as you like.\n\nBy us."
    assert len(hub.log) == requests
    assert not any("license_check" in entry for entry in hub.log)


def test_a_peer_and_the_receiver_are_killed_half_way_and_nothing_comes_twice(cluster: Cluster, hub: FakeHub) -> None:
    gate, first = cluster.directory / "gate", 1 << 20
    asked = {name: cluster.directory / f"asked-{name}" for name in ("n1", "n2")}
    for name, log in asked.items():
        log.touch()
        cache = Hub(endpoint=hub.url, cache_dir=cluster.directory / name / "home" / "hub")
        for file in cache.metadata(ID).weights.sizes:
            cache.fetch(ID, file)
    nodes = []
    for name, log in asked.items():
        offline = {**of_hub(hub, cluster.directory / name / "home"), "HF_ENDPOINT": UNREACHABLE}
        program = (sys.executable, "-m", "tests.nodes.slow_disk", str(gate), str(log))
        nodes.append(cluster.launch(name=name, program=program, environment=offline))
    one, two = (node.started() for node in nodes)
    three = cluster.launch(name="n3", environment=offline | {"HF_HOME": str(cluster.directory / "n3-home")}).started()
    cluster.agreed(one, two, three)

    def here() -> list[Path]:
        return list((cluster.directory / "n3" / "fetched").rglob("*.safetensors.incomplete"))

    def spans(node: Node) -> list[tuple[str, int]]:
        lines = asked[node.name].read_text().splitlines()
        return [(name, int(offset)) for name, offset in (line.split() for line in lines)]

    with pull(three) as pulling:
        until(lambda: [path.stat().st_size for path in here() if path.stat().st_size] == [first] * 2, "two parts")
        (x, at_x), (y, at_y) = *spans(one), *spans(two)
        assert x != y, "from two at once"
        assert at_x == at_y == 0
        one.kill()
        until(lambda: re.search("could not be fetched from", three.written), "the other peer's death is noticed")
        three.kill()
        pulling.wait(PATIENCE_S)
    three = cluster.launch(name="n3", environment=offline | {"HF_HOME": str(cluster.directory / "n3-home")}).started()
    cluster.agreed(two, three)
    with pull(three) as pulling:
        until(lambda: len(spans(two)) > 1, "the next part")
        gate.touch()
        assert pulling.wait(PATIENCE_S) == 0
    (z,) = {name for name in hub.repos[ID] if name.endswith(".safetensors")} - {x, y}
    assert sorted(spans(two)[1:]) == sorted([(x, first), (y, first), (z, 0)])
    (folder,) = (cluster.directory / "n3" / "fetched").glob("*/someone/demo")
    assert {name: (folder / name).read_bytes() for name in (x, y, z)} == {
        name: hub.repos[ID][name] for name in (x, y, z)
    }


def test_a_download_goes_on_after_kill_and_after_ctrl_c(cluster: Cluster, hub: FakeHub, stock: dict[str, str]) -> None:
    """Each time the rest of the file is fetched, and nothing twice."""
    home, (name, size) = cluster.directory / "home", largest(hub)
    parts = [size // 3, size // 3]
    for number, end in enumerate((signal.SIGKILL, signal.SIGINT)):
        hub.stalls[name] = parts[number]
        node = cluster.launch("--model", ID, environment=of_hub(hub, home)).started()
        came = sum(parts[: number + 1])
        until(lambda came=came: incomplete(home) == came, f"{came} bytes of {name}")  # type: ignore[misc]
        node.signal(end)
        if end is signal.SIGKILL:
            node.kill()
        else:
            assert node.wait() == 0, "it does not wait for the hub"
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

    home = cluster.directory / "home"
    until(lambda: incomplete(home) == size // 2 and load()["done_bytes"] == fetched(home), "the download stalls")
    hub.silent.add(ID)  # however long it takes until all have looked: the node asks again after 10 s
    assert (load()["state"], load()["total_bytes"]) == ("fetching", total)
    share = f"{100 * load()['done_bytes'] / total:.0f} %"
    with node.request("POST", "/v1/chat/completions", chat_body("Hello", model=ID, stream=True)) as response:
        comment = response.readline().decode()  # after 10 s
    assert re.fullmatch(rf": n1 has fetched {share} of layers 0-7 of {ID}: [0-9.]+ of [0-9.]+ MB.*\n", comment), comment
    line = rf"fetching {ID} layers 0-7: {share}, [0-9.]+ of [0-9.]+ MB"
    until(lambda: re.search(line, node.written), "a line every 10 s")
    table = node.command("status")
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
