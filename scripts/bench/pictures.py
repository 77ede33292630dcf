"""Prompts with a picture, of one node over HTTP, against mlx-vlm's whole model: same machine, same model, all cores for each.

The time to the first token after a picture and a question; no picture comes twice. Runs come in pairs, mlx-vlm then node.
Both sides decode the file, mlx-vlm's in its own process.

And the longest gap of a running stream while such a prompt comes, beside that while a text of about as many tokens
comes, which no tower sees.
"""

import argparse
import asyncio
import base64
import contextlib
import io
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import prompts
import ring_nodes
import sse
from figures import Row, median, report
from PIL import Image
from processes import Child
from ring import MODELS
from ring_nodes import NodeRing
from ring_parts import Side, interleave
from sse import Answer, Json

HELP = "prompts with a picture against mlx-vlm: time to the first token, and the stall of a running stream"
QUICK = {"preset": "tiny-mistral3", "side": 64, "pairs": 1, "stalls": 1}
TOKENS_A_WORD = 1.3
NOTES = (
    "ratio     mlx-vlm's time / the node's, the median of the pairs'; least and most of them show how noisy the machine was",
    "stall ms  longest gap of a running stream while the prompt is computed, the median of the runs'",
    "usual ms  median gap of the stream",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="25m-mistral3", help="of scripts/make_model.py (default: %(default)s)")
    add("--side", type=int, default=448, metavar="PX", help="of the square pictures (default: %(default)s)")
    add("--pairs", type=int, default=7, metavar="N", help="counted pairs of runs (default: %(default)s)")
    add(
        "--stalls",
        type=int,
        default=11,
        metavar="N",
        help="prompts of each kind that come to a running stream, in turn (default: %(default)s)",
    )
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for both sides (LD_PRELOAD, one thread)")
    add("--quick", action="store_true", help="one short pair: a check; figures mean nothing")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="of generated models (default: %(default)s)")


def run(options: argparse.Namespace) -> list[Row]:
    if options.quick:
        vars(options).update(QUICK)
    model = ring_nodes.make_model(options.preset, options.models_dir)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        environment = processes.environment(options.preload)
        stock = stack.enter_context(Child("pictures_child.py", str(model), env=environment))
        stock.answer()
        node = stack.enter_context(ring_nodes.running(1, model, scratch, options.preload, pinned=False))
        rows = [_first_token(stock, node, options), *_stalls(node, options)]
    report("Prompts with a picture", rows, NOTES)
    return rows


def _picture(side: int) -> str:
    """The file of a new picture of noise, in base64."""
    file = io.BytesIO()
    Image.frombytes("RGB", (side, side), random.randbytes(3 * side * side)).save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode()


def _first_token(stock: Child, node: NodeRing, options: argparse.Namespace) -> Row:
    prompt_tokens = asyncio.run(_chat(node, _asked(options.side), 1)).prompt_tokens

    def alone() -> float:
        seconds: float = stock.ask(picture=_picture(options.side), tokens=prompt_tokens)["first"]
        return 1 / seconds

    def served() -> float:
        answer = asyncio.run(_chat(node, _asked(options.side), 1))
        return 1 / answer.ttft

    pairs = interleave(options.pairs, Side(alone, [stock.process.pid]), Side(served, node.pids))
    row = pairs.row("first token", f"{options.side} x {options.side}")
    return {
        **{name: row[name] for name in ("part", "case", "pairs", "least", "most", "cpu", "ratio")},
        "tokens": prompt_tokens,
        "mlx-vlm s": 1 / float(row["stock tok/s"]),
        "node s": 1 / float(row["ring tok/s"]),
    }


def _stalls(node: NodeRing, options: argparse.Namespace) -> Iterator[Row]:
    prompt_tokens = asyncio.run(_chat(node, _asked(options.side), 1)).prompt_tokens
    words = round(prompt_tokens / TOKENS_A_WORD)
    letters = asyncio.run(_letters(node))
    cases: dict[str, Callable[[], object]] = {
        "a picture": lambda: _asked(options.side),
        "a text": lambda: prompts.text(words),
    }
    runs: dict[str, list[tuple[int, float, float]]] = {case: [] for case in cases}
    for _ in range(options.stalls):
        for case, made in cases.items():
            runs[case].append(asyncio.run(_stall(node, made(), letters)))
    for case, found in runs.items():
        yield {
            "part": "stall",
            "case": f"{case} comes",
            "tokens": median([tokens for tokens, _, _ in found]),
            "usual ms": 1000 * median([usual for _, usual, _ in found]),
            "stall ms": 1000 * median([stall for _, _, stall in found]),
        }


async def _letters(node: NodeRing) -> list[int]:
    """Tokens of one letter each."""
    async with sse.client(next(node.keys)) as http:
        asked = {"model": node.model, "prompt": " ".join(string.ascii_lowercase), "add_special_tokens": False}
        async with http.post(f"{node.url.removesuffix('/v1')}/tokenize", json=asked) as response:
            response.raise_for_status()
            return sorted(set((await response.json())["tokens"]))


async def _stall(node: NodeRing, content: object, letters: list[int]) -> tuple[int, float, float]:
    """Tokens of the prompt that comes, the median gap of the running stream, and its longest gap from then on."""
    running = Answer()
    # A token that is part of a character has no event, so a gap would be two steps; and letters by chance are not guessed.
    events = {"temperature": 1, "allowed_token_ids": letters}
    async with asyncio.TaskGroup() as group:
        group.create_task(_chat(node, prompts.text(20), 300, running, events))
        await running.begun.wait()
        comes = await _chat(node, content, 1)
    gaps = list(zip(running.texts[1:], running.gaps, strict=True))
    return (
        comes.prompt_tokens,
        median([gap for _, gap in gaps]),
        max(gap for at, gap in gaps if comes.sent <= at and at - gap <= comes.ended),
    )


def _asked(side: int) -> list[Json]:
    url = f"data:image/jpeg;base64,{_picture(side)}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is in it?"}]


async def _chat(
    node: NodeRing, content: object, tokens: int, answer: Answer | None = None, sampling: Json | None = None
) -> Answer:
    body = {
        "model": node.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        **(sampling or {}),
    }
    async with sse.client(next(node.keys)) as http:
        return await sse.stream(http, f"{node.url}/chat/completions", body, answer)
