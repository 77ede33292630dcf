"""Many streams at once without max_tokens, of one node and of a ring of 2, against mlx_lm.server in the same run.

Prompts are of very different length, and so are answers. A model of random weights ends no answer by itself, so one of
every so many of its tokens ends it (eos_token_id): drawn at temperature 1, answers have geometric lengths. Both sides
read the same files, with the same ends, and reserve up to the whole context for an answer. All processes share all
cores. mlx_lm.server is as it starts by default, but for --max-tokens, whose default ends answers at 512 tokens.

`recomputed` is the share of all tokens, of prompts and answers, that a node computed again for requests that had made
room for others. `alike` is a run of the nodes alone, in which all clients have one system prompt of --system-tokens and
a short question: `prompt tokens` are those that were computed of all prompts, as told by usage.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import figures
import processes
import prompts
import ring_nodes
import sse
from figures import Row, at_most, median, percentile, report
from ring import MODELS
from sse import Answer, Json

HELP = "many streams without limits against mlx_lm.server: TTFT, tokens/s, tokens computed twice"
WORDS = (5, 20, 60, 200, 600)
"""Lengths of prompts."""
QUESTION_WORDS = 12
START_S = 60.0
RECOMPUTED_TARGET = 2.0
"""Percent of all tokens."""
AGAIN_S = 0.1
NOTES = (
    "ratio       tokens/s of the node or ring / those of mlx_lm.server with as many streams; of alike ones, one node's",
    "recomputed  the target",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="tiny", help="of scripts/make_model.py (default: %(default)s)")
    add("--streams", type=figures.numbers, default=[64, 256], metavar="N,N", help="default: 64,256")
    add("--answer-tokens", type=int, default=100, metavar="N", help="mean of an answer (default: %(default)s)")
    add("--system-tokens", type=int, default=2000, metavar="N", help="of all clients (default: %(default)s)")
    add("--alike", type=int, default=64, metavar="N", help="clients with one system prompt, 0: none (default: 64)")
    add("--context", type=int, default=4096, metavar="N", help="of the nodes (default: %(default)s)")
    add("--rounds", type=int, default=1, metavar="N", help="runs of each side; the median counts (default: 1)")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="of generated models (default: %(default)s)")


def run(options: argparse.Namespace) -> list[Row]:
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pippin-bench-")))
        model = with_ends(ring_nodes.make_model(options.preset, options.models_dir), options.answer_tokens)
        sides = [stack.enter_context(_stock(model, scratch, options.context))]
        for stages in (1, 2):
            each = stack.enter_context(
                ring_nodes.running(stages, model, scratch, None, context=options.context, pinned=False, with_keys=False)
            )
            sides.append(Side("one node" if stages == 1 else f"ring of {stages}", each.url, each.model, each.url[:-3]))
        rows = asyncio.run(_measure(sides, options))
    report("Many streams without max_tokens", rows, NOTES)
    return rows


def with_ends(model: Path, mean: int) -> Path:
    """A copy of a model whose answers end at one of every `mean` tokens."""
    copy = model.with_name(f"{model.name}-ends-{mean}")
    if not (copy / "generation_config.json").exists():
        shutil.copytree(model, copy, dirs_exist_ok=True)
        for name in ("config.json", "generation_config.json"):
            config: Json = json.loads((copy / name).read_text())
            vocabulary = json.loads((copy / "config.json").read_text())["vocab_size"]
            config["eos_token_id"] = [2, *random.Random(0).sample(range(400, vocabulary), vocabulary // mean)]
            (copy / name).write_text(json.dumps(config))
    return copy


@dataclass(frozen=True, slots=True)
class Side:
    """A server that is measured."""

    name: str
    url: str
    model: str
    status_url: str = ""
    """Of the node's status; empty for mlx_lm.server."""

    def recomputed(self) -> int:
        if not self.status_url:
            return 0
        with urllib.request.urlopen(f"{self.status_url}/cluster/status", timeout=10) as answer:  # noqa: S310 - our URL
            status: Json = json.load(answer)
        return sum(ring["recomputed_tokens"] for model in status["models"] for ring in model["rings"])

    def body(self, messages: list[Json]) -> Json:
        options: Json = {"temperature": 1.0, "stream_options": {"include_usage": True}}
        return {"model": self.model, "messages": messages, **options}


