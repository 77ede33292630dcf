"""Runs stock mlx-lm on the requests that it reads from stdin; see processes.Child. Its argument is the model."""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import load_model

generate = importlib.import_module("mlx_lm.generate")  # `mlx_lm.generate` is a function of that name


def single(model: Any, prompt: list[int], tokens: int) -> dict[str, float]:
    """Return `first`, seconds to the first token, and `rest`, seconds from there to the last."""
    begin = time.perf_counter()
    stamps = [time.perf_counter() for _ in generate.generate_step(mx.array(prompt), model, max_tokens=tokens)]
    mx.synchronize()
    return {"first": stamps[0] - begin, "rest": stamps[-1] - stamps[0]}


def batch(model: Any, prompts: list[list[int]], tokens: int) -> dict[str, float]:
    """Return the seconds for all prompts at once."""
    begin = time.perf_counter()
    generator = generate.BatchGenerator(model, max_tokens=tokens, completion_batch_size=len(prompts))
    generator.insert(prompts)
    left = len(prompts)
    while left:
        left -= sum(response.finish_reason is not None for response in generator.next_generated())
    seconds = time.perf_counter() - begin
    generator.close()
    mx.clear_cache()
    return {"seconds": seconds}


def main() -> None:
    model, _ = load_model(Path(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        work = single if question.pop("do") == "single" else batch
        print(json.dumps(work(model, **question)), flush=True)


if __name__ == "__main__":
    main()
