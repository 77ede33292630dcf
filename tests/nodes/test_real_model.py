"""A small model that people use: its text is stock mlx-lm's, whole and in pieces."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Cluster, Node, stock_texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUESTION = "What is the capital of France?"
PROMPTS = {QUESTION: 8, "What is 17 plus 25?": 8, "Write hello world in Python.": 8}

MESSAGES = [{"role": "user", "content": QUESTION}]
SILENT = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": QUESTION},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 16},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": QUESTION, "stream": False},
}
"""Requests that do not say how they are sampled, so that the preset of another node counts."""


def answers(node: Node, model: Path) -> dict[str, str]:
    def ask(content: str) -> str:
        return node.streamed(content, model=model.name, max_tokens=PROMPTS[content])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return dict(zip(PROMPTS, pool.map(ask, PROMPTS, timeout=240), strict=True))


def test_its_text_is_stock_text_on_three_two_and_one_nodes(cluster: Cluster, real_model: Path) -> None:
    stock = stock_texts(
        real_model, [(text, most, [{"role": "user", "content": text}]) for text, most in PROMPTS.items()]
    )
    assert "Paris" in stock[QUESTION]
    options = ("--model", str(real_model), "--stages", "3", "--context", "512")
    nodes = [cluster.launch(*options), cluster.launch(*options, "--sampling", f"{real_model.name}=temperature=0")]
    nodes = [node.started() for node in (*nodes, cluster.launch(*options))]
    for left in (3, 2, 1):
        (ring,) = cluster.ready(*nodes[:left], within=120)["models"][0]["rings"]
        assert len(ring["stages"]) == left
        assert answers(nodes[0], real_model) == stock
        if left == 3:
            for path, body in SILENT.items():
                answer = nodes[0].post(path, {"model": real_model.name, **body})
                assert stock[QUESTION] in answer.body.decode(), path
        nodes[left - 1].kill()
