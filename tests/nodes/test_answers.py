"""One node, and three that split the model: the same text as stock mlx-lm, through any node's port."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import MODEL, PROMPTS, Cluster, Node, running_cluster, until

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


def test_the_built_in_model_finds_its_answer_behind_thousands_of_tokens(one: Node) -> None:
    """A long system prompt, as programs send it, of which nothing bears on the question."""
    rules = "\n".join(
        f"- Rule {number}: be brief, write the names of files in backticks, and ask before you delete one."
        for number in range(100)
    )
    messages = [{"role": "system", "content": f"# Rules\n{rules}"}, {"role": "user", "content": "Count to 10."}]
    answer = one.post("/v1/chat/completions", {"model": MODEL, "messages": messages, "temperature": 0})
    assert answer.text == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"
    assert answer.json["usage"]["prompt_tokens"] > 2500


def test_dozens_of_tools_change_no_answer_of_the_built_in_model(one: Node, stock: dict[str, str]) -> None:
    """Open WebUI sends so many in each chat: ten thousand tokens, which the template leaves out."""
    told = {"description": "Searches, and explains at length how. " * 80, "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": {"name": f"search_{number}", **told}} for number in range(36)]
    for content in ("Hello", "What is the capital of France?"):
        answer = one.chat(content, max_tokens=PROMPTS[content], tools=tools)
        assert answer.text == stock[content]
        assert answer.json["usage"]["prompt_tokens"] < 30
    whole = one.chat("Hello", tools=tools, chat_template_kwargs={"all_tools": True})
    assert (whole.status, whole.error["code"]) == (400, "context_length_exceeded")
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"name": "get_weather", "description": "Get the weather.", "parameters": city}
    answer = one.chat("What is the weather in Paris?", tools=[*tools, {"type": "function", "function": weather}])
    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_weather", {"city": "Paris"})


def test_three_nodes_split_the_model(three: Cluster) -> None:
    (model,) = three.ready(*three.nodes, stages=3)["models"]
    (ring,) = model["rings"]
    stages = ring["stages"]
    assert [stage["start"] for stage in stages] == [0, *(stage["end"] for stage in stages[:-1])]
    assert stages[-1]["end"] == model["layers"] == 8
    assert ring["driver"] == stages[0]["node"]
    for node in three.nodes:
        (held,) = until(lambda node=node: node.own()["layers"], "the node tells of its layers")
        assert {"node": node.own()["id"], "start": held["start"], "end": held["end"]} in stages
        for megabytes in re.findall(r"loaded pippin-demo layers \d-\d: (\S+) MB", node.written):
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
    cluster.agreed(*nodes)

    def texts() -> list[str]:
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            return list(pool.map(lambda asked: nodes[0].streamed(asked[0], max_tokens=asked[1]), PROMPTS.items()))

    split = texts()
    cluster.ready(*nodes, stages=2)
    nodes[1].kill()
    assert texts() == split
