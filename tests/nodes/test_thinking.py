"""A thinking budget with a random model that thinks: it never ends its thoughts by itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from node.text.thoughts import QWEN
from tests.conftest import MODEL, ROOT, Cluster
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

ADDED = ("<|im_start|>", "<think>", "</think>")
FIRST = 2048
"""The built-in model has so many tokens."""
BUDGET = 24
WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {"type": "object"}}}


def add_thinker(directory: Path) -> None:
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for index, text in enumerate(ADDED):
        tokenizer["added_tokens"].append({"id": FIRST + index, "content": text, **options, "special": index == 0})
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>\n")
    write_model(directory, CONFIGURATIONS["qwen3"] | {"model_type": "qwen3", "vocab_size": FIRST + 64})


def body(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    bias = {str(FIRST + index): -100 for index in (1, 2)}  # of itself it neither begins nor ends thoughts
    return {"model": "thinker", "messages": messages, "max_tokens": 160, "ignore_eos": True, "logit_bias": bias, **more}


def test_thoughts_end_at_their_budget_and_the_answer_goes_on_also_after_a_death(cluster: Cluster) -> None:
    models = cluster.directory / "models"
    add_thinker(models / "thinker")
    nodes = cluster.start(3, "--models-dir", str(models), "--model", "thinker", "--stages", "2")
    status = cluster.ready(*nodes, stages=2)
    ring = cluster.ring(status)
    gateway = next(node for node in nodes if node not in ring)
    plain = {"temperature": 1, "seed": 5, "max_thinking_tokens": BUDGET}
    answer = gateway.post("/v1/chat/completions", body(**plain))
    assert answer.status == 200, answer.body
    told, used = answer.json["choices"][0]["message"], answer.json["usage"]
    assert told["reasoning_content"].endswith(QWEN.strip())
    assert told["content"]
    thought = used["completion_tokens_details"]["reasoning_tokens"]
    assert BUDGET < thought < BUDGET + 60
    assert used["completion_tokens"] == 160
    for more in ({"n": 2}, {"tools": [WEATHER]}):
        choices = gateway.post("/v1/chat/completions", body(**plain, **more)).json["choices"]
        assert choices[0]["message"]["content"].startswith(told["content"][:40]) or "tools" in more
        for choice in choices:
            assert choice["message"]["reasoning_content"].endswith(QWEN.strip())
    free = gateway.post("/v1/chat/completions", body(temperature=1, seed=5)).json["choices"][0]["message"]
    assert not free["content"]
    assert free["reasoning_content"].startswith(told["reasoning_content"][:20])

    with gateway.stream(**body(**plain)) as events:
        for _ in range(10):
            next(iter(events))
        ring[-1].kill()
        events.rest()
    assert events.text == told["content"]
