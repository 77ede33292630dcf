"""lm-evaluation-harness: scores by `local-completions`, answers by `local-chat-completions`, and a whole task."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

import lm_eval
from harness import HELLO, KNOWN, MODEL, URL, run
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

MODEL_FILES = os.environ["CLIENT_MODEL_FILES"]
"""Directory in which the harness finds the tokenizer."""
GIVEN = {"model": MODEL, "base_url": f"{URL}/completions", "tokenizer": MODEL_FILES, "tokenizer_backend": "huggingface"}

TASK = """
task: capitals
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
"""


def _requests(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def _model(**more: Any) -> Any:
    return get_model("local-completions")(**GIVEN, **more)


def _check_scores(model: Any) -> None:
    known = KNOWN["scores"]
    asked = [(score["context"], score["continuation"]) for score in known if score["context"]]
    scores = [score for score in known if score["context"]]
    answers = model.loglikelihood(_requests("loglikelihood", asked))
    for (total, is_greedy), score in zip(answers, scores, strict=True):
        start = len(score["before"])
        assert math.isfinite(total)
        assert abs(total - sum(score["logprobs"][start - 1 :])) < 1e-2, (total, score)
        assert is_greedy == all(score["greedy"][start - 1 :])


def loglikelihood_of_tokens() -> None:
    _check_scores(_model(batch_size=4))


def loglikelihood_at_once() -> None:
    _check_scores(_model(batch_size=1, num_concurrent=4))


def loglikelihood_of_texts() -> None:
    _check_scores(_model(tokenized_requests=False))


def loglikelihood_rolling() -> None:
    (total,) = _model().loglikelihood_rolling(
        _requests("loglikelihood_rolling", [("The capital of France is Paris.",)])
    )
    assert math.isfinite(total)
    assert total < 0


def generate_until() -> None:
    stop = {"until": ["\n", "5"], "max_gen_toks": 20}
    (text,) = _model().generate_until(_requests("generate_until", [("1, 2, 3,", stop)]))
    assert text
    assert "5" not in text


def chat() -> None:
    model = get_model("local-chat-completions")(model=MODEL, base_url=f"{URL}/chat/completions")
    prompt = model.apply_chat_template([{"role": "user", "content": "Hello"}])
    (text,) = model.generate_until(_requests("generate_until", [(prompt, {"until": ["###"], "max_gen_toks": 100})]))
    assert text == HELLO


def task() -> None:
    """Multiple choice, from a file to the accuracy."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "data.jsonl")
        rows = [
            {"question": "The capital of France is", "choices": [" Paris.", " a banana"]},
            {"question": "1, 2, 3, 4,", "choices": [" 5, 6", " 9, 2"]},
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        Path(directory, "capitals.yaml").write_text(TASK.format(data=data))
        results = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=GIVEN,
            tasks=["capitals"],
            task_manager=TaskManager(include_path=directory, include_defaults=False),
            bootstrap_iters=0,
        )
    assert results["results"]["capitals"]["acc,none"] == 1.0


if __name__ == "__main__":
    run(
        *(loglikelihood_of_tokens, loglikelihood_at_once, loglikelihood_of_texts, loglikelihood_rolling),
        *(generate_until, chat, task),
    )
