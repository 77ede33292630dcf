"""A ring of `node` processes against stock mlx-lm in one process: same machine, model and BLAS, one core for each.

Parts:
  a  one stream: decode tokens/s of a ring of 2 and of 3 against mlx_lm's generate_step
  b  many sessions: tokens/s in total of a ring of 2 against mlx_lm's BatchGenerator; and of two such processes with half
     of the sessions each, which show the limit for two of this machine's cores
  c  a long prompt: time to the first token of a ring of 2 against generate_step
  e  one stream whose client predicts the answer, with every n-th token wrong: a ring of 2 computes guessed tokens while
     a stage would be idle; and of one node, which guesses only if steps of several tokens pay; and, with three cores or
     more, a ring of 3
  f  free text of --model, whose draft model is --draft: a ring of 2 with it and without; see scripts/train_demo_model.py

Runs come in pairs, stock then ring, and the ratio is the median of the pairs' ratios. Two kinds of runs:
  ring --preset 25m                                         bound by computing: the wheel's own, slow BLAS
  ring --preset 110m --preload /usr/lib/…/libblas.so.3      bound by memory: a tuned BLAS, one thread, for both sides
"""

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import figures
import processes
import ring_nodes
import ring_parts
from figures import Row, report
from processes import Child

HELP = "a ring of nodes against stock mlx-lm: one stream, many, a long prompt"
MODELS = Path(tempfile.gettempdir()) / "pippin-bench-models"
QUICK = {"pairs": 1, "tokens": 32, "batch_tokens": 12, "sessions": [8], "prefill_tokens": 256}
NOTES = (
    "ratio  ring / stock, the median of the pairs'; least and most of them show how noisy the machine was",
    "cpu    processor time of all nodes for the same work, in times of stock's: what the ring adds",
    "bound  what the ratio could be at most: stock's processor time / that of the busiest node",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="25m", help="of scripts/make_model.py (default: %(default)s)")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS for both sides (LD_PRELOAD, one thread)")
    add("--parts", default="a,b,c,e", metavar="P,P", help="default: %(default)s")
    add(
        "--pairs",
        type=int,
        default=3,
        metavar="N",
        help="counted pairs of runs; part a makes 3 N (default: %(default)s)",
    )
    add("--tokens", type=int, default=128, metavar="N", help="part a, of each answer (default: %(default)s)")
    add("--prompt-tokens", type=int, default=16, metavar="N", help="part a (default: %(default)s)")
    add("--sessions", type=figures.numbers, default=[8, 16, 32], metavar="N,N", help="part b (default: 8,16,32)")
    add("--batch-tokens", type=int, default=48, metavar="N", help="part b, of each answer (default: %(default)s)")
    add("--prefill-tokens", type=int, default=2048, metavar="N", help="part c, 4000 at most (default: %(default)s)")
    add("--model", type=Path, metavar="DIR", help="part f, a model whose text the draft model can guess")
    add("--draft", default="pippin-demo", metavar="ID", help="part f (default: %(default)s)")
    add("--quick", action="store_true", help="one short pair of each: a check; figures mean nothing")
    add(
        "--models-dir",
        type=Path,
        default=MODELS,
        metavar="DIR",
        help="directory of generated models (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> list[Row]:
    if options.quick:
        vars(options).update(QUICK)
    if options.preload and not options.preload.exists():
        raise SystemExit(f"There is no {options.preload}.")
    parts = set(options.parts.split(","))
    _tell_cores()
    rows: list[Row] = []
    if parts & set("abce"):
        rows += _against_stock(options, parts)
        report("Ring against stock mlx-lm", rows, NOTES)
    if "f" in parts:
        rows += _with_draft(options)
        report("Ring with a draft model against stock mlx-lm", rows, NOTES)
    return rows


def _tell_cores() -> None:
    cores = processes.cores()
    if not cores:
        print("This system cannot pin processes to cores: the figures are of processes that share them all.")
    elif len(cores) < 3:
        print(f"{len(cores)} cores: in a ring of 3 the driver has one, the others share the rest; the client has none.")


def _against_stock(options: argparse.Namespace, parts: set[str]) -> list[Row]:
    rows = []
    model = ring_nodes.make_model(options.preset, options.models_dir)
    core = next(iter(processes.cores()), None)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        environment = processes.environment(options.preload)
        stock = stack.enter_context(Child("stock_child.py", str(model), core=core, env=environment))
        stock.answer()
        stack.enter_context(processes.on_cores(_spare_cores()))
        with ring_nodes.running(2, model, scratch, options.preload) as ring:
            if "a" in parts:
                rows.append(_told(ring_parts.single(stock, ring, options)))
            if "b" in parts:
                rows += [_told(ring_parts.sessions(stock, ring, options, count)) for count in options.sessions]
            if "c" in parts:
                rows.append(_told(ring_parts.prefill(stock, ring, options)))
            if "e" in parts:
                rows += map(_told, ring_parts.predicted(stock, ring, options))
        if "e" in parts:
            for stages in (1, 3) if len(processes.cores()) >= 3 else (1,):
                with ring_nodes.running(stages, model, scratch, options.preload) as ring:
                    rows += map(_told, ring_parts.predicted(stock, ring, options))
        if "b" in parts and len(cores := processes.cores()) > 1:
            other = stack.enter_context(Child("stock_child.py", str(model), core=cores[1], env=environment))
            other.answer()
            rows += [_told(ring_parts.at_once(stock, other, options, count)) for count in options.sessions]
        if "a" in parts:
            with ring_nodes.running(3, model, scratch, options.preload) as ring:
                rows.append(_told(ring_parts.single(stock, ring, options)))
    return rows


def _with_draft(options: argparse.Namespace) -> list[Row]:
    if options.model is None:
        raise SystemExit("Part f needs --model DIR.")
    rows = []
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        environment, core = processes.environment(options.preload), next(iter(processes.cores()), None)
        stock = stack.enter_context(Child("stock_child.py", str(options.model), core=core, env=environment))
        stock.answer()
        stack.enter_context(processes.on_cores(_spare_cores()))
        for what, own in (("no draft model", []), (f"draft model {options.draft}", ["--draft", options.draft])):
            with ring_nodes.running(2, options.model, scratch, options.preload, more=own) as ring:
                rows.append(_told(ring_parts.drafted(stock, ring, options.model, what, options)))
    return rows


def _spare_cores() -> Sequence[int]:
    """Return cores without a stage for this process, the client; empty if there are none."""
    return processes.cores()[3:]


def _told(row: Row) -> Row:
    print(f"{row['part']}: {row['case']}: {row['ratio']}", flush=True)
    return row
