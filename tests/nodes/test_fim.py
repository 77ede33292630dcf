"""A node fills in the middle with a model whose tokenizer has the marks for it."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, Cluster
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

MARKS = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>")
FIRST = 2048
"""The built-in model has so many tokens."""


def add_model(directory: Path) -> None:
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer["added_tokens"] += [{"id": FIRST + index, "content": mark, **options} for index, mark in enumerate(MARKS)]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    write_model(directory, CONFIGURATIONS["llama"] | {"vocab_size": FIRST + 64})


def test_a_suffix_is_the_same_as_its_marks_written_out(cluster: Cluster) -> None:
    add_model(cluster.directory / "models" / "coder")
    for node in cluster.start(2, "--models-dir", str(cluster.directory / "models")):
        body = {"model": "coder", "temperature": 0, "max_tokens": 8}
        filled = node.post("/v1/completions", {**body, "prompt": "def f(", "suffix": "):\n    pass\n"})
        text = "<|fim_prefix|>def f(<|fim_suffix|>):\n    pass\n<|fim_middle|>"
        written = node.post("/v1/completions", {**body, "prompt": text})
        assert filled.status == written.status == 200, filled.body
        assert filled.json["choices"] == written.json["choices"]
        assert filled.json["usage"]["prompt_tokens"] == written.json["usage"]["prompt_tokens"]
        ended = {**body, "prompt": "a", "suffix": "b", "logit_bias": {str(FIRST + 3): 100}}
        (choice,) = node.post("/v1/completions", ended).json["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        options = {"temperature": 0, "num_predict": 8}
        asked = {"model": "coder", "prompt": "def f(", "suffix": "):\n    pass\n", "stream": False, "options": options}
        assert node.post("/api/generate", asked).json["response"] == filled.json["choices"][0]["text"]
        assert "insert" in node.post("/api/show", {"model": "coder"}).json["capabilities"]
        refused = node.post("/v1/completions", {"model": MODEL, "prompt": "a", "suffix": "b"})
        assert refused.error["param"] == "suffix"
