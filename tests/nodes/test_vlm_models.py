"""A model whose class is mlx-vlm's, on a node alone and in a ring of two: the text is that of mlx-vlm's whole model."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from transformers import AutoTokenizer

from node.model.config import read_config
from tests.conftest import Cluster
from tests.engine.vlm import WholeText, make_model

pytestmark = pytest.mark.slow

TOKENS = 40
QUESTION = "Tell me a story of some length. " * 8


def expected(directory: Path) -> str:
    """Greedily."""
    whole, hf = WholeText(directory), AutoTokenizer.from_pretrained(directory)
    chat = [{"role": "user", "content": QUESTION}]
    tokens = hf.encode(
        hf.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), add_special_tokens=False
    )
    cache, end, found = whole.make_cache(), read_config(directory)["eos_token_id"], list[int]()
    logits = whole(mx.array([tokens]), cache)
    while len(found) < TOKENS and (token := int(logits[0, -1].argmax())) != end:
        found.append(token)
        logits = whole(mx.array([[token]]), cache)
    return str(hf.decode(found, skip_special_tokens=True))


@pytest.mark.parametrize("stages", [1, 2])
def test_the_text_is_that_of_mlx_vlm(stages: int, cluster: Cluster, tmp_path: Path) -> None:
    model = make_model("tiny-deepseek-v4", tmp_path / "models" / "tiny-deepseek-v4")
    options = ("--models-dir", str(model.parent), "--model", model.name, "--stages", str(stages))
    nodes = cluster.start(stages, *options)
    cluster.ready(*nodes, stages=stages)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": TOKENS}
    answers = [node.post("/v1/chat/completions", {"model": model.name, **body}) for node in (*nodes, nodes[0])]
    assert [answer.status for answer in answers] == [200] * len(answers), answers[0].text
    texts = {answer.json["choices"][0]["message"]["content"] for answer in answers}
    assert texts == {expected(model)}
