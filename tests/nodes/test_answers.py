"""One node, and three that split the model: the same text as stock mlx-lm, through any node's port."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import PROMPTS, Cluster, Node, running_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running_cluster(tmp_path_factory.mktemp("one")) as cluster:
        (node,) = cluster.start(1)
        yield node


def test_one_node_gives_stock_text(one: Node, stock: dict[str, str]) -> None:
    """No node preloads a model: the first request has it loaded."""
    assert one.streamed("Hello") == stock["Hello"]
    for content, max_tokens in PROMPTS.items():
        assert one.chat(content, max_tokens=max_tokens).text == stock[content]


def test_three_nodes_split_the_model(three: Cluster) -> None:
    status = three.ready(*three.nodes)
    (model,) = status["models"]
    (ring,) = model["rings"]
    stages = ring["stages"]
    assert [stage["start"] for stage in stages] == [0, *(stage["end"] for stage in stages[:-1])]
    assert stages[-1]["end"] == model["layers"] == 8
    assert {stage["node"] for stage in stages} == {node["id"] for node in status["nodes"]}
    assert ring["driver"] == stages[0]["node"]
    for node in status["nodes"]:
        (held,) = node["layers"]
        assert {"node": node["id"], "start": held["start"], "end": held["end"]} in stages
    for node in three.nodes:
        (megabytes,) = re.findall(r"loaded pippin-demo layers \d-\d: (\S+) MB", node.written)
        assert float(megabytes) < 5  # only a part: all weights take 7.0 MB


def test_three_nodes_give_stock_text_through_any_port(three: Cluster, stock: dict[str, str]) -> None:
    for node in three.nodes:
        assert node.chat("Hello").text == stock["Hello"]
        assert node.streamed("Hello") == stock["Hello"]


@pytest.mark.parametrize("content", PROMPTS)
def test_three_nodes_give_stock_text(three: Cluster, stock: dict[str, str], content: str) -> None:
    node = three.nodes[1]
    assert node.streamed(content, max_tokens=PROMPTS[content]) == stock[content]


def test_kv_in_eight_bits_gives_the_same_text_in_two_pieces_and_in_one(cluster: Cluster) -> None:
    nodes = cluster.start(2, "--kv-bits", "8", "--stages", "2")
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        asked = [
            (content, pool.submit(nodes[0].streamed, content, max_tokens=most)) for content, most in PROMPTS.items()
        ]
        split = {content: answer.result() for content, answer in asked}
    (ring,) = cluster.ready(*nodes)["models"][0]["rings"]
    assert len(ring["stages"]) == 2
    nodes[1].kill()
    for content, most in PROMPTS.items():
        assert nodes[0].streamed(content, max_tokens=most) == split[content]
