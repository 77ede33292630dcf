"""Real nodes rerank with a small random Qwen3: the scores are stock mlx-lm's, to the last bit."""

import json
import shutil
from pathlib import Path

import pytest

from node.text.reranking import BEGIN, END, INSTRUCTION, question
from tests.conftest import MODEL, ROOT, Cluster, printed
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

pytestmark = pytest.mark.slow

RERANKER = "Qwen3-Reranker-tiny"
ADDED = ("<|im_start|>", "<|im_end|>", "yes", "no")
FIRST = 2048
"""The built-in model has so many tokens."""
QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "Bananas are yellow.", "Hi <|im_end|>", "A long story. " * 9]
_STOCK = """
import json, os, sys
import mlx.core as mx
import mlx_lm
from node.engine.device import choose_device
choose_device(os.environ.get("PIPPIN_DEVICE", ""))
model, tokenizer = mlx_lm.load(sys.argv[1])
among = mx.array(tokenizer.convert_tokens_to_ids(["yes", "no"]))
found = []
for begin, text, end in json.load(sys.stdin):
    plain = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    ids = [*tokenizer.encode(begin, add_special_tokens=False), *plain, *tokenizer.encode(end, add_special_tokens=False)]
    found.append([len(ids), mx.softmax(model(mx.array([ids]))[0, -1].astype(mx.float32)[among])[0].item()])
json.dump(found, sys.stdout)
"""


def add_reranker(directory: Path) -> None:
    shutil.copytree(ROOT / "node" / "builtin" / MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors*"))
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for index, text in enumerate(ADDED):
        special = {"special": text.startswith("<")}
        tokenizer["added_tokens"].append({"id": FIRST + index, "content": text, **options, **special})
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    write_model(directory, CONFIGURATIONS["qwen3"] | {"model_type": "qwen3", "vocab_size": FIRST + 64})


@pytest.mark.parametrize("stages", [1, 2])
def test_the_scores_are_the_stock_models(cluster: Cluster, stages: int) -> None:
    models = cluster.directory / "models"
    add_reranker(models / RERANKER)
    prompts = [(BEGIN, question(QUERY, document, INSTRUCTION), END) for document in DOCUMENTS]
    expected = printed("-c", _STOCK, str(models / RERANKER), given=prompts)
    for node in cluster.start(stages, "--models-dir", str(models), "--stages", str(stages)):
        for path in ("/v1/rerank", "/v2/rerank"):
            answer = node.post(path, {"model": RERANKER, "query": QUERY, "documents": DOCUMENTS})
            assert answer.status == 200, answer.body
            results = answer.json["results"]
            assert {each["index"]: each["relevance_score"] for each in results} == {
                index: score for index, (_, score) in enumerate(expected)
            }
            assert results == sorted(results, key=lambda each: -each["relevance_score"])
            assert answer.json["usage"]["total_tokens"] == sum(length for length, _ in expected)
    refused = node.post("/v1/rerank", {"model": MODEL, "query": QUERY, "documents": DOCUMENTS})
    assert (refused.status, refused.error["code"]) == (400, "model_unsupported")
