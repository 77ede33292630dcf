"""Runs stock mlx-lm on the requests that it reads from stdin; see processes.Child. Its argument is the model."""

import importlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache
from mlx_lm.utils import load_model

generate = importlib.import_module("mlx_lm.generate")  # `mlx_lm.generate` is a function of that name


def single(model: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return `first`, seconds to the first token, `rest`, seconds from there to the last, and the `tokens`."""
    begin = time.perf_counter()
    steps = generate.generate_step(mx.array(prompt), model, max_tokens=tokens)
    stamped = [(time.perf_counter(), int(token)) for token, _ in steps]
    mx.synchronize()
    stamps, found = zip(*stamped, strict=True)
    return {"first": stamps[0] - begin, "rest": stamps[-1] - stamps[0], "tokens": found}


def answer(model: Any, ends: set[int], prompt: list[int], tokens: int) -> dict[str, Any]:
    """Return the `tokens` of an answer that ends as the model ends it, without its last one, and `rest`, seconds from the
    first token to the last.
    """
    stamped: list[tuple[float, int]] = []
    for token, _ in generate.generate_step(mx.array(prompt), model, max_tokens=tokens):
        stamped.append((time.perf_counter(), int(token)))
        if stamped[-1][1] in ends:
            break
    found = [token for _, token in stamped if token not in ends]
    return {"rest": stamped[-1][0] - stamped[0][0], "tokens": found}


def decode(model: Any, kept: dict[str, Any], prompt: list[int], tokens: int) -> dict[str, float]:
    """Return `rest`, seconds from the first token to the last. `kept`: KV of the last prompt, which is used again."""
    if kept.get("prompt") != prompt:
        kept |= {"prompt": prompt, "cache": make_prompt_cache(model)}
        cache = kept["cache"]
        list(generate.generate_step(mx.array(prompt), model, max_tokens=1, prompt_cache=cache))
    cache = kept["cache"]
    trim_prompt_cache(cache, cache[0].offset - len(prompt) + 1)
    steps = generate.generate_step(mx.array(prompt[-1:]), model, max_tokens=tokens, prompt_cache=cache)
    stamps = [time.perf_counter() for _ in steps]
    mx.synchronize()
    return {"rest": stamps[-1] - stamps[0]}


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
    model, config = load_model(Path(sys.argv[1]))
    end = config.get("eos_token_id", ())
    ends = set(end if isinstance(end, list | tuple) else [end])
    kept: dict[str, Any] = {}
    work: dict[str, Callable[..., dict[str, Any]]] = {
        "single": single,
        "answer": partial(answer, ends=ends),
        "decode": partial(decode, kept=kept),
        "batch": batch,
    }
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(work[question.pop("do")](model, **question)), flush=True)


if __name__ == "__main__":
    main()
