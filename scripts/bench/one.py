"""One `node` process over HTTP against stock mlx-lm's generate_step: same machine, same model, all cores for each.

For each model and each context: tokens per second of one stream after its first token. Runs come in pairs, stock then
node, and the ratio is the median of the pairs' ratios. Neither side computes the prompt again after its first run.

And the time in which the device has nothing to do between two steps, for a driver in a process of its own and for
generate_step there: from the end of all work that was begun to the beginning of the next, in µs a token. A thread that
waits for the device stamps the ends, so each figure has some µs of its own.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import figures
import processes
import ring_nodes
from figures import Row, at_least, report
from processes import Child
from ring import MODELS
from ring_nodes import NodeRing
from ring_parts import Pairs, Side, interleave

HELP = "one node against stock mlx-lm: one stream, and the idle time of the device"
TARGET = 0.97
SLOW_S = 0.005
"""The target is for tokens that take at least so long: the hand-over between threads takes some 0.2 ms."""
QUICK = {"presets": ["tiny"], "contexts": [16], "pairs": 1, "tokens": 32}
NOTES = (
    "ms      of stock, for each token",
    "ratio   node / stock, the median of the pairs'; least and most of them show how noisy the machine was",
    f"target  for tokens that take at least {1000 * SLOW_S:.0f} ms",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--presets", type=_names, default=["tiny", "25m", "110m"], metavar="P,P", help="default: tiny,25m,110m")
    add("--bits", type=figures.numbers, default=[0, 4], metavar="N,N", help="of the weights; 0: float32 (default: 0,4)")
    add(
        "--contexts", type=figures.numbers, default=[16, 4000], metavar="N,N", help="prompts' tokens (default: 16,4000)"
    )
    add("--pairs", type=int, default=7, metavar="N", help="counted pairs of runs (default: %(default)s)")
    add("--tokens", type=int, default=128, metavar="N", help="of each answer (default: %(default)s)")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for both sides (LD_PRELOAD, one thread)")
    add("--idle-only", action="store_true", help="only the device's idle time")
    add("--quick", action="store_true", help="one short pair: a check; figures mean nothing")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="of generated models (default: %(default)s)")


def _names(text: str) -> list[str]:
    return text.split(",")


def run(options: argparse.Namespace) -> list[Row]:
    if options.quick:
        vars(options).update(QUICK)
    rows: list[Row] = []
    idle: list[Row] = []
    for preset in options.presets:
        for bits in options.bits:
            model = ring_nodes.make_model(preset, options.models_dir, bits)
            if not options.idle_only:
                rows += [_told(row) for row in _against_stock(model, options)]
            idle += [_told(row) for row in _idle(model, options)]
    if rows:
        report("One node against stock mlx-lm", rows, NOTES)
    report("Device idle between two steps", idle)
    return [*rows, *idle]


def _against_stock(model: Path, options: argparse.Namespace) -> Iterator[Row]:
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        environment = processes.environment(options.preload)
        stock = stack.enter_context(Child("stock_child.py", str(model), env=environment))
        stock.answer()
        node = stack.enter_context(ring_nodes.running(1, model, scratch, options.preload, context=8192, pinned=False))
        for context in options.contexts:
            pairs = _pairs(stock, node, context, options)
            row = pairs.row("one", f"{model.name}, context {context}")
            row = {
                "node tok/s" if name == "ring tok/s" else name: value for name, value in row.items() if name != "bound"
            }
            token_s = 1 / float(str(row["stock tok/s"]))
            yield row | {"ms": round(1000 * token_s, 2)} | at_least(pairs.ratio, TARGET if token_s >= SLOW_S else None)


def _pairs(stock: Child, node: NodeRing, context: int, options: argparse.Namespace) -> Pairs:
    prompt = asyncio.run(node.visible_prompt(context))
    tokens: int = options.tokens

    def alone() -> float:
        seconds: float = stock.ask(1800, do="decode", prompt=prompt, tokens=tokens)["rest"]
        return (tokens - 1) / seconds

    def served() -> float:
        return asyncio.run(node.stream(prompt, tokens)).rate

    return interleave(options.pairs, Side(alone, [stock.process.pid]), Side(served, node.pids))


def _idle(model: Path, options: argparse.Namespace) -> Iterator[Row]:
    with Child("one_child.py", str(model), env=processes.environment(options.preload)) as child:
        child.answer()
        context = min(options.contexts)
        found = child.ask(context=context, tokens=options.tokens)
        yield {"part": "idle", "case": f"{model.name}, context {context}"} | {k: round(v, 1) for k, v in found.items()}


def _told(row: Row) -> Row:
    print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row
