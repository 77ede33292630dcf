"""A small model that people use, in float32 and in 4 bits: its text is stock mlx-lm's, whole and in pieces."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import ROOT, Cluster, Node, stock_texts
from tests.nodes.calls import DIALECTS, Called

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUESTION = "What is the capital of France?"
PROMPTS = {
    QUESTION: 8,
    "What is 17 plus 25?": 12,
    "How many days are in a week?": 9,
    "Name three primary colors.": 8,
    "Write hello world in Python.": 8,
    "Who wrote Romeo and Juliet?": 8,
}
"""Each with the maximum number of tokens of its answer."""
MESSAGES = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"enum": ["Berlin", "Paris", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["capital", "large"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "capital", "strict": True, "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "show_capital", "parameters": SCHEMA}}
FORECAST = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "kelvin"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
EXAMPLE = """
<|im_start|>user
What is the weather in Rome?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome"}}
</tool_call><|im_end|>
"""
"""Shows the model how it may call, and to write a call that the schema does not allow."""
TEMPLATE = (
    "{%- if tools %}{{- EXAMPLE }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for tool_call in message.tool_calls or [] %}{{- '<tool_call>' + tool_call.name }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{{- '<|im_start|>assistant\\n' }}"
).replace("EXAMPLE", json.dumps(EXAMPLE.lstrip()))
"""The model's own has no place for tools. Its vocabulary has no token for the mark of a call, which is five of them."""
SILENT = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": QUESTION},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 16},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": QUESTION, "stream": False},
}
"""Requests that do not say how they are sampled, so that the preset of another node counts."""


@pytest.fixture(scope="module", params=["f32", "4 bits"])
def real_model(request: pytest.FixtureRequest) -> Path:
    """The model's folder. .ci/run fetches it before the tests, so that there they do not skip."""
    bits = ["--quantized"] if request.param == "4 bits" else []
    command = [sys.executable, str(ROOT / "scripts" / "real_model.py"), *bits]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == os.EX_UNAVAILABLE:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def answers(node: Node, model: Path) -> dict[str, str]:
    """Text by prompt; and what an answer in a format and a demanded call hold, which no stock program makes."""

    def ask(content: str) -> str:
        return node.streamed(content, model=model.name, max_tokens=PROMPTS[content])

    def ask_format() -> Any:
        return json.loads(node.streamed(QUESTION, model=model.name, max_tokens=64, response_format=FORMAT))

    def ask_call() -> Any:
        (choice,) = node.chat(QUESTION, model=model.name, tools=[TOOL], tool_choice="required").json["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "show_capital"
        return json.loads(call["function"]["arguments"])

    with ThreadPoolExecutor(len(PROMPTS) + 2) as pool:
        texts = pool.map(ask, PROMPTS)
        for held in [pool.submit(ask_format), pool.submit(ask_call)]:
            jsonschema.validate(held.result(), SCHEMA)
        return dict(zip(PROMPTS, texts, strict=True))


def test_its_text_is_stock_text_on_three_two_and_one_nodes(cluster: Cluster, real_model: Path) -> None:
    stock = stock_texts(
        real_model, [(text, most, [{"role": "user", "content": text}]) for text, most in PROMPTS.items()]
    )
    assert "Paris" in stock[QUESTION]
    options = ("--model", str(real_model), "--stages", "3", "--context", "512")
    nodes = [cluster.launch(*options), cluster.launch(*options, "--sampling", f"{real_model.name}=temperature=0")]
    nodes = [node.started() for node in (*nodes, cluster.launch(*options))]
    for left in (3, 2, 1):
        cluster.ready(*nodes[:left], stages=left)
        assert answers(nodes[0], real_model) == stock
        if left == 3:
            for path, body in SILENT.items():
                answer = nodes[0].post(path, {"model": real_model.name, **body})
                assert stock[QUESTION] in answer.body.decode(), path
        nodes[left - 1].kill()


def test_calls_of_strict_tools_are_valid_though_the_model_would_write_others(
    cluster: Cluster, real_model: Path, tmp_path: Path
) -> None:
    if "4bit" not in real_model.name:
        pytest.skip("one size is enough")
    folder = tmp_path / "with-tools"
    shutil.copytree(real_model, folder, copy_function=os.link)
    settings = json.loads((real_model / "tokenizer_config.json").read_text()) | {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    nodes = cluster.start(2, "--model", str(folder), "--stages", "2", "--context", "512")
    cluster.ready(*nodes, stages=2)
    tool = {"name": "get_weather", "parameters": FORECAST}
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]

    def ask(seed: int) -> Called:
        more: Any = {"model": folder.name, "temperature": 1, "seed": seed}
        return DIALECTS[seed % len(DIALECTS)](nodes[0], messages, tool, **more)

    with ThreadPoolExecutor(2) as pool:
        calls = [call for calls in pool.map(ask, range(12)) for call in calls]
    assert len(calls) > 6
    for name, arguments in calls:
        assert name == "get_weather"
        jsonschema.validate(arguments, FORECAST)
