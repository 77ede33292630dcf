"""An edit of a file, from end to end: a chat asks to rename a function in a file of 300 lines, and the answer is the new file.

The model comes from scripts/train_edit_model.py, which trains it for this task. Rings of 2 `node` processes against stock mlx-lm in one process,
one core for each; tokens per second after the first token, in turns. The text must always be the new file. The rows:

  no guesses       --no-guesses
  first answer     guesses from the file in the prompt
  asked again      the same request once more: guesses from the earlier answer, too
  prediction       the client sends the old file as OpenAI's `prediction`

A ring is started anew for each measurement but `asked again`, so that it has seen no earlier answer.
"""

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import bars
import edit_task
import processes
import ring_nodes
from figures import Row, header, machine, median, report, write_json
from processes import Child
from sse import Answer
from transformers import AutoTokenizer

HELP = "an edit of a file of 300 lines by a ring, against stock mlx-lm"
CONTEXT = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="from scripts/train_edit_model.py")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for both sides (LD_PRELOAD, one thread)")
    add("--pairs", type=int, default=2, metavar="N", help="runs of each, some six minutes (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    bars.add_argument(parser)


def run(options: argparse.Namespace) -> None:
    where = machine() | {"BLAS": str(options.preload or "of the wheel")}
    print(header(where))
    ratios: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        environment, core = processes.environment(options.preload), next(iter(processes.cores()), None)
        stock = stack.enter_context(Child("stock_child.py", str(options.model), core=core, env=environment))
        stock.answer()
        prompt, tokens = _asked(stock, options.model)
        for _ in range(options.pairs):
            alone = (tokens - 1) / stock.ask(do="decode", prompt=prompt, tokens=tokens)["rest"]
            for what, answer in _answers(options):
                rates.setdefault(what, []).append(answer.rate)
                ratios.setdefault(what, []).append(answer.rate / alone)
                print(f"{what}: {answer.rate / alone:.2f} of {alone:.1f} tokens/s", flush=True)
    rows = [_row(what, len(prompt), tokens, rates[what], ratios[what]) for what in ratios]
    report(
        "An edit of a file, ring of 2 against stock mlx-lm", rows, ("ratio  ring / stock, the median of the pairs'",)
    )
    write_json(options.json, "edit", where, rows)
    bars.write_bars(options.plot, "An edit of a file, ring of 2 against stock mlx-lm", rows, "ratio", ("",))


def _row(what: str, prompt: int, tokens: int, rates: Sequence[float], ratios: Sequence[float]) -> Row:
    asked = {"": what, "prompt": prompt, "answer": tokens, "ring tok/s": median(rates), "pairs": len(ratios)}
    spread = {"least": round(min(ratios), 3), "most": round(max(ratios), 3)}
    return {**asked, **spread, "ratio": round(median(ratios), 3)}


def _asked(stock: Child, model: Path) -> tuple[list[int], int]:
    """The prompt's tokens, and the number of the answer's. Stock mlx-lm must give the right answer."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompt = tokenizer.apply_chat_template(edit_task.messages(), add_generation_prompt=True, return_dict=False)
    answer = stock.ask(do="answer", prompt=prompt, tokens=CONTEXT)["tokens"]
    _check(tokenizer.decode(answer))
    return prompt, len(answer)


def _answers(options: argparse.Namespace) -> Iterator[tuple[str, Answer]]:
    with _ring(options, "--no-guesses") as ring:
        yield "no guesses", _edit(ring)
    with _ring(options) as ring:
        yield "first answer", _edit(ring)
        yield "asked again", _edit(ring)
    with _ring(options) as ring:
        yield "prediction", _edit(ring, edit_task.source())


@contextlib.contextmanager
def _ring(options: argparse.Namespace, *more: str) -> Iterator[ring_nodes.NodeRing]:
    with (
        tempfile.TemporaryDirectory(prefix="pippin-bench-") as scratch,
        ring_nodes.running(2, options.model, Path(scratch), options.preload, context=CONTEXT, more=more) as ring,
    ):
        yield ring


def _edit(ring: ring_nodes.NodeRing, prediction: str = "") -> Answer:
    answer = asyncio.run(ring.chat(edit_task.messages(), prediction))
    _check(answer.text)
    return answer


def _check(text: str) -> None:
    if text != edit_task.renamed():
        raise SystemExit(f"The answer is not the new file: {text!r}")
