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
  g  a model whose MTP layer is right for 80 % of its tokens, and the built-in model with its own: a ring of 2 and one node
  h  the six tasks of bench/guess_tasks.toml for a real model, see scripts/real_model.py: a ring of 2
  i  the same, one node

Runs come in pairs, stock then ring, and the ratio is the median of the pairs' ratios. Two kinds of runs:
  ring --preset 25m                                         bound by computing: the wheel's own, slow BLAS
  ring --preset 110m --preload /usr/lib/…/libblas.so.3      bound by memory: a tuned BLAS, one thread, for both sides
"""

import argparse
import contextlib
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import figures
import guesses
import processes
import prompts
import real_model
import ring_nodes
import ring_parts
from figures import Row, at_least, report
from processes import Child

HELP = "a ring of nodes against stock mlx-lm: one stream, many, a long prompt"
MODELS = Path(tempfile.gettempdir()) / "pippin-bench-models"
QUICK = {"pairs": 1, "tokens": 32, "batch_tokens": 12, "sessions": [8], "prefill_tokens": 256, "text_tokens": 16}
DRAFT_TARGET = 1.3
RIGHT = 0.8
"""Of the tokens for which the MTP layer of part g is right."""
RIGHT_TARGET, BUILTIN_TARGET = 1.4, 1.3
LEAST_OF_TASK, MEDIAN_OF_TASKS = 0.95, 1.3
BUILTIN = figures.ROOT / "node" / "builtin" / "pippin-demo"
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
    add(
        "--text-tokens",
        type=int,
        default=200,
        metavar="N",
        help="parts f to i, most of an answer (default: %(default)s)",
    )
    add("--model", type=Path, metavar="DIR", help="part f, a model whose text the draft model can guess; parts h, i")
    add("--draft", default="pippin-demo", metavar="ID", help="part f (default: %(default)s)")
    add(
        "--from-two",
        action="store_true",
        help="parts a to g, steps of two to five tokens only; see bench/node_from_two.py",
    )
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
    if "g" in parts:
        rows += _with_mtp_layers(options)
        report("MTP layers against stock mlx-lm", rows, NOTES)
    if parts & set("hi"):
        rows += _tasks(options, parts)
        report("A real model's tasks against stock mlx-lm", rows, NOTES)
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
    with _stock(model, options) as (stock, scratch):
        with ring_nodes.running(2, model, scratch, options.preload, from_two=options.from_two) as ring:
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
                with ring_nodes.running(stages, model, scratch, options.preload, from_two=options.from_two) as ring:
                    rows += map(_told, ring_parts.predicted(stock, ring, options))
        if "b" in parts and len(cores := processes.cores()) > 1:
            environment = processes.environment(options.preload)
            with Child("stock_child.py", str(model), core=cores[1], env=environment) as other:
                other.answer()
                rows += [_told(ring_parts.at_once(stock, other, options, count)) for count in options.sessions]
        if "a" in parts:
            with ring_nodes.running(3, model, scratch, options.preload, from_two=options.from_two) as ring:
                rows.append(_told(ring_parts.single(stock, ring, options)))
    return rows


def _with_draft(options: argparse.Namespace) -> list[Row]:
    if options.model is None:
        raise SystemExit("Part f needs --model DIR.")
    asked, rows = ring_parts.chats(options.model, prompts.CHATS), []
    with _stock(options.model, options) as (stock, scratch):
        for what, own in (("no draft model", []), (f"draft model {options.draft}", ["--draft", options.draft])):
            with ring_nodes.running(2, options.model, scratch, options.preload, more=own) as ring:
                pairs = ring_parts.free_text(stock, ring, options.model, asked, options)
            row = pairs.row("f", f"free text, {what}")
            rows.append(_told(row | at_least(pairs.ratio, DRAFT_TARGET if own else None)))
    return rows


def _with_mtp_layers(options: argparse.Namespace) -> list[Row]:
    rows = []
    random = ring_nodes.make_model(options.preset, options.models_dir, mtp=RIGHT)
    models = [
        (random, [prompts.token_ids(16) for _ in range(2)], f"MTP layer right for {RIGHT:.0%}", RIGHT_TARGET),
        (BUILTIN, ring_parts.chats(BUILTIN, prompts.CHATS), "built-in model with its MTP layer", BUILTIN_TARGET),
    ]
    # With other bits the built-in model's text may be another one than stock's; the random one's tokens are clear.
    for model, asked, what, target in models[:1] if options.from_two else models:
        with _stock(model, options) as (stock, scratch):
            for stages, nodes in ((2, "ring of 2"), (1, "one node")):
                for own, guessing in (([], what), (["--no-guesses"], f"{what}, --no-guesses")):
                    with ring_nodes.running(
                        stages, model, scratch, options.preload, from_two=options.from_two, more=own
                    ) as ring:
                        pairs = ring_parts.free_text(stock, ring, model, asked, options)
                    is_aim = stages == 2 and not own
                    row = pairs.row("g", f"{guessing}, {nodes}")
                    rows.append(_told(row | at_least(pairs.ratio, target if is_aim else None)))
    return rows


def _tasks(options: argparse.Namespace, parts: set[str]) -> list[Row]:
    """With nobody's help: no prediction, and each answer of a client of whom nothing is known."""
    rows: list[Row] = []
    model = options.model or real_model.real_model(quantized=False)
    tasks = {task["name"]: task["content"] for task in tomllib.loads(guesses.TASKS.read_text())["task"]}
    with _stock(model, options) as (stock, scratch):
        for part, stages, nodes in (("h", 2, "ring of 2"), ("i", 1, "one node")):
            if part not in parts:
                continue
            with ring_nodes.running(stages, model, scratch, options.preload, by_speed=stages > 1) as ring:
                found = []
                for name, prompt in zip(tasks, ring_parts.chats(model, list(tasks.values())), strict=True):
                    pairs = ring_parts.free_text(stock, ring, model, [prompt], options)
                    rows.append(_told(pairs.row(part, f"{name}, {nodes}") | at_least(pairs.ratio, LEAST_OF_TASK)))
                    found.append(pairs.ratio)
            middle = figures.median(found)
            row: Row = {"part": part, "case": f"median of six tasks, {nodes}", "ratio": round(middle, 3)}
            rows.append(_told(row | at_least(middle, MEDIAN_OF_TASKS if stages == 2 else None)))
    return rows


@contextlib.contextmanager
def _stock(model: Path, options: argparse.Namespace) -> Iterator[tuple[Child, Path]]:
    """Stock mlx-lm with a model, on the first core, and a scratch directory; this process leaves the cores of the stages."""
    core, environment = next(iter(processes.cores()), None), processes.environment(options.preload)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        stock = stack.enter_context(Child("stock_child.py", str(model), core=core, env=environment))
        stock.answer()
        stack.enter_context(processes.on_cores(_spare_cores()))
        yield stock, scratch


def _spare_cores() -> Sequence[int]:
    """Return cores without a stage for this process, the client; empty if there are none."""
    return processes.cores()[3:]


def _told(row: Row) -> Row:
    print(f"{row['part']}: {row['case']}: {row['ratio']}", flush=True)
    return row
