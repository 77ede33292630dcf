"""Prints results of stock mlx-lm for the built-in model as JSON: texts, log-probabilities, hidden states."""

import json
import os
import sys
from typing import Any

import mlx.core as mx
import mlx_lm

from node.engine.device import choose_device

PROMPTS = ("Hello", "Count from 1 to 20", "What is the capital of France?")
SCORED = (
    ("Hello", " there"),
    ("The capital of France is", " Paris."),
    ("The capital of France is", " a banana"),
    ("1, 2, 3, 4", ", 5, 6"),
    ("", "Once upon a time"),
)
"""Contexts and continuations."""


def main(directory: str) -> None:
    model, tokenizer, *_ = mlx_lm.load(directory)
    texts = {}
    for content in PROMPTS:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        texts[content] = mlx_lm.generate(model, tokenizer, prompt, max_tokens=200)
    scores = []
    for context, continuation in SCORED:
        before = tokenizer.encode(context, add_special_tokens=False)
        whole = tokenizer.encode(context + continuation, add_special_tokens=False)
        scores.append({"context": context, "continuation": continuation, **_scored(model, before, whole)})
    json.dump({"texts": texts, "scores": scores}, sys.stdout)


def _scored(model: Any, before: list[int], whole: list[int]) -> dict[str, Any]:
    """Return the log-probabilities of all tokens but the first, and whether each is the most likely one."""
    logits = model(mx.array(whole)[None])[0].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    each = [logprobs[place, token].item() for place, token in enumerate(whole[1:])]
    greedy = [mx.argmax(logprobs[place]).item() == token for place, token in enumerate(whole[1:])]
    return {"before": before, "whole": whole, "logprobs": each, "greedy": greedy}


if __name__ == "__main__":
    choose_device(os.environ.get("PIPPIN_DEVICE", ""))
    main(sys.argv[1])
