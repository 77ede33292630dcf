#!/usr/bin/env python3
"""Compares the answers of a model over rings of real nodes with those of stock mlx-lm, byte for byte.

    scripts/compare.py                     # Gemma 3 270M, see scripts/gemma_model.py; rings of 1, 2 and 3
    scripts/compare.py FOLDER --rings 2

Each ring goes on with the texts of compare_prompts.toml, without sampling. It exits with 1 if any answer differs. Run it with
the project's own Python: .venv/bin/python scripts/compare.py.
"""

import argparse
import asyncio
import importlib
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

import gemma_model
import mlx.core as mx
import mlx_lm
import ring_nodes
import sse
from figures import numbers

PROMPTS = Path(__file__).with_name("compare_prompts.toml")
CONTEXT = 8192


def prompts() -> list[str]:
    given = tomllib.loads(PROMPTS.read_text())["prompt"]
    return [prompt["text"] * prompt.get("repeated", 1) for prompt in given]


def stock(folder: Path, texts: Sequence[str], tokens: int) -> list[tuple[list[int], str]]:
    """Tokens of each text, and what mlx-lm goes on with."""
    model, tokenizer = mlx_lm.load(str(folder))[:2]
    tokenizer = cast("Any", tokenizer)
    generate = importlib.import_module("mlx_lm.generate")  # `mlx_lm.generate` is a function of that name
    found = []
    for text in texts:
        prompt, answer = tokenizer.encode(text), list[int]()
        for token, _ in generate.generate_step(mx.array(prompt), model, max_tokens=tokens):
            if int(token) in tokenizer.eos_token_ids:
                break
            answer.append(int(token))
        found.append((prompt, whole_characters(tokenizer.decode(answer))))
    return found


async def differences(ring: ring_nodes.NodeRing, wanted: Sequence[tuple[list[int], str]], tokens: int) -> list[str]:
    """What differs from stock's answers, in a line each."""
    told = []
    async with sse.client(next(ring.keys)) as http:
        for number, (prompt, text) in enumerate(wanted):
            asked = {"model": ring.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            answer = await sse.whole(http, f"{ring.url}/completions", asked)
            got = whole_characters(answer["choices"][0]["text"])
            if got != text:
                told.append(f"prompt {number}: {got!r}, and not {text!r}")
    return told


def whole_characters(text: str) -> str:
    """Without the part of a character with which an answer may end."""
    return text.rstrip("\ufffd")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "model", nargs="?", type=Path, metavar="FOLDER", help="default: Gemma 3 270M, which is fetched once"
    )
    parser.add_argument("--rings", type=numbers, default=[1, 2, 3], metavar="N,N", help="default: 1,2,3")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of each answer (default: %(default)s)")
    options = parser.parse_args()
    folder = (options.model or gemma_model.gemma_model()).resolve()
    wanted = stock(folder, prompts(), options.tokens)
    failed = False
    for stages in options.rings:
        with (
            tempfile.TemporaryDirectory(prefix="pippin-compare-") as scratch,
            ring_nodes.running(stages, folder, Path(scratch), None, context=CONTEXT, pinned=False) as ring,
        ):
            told = asyncio.run(differences(ring, wanted, options.tokens))
        print(
            f"ring of {stages}: {len(wanted) - len(told)} of {len(wanted)} answers are stock's",
            *told,
            sep="\n",
            flush=True,
        )
        failed = failed or bool(told)
    sys.exit(failed)


if __name__ == "__main__":
    main()