@contextlib.contextmanager
def _stock(model: Path, scratch: Path, context: int) -> Iterator[Side]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port)]
    log = scratch / "stock.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "--max-tokens", str(context)],
            env=processes.environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2):  # noqa: S310 - our URL
                yield Side("mlx_lm.server", f"{url}/v1", "default_model")
                return
            time.sleep(0.2)
        raise SystemExit(f"mlx_lm.server did not start.\n{log.read_text()[-2000:]}")
    finally:
        processes.end([server])


async def _measure(sides: Sequence[Side], options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with sse.client() as http:
        for side in sides:
            await _ask_all(http, side, _ragged(4))  # warms up
        for streams in options.streams:
            runs: dict[Side, list[Run]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side in sides:
                    runs[side].append(await _ask_all(http, side, _ragged(streams)))
            rows += _compare(f"{streams} streams", runs)
        if options.alike:
            chats = options.alike, options.system_tokens
            nodes = [side for side in sides if side.status_url]
            rows += _compare(
                f"{options.alike} alike", {side: [await _ask_all(http, side, _alike(*chats))] for side in nodes}
            )
    return rows


@dataclass(frozen=True, slots=True)
class Run:
    answers: list[Answer]
    seconds: float
    recomputed: int

    @property
    def rate(self) -> float:
        """Tokens of answers per second."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def computed(self) -> int:
        """Tokens of prompts that were computed."""
        return sum(answer.prompt_tokens - answer.cached_tokens for answer in self.answers)

    @property
    def recomputed_share(self) -> float:
        return self.recomputed / (self.computed + sum(answer.tokens for answer in self.answers))


async def _ask_all(http: aiohttp.ClientSession, side: Side, chats: Sequence[list[Json]]) -> Run:
    before, begin = side.recomputed(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        url = f"{side.url}/chat/completions"
        tasks = [group.create_task(_ask(http, url, side.body(chat))) for chat in chats]
    seconds = time.perf_counter() - begin
    await asyncio.sleep(1.0)  # status is as old as a heartbeat
    return Run([task.result() for task in tasks], seconds, side.recomputed() - before)


async def _ask(http: aiohttp.ClientSession, url: str, body: Json) -> Answer:
    """Ask again when the connection is reset before the answer begins, as a client would: mlx_lm.server lets five wait."""
    begin = time.perf_counter()
    while True:
        answer = Answer()
        try:
            await sse.stream(http, url, body, answer)
        except aiohttp.ClientConnectionError:
            if answer.lumps:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            answer.sent = begin
            return answer


def _ragged(streams: int) -> list[list[Json]]:
    return [[{"role": "user", "content": prompts.text(WORDS[n % len(WORDS)])}] for n in range(streams)]


def _alike(clients: int, system_tokens: int) -> list[list[Json]]:
    system = {"role": "system", "content": prompts.text(round(system_tokens / 1.2))}
    return [[system, {"role": "user", "content": prompts.text(QUESTION_WORDS)}] for _ in range(clients)]


def _compare(what: str, runs: dict[Side, list[Run]]) -> list[Row]:
    stock = median([run.rate for run in next(iter(runs.values()))])
    rows = []
    for side, each in runs.items():
        waits = [answer.ttft for run in each for answer in run.answers]
        rate = median([run.rate for run in each])
        rows.append(
            {
                "case": what,
                "side": side.name,
                "TTFT p50": round(percentile(waits, 0.5), 2),
                "TTFT p99": round(percentile(waits, 0.99), 2),
                "answers": median([answer.tokens for run in each for answer in run.answers]),
                "tokens/s": round(rate, 1),
                "ratio": round(rate / stock, 2),
                "prompt tokens": each[0].computed,
            }
        )
        if side.status_url:
            recomputed = 100 * max(run.recomputed_share for run in each)
            rows[-1] |= {"recomputed %": round(recomputed, 2)} | at_most(recomputed, RECOMPUTED_TARGET)
        print(rows[-1], flush=True)
    return rows
