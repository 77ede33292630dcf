"""A small model that people use: its text is stock mlx-lm's, whole and in pieces."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Cluster, Node, stock_texts

pytestmark = pytest.mark.slow

QUESTION = "What is the capital of France?"
PROMPTS = {QUESTION: 8, "What is 17 plus 25?": 8, "Write hello world in Python.": 8}


def answers(node: Node, model: Path) -> dict[str, str]:
    def ask(content: str) -> str:
        return node.streamed(content, model=model.name, max_tokens=PROMPTS[content])

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return dict(zip(PROMPTS, pool.map(ask, PROMPTS, timeout=90), strict=True))


def test_its_text_is_stock_text_on_three_two_and_one_nodes(cluster: Cluster, real_model: Path) -> None:
    stock = stock_texts(
        real_model, [(text, most, [{"role": "user", "content": text}]) for text, most in PROMPTS.items()]
    )
    assert "Paris" in stock[QUESTION]
    nodes = cluster.start(3, "--model", str(real_model), "--stages", "3", "--context", "512")
    for left in (3, 2, 1):
        (ring,) = cluster.ready(*nodes[:left])["models"][0]["rings"]
        assert len(ring["stages"]) == left
        assert answers(nodes[0], real_model) == stock
        nodes[left - 1].kill()
