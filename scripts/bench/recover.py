"""How long a stream pauses when a node of its ring is lost, and the parts of that time.

Four nodes of this machine serve the built-in model: a gateway without layers, a ring of two, and a spare node. While
streams run through the gateway, a node is lost; when all have ended, it is started again. A stream counts as lost if it
ends with an error, or with another text than undisturbed.

    worker    kill -9 of the ring's last node          hang      SIGSTOP of it; SIGCONT afterwards
    driver    kill -9 of the ring's first node         leave     SIGTERM of it
    head      kill -9 of the head, whatever its role   reset     `ss -K` resets its connections with other nodes;
                                                                 not by default, because it needs root

The parts come from the nodes' logs (one machine, one clock): `detect`, from the signal until the head, or the node that
becomes head, reports the node as gone; `elect`, until there is a head (0 if the head was not lost); `plan`, until the
placement that replaces the ring; `load`, until the last stage of it has loaded; `replay`, until the client gets the
first token. `total` is their sum. Each figure is that of the stream that waited longest. For `leave` and `reset`
everything is `replay`, the longest gap between two tokens since the signal: the work moves while the node still
answers, or does not move at all.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import figures
import prompts
import sse
import victims
from figures import Row, at_most, percentile, report
from sse import Answer, Json
from victims import Cluster, Victim

HELP = "the pause of streams when a node is lost"
KINDS = ("worker", "driver", "head", "hang", "leave")
PARTS = ("detect", "elect", "plan", "load", "replay")
TOKENS = 160
WARM_S = 0.4
"""Seconds from the first tokens until a node is lost."""
LEAVE_S = 40.0
"""Seconds within which a node that is told to stop has ended."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kinds", default=",".join(KINDS), metavar="K,K", help="default: %(default)s")
    add("--losses", type=int, default=20, metavar="N", help="of each kind (default: %(default)s)")
    add("--streams", type=int, default=4, metavar="N", help="that run meanwhile (default: %(default)s)")
    add("--tokens", type=int, default=TOKENS, metavar="N", help="of each answer (default: %(default)s)")
    add("--model", default=victims.MODEL, metavar="ID", help="default: %(default)s")
    add("--models-dir", type=Path, metavar="DIR", help="directory of the model's folder")
    add(
        "--contexts",
        type=figures.numbers,
        default=[0],
        metavar="N,N",
        help="random words in front of each prompt, for long sessions (default: none)",
    )
    add("--kv-copies", default="wired", metavar="WHEN", help="of the nodes (default: %(default)s)")


def run(options: argparse.Namespace) -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="pippin-recover-") as directory,
        victims.running(
            Path(directory), 3, 2, options.model, options.models_dir, ("--kv-copies", options.kv_copies)
        ) as cluster,
    ):
        rows = [row for words in options.contexts for row in asyncio.run(_measure(cluster, options, words))]
    report(f"Losses while {options.streams} streams run; seconds", rows)
    return rows


@dataclass(slots=True)
class Loss:
    parts: dict[str, float]
    lost: int


async def _measure(cluster: Cluster, options: argparse.Namespace, words: int) -> list[Row]:
    """`words` in front of each prompt."""
    contents = [
        f"{prompts.text(words) if words else ''} Count from {n + 1} to 100".strip() for n in range(options.streams)
    ]
    answers = [await _stream(cluster, n, content, options.tokens) for n, content in enumerate(contents)]
    undisturbed = [answer.text for answer in answers]
    rows = []
    for kind in options.kinds.split(","):
        losses = []
        for _ in range(options.losses):
            losses.append(await _lose(cluster, kind, contents, undisturbed, options.tokens))
            print(".", end="", file=sys.stderr, flush=True)
        rows.append({"words": words, **_row(kind, losses)})
        report(f"{kind}, while {options.streams} streams run; seconds", rows[-1:])
    return rows


def _row(kind: str, losses: list[Loss]) -> Row:
    totals = [sum(loss.parts.values()) for loss in losses if loss.parts]
    row: Row = {
        "kind": kind,
        "losses": len(losses),
        "p50": percentile(totals, 0.5),
        "max": max(totals, default=float("nan")),
    }
    for part in PARTS:
        row[f"{part} p50"] = percentile([loss.parts[part] for loss in losses if loss.parts], 0.5)
        row[f"{part} max"] = max((loss.parts[part] for loss in losses if loss.parts), default=float("nan"))
    lost = sum(loss.lost for loss in losses)
    return row | {"streams lost": lost} | at_most(lost, 0)


async def _stream(cluster: Cluster, number: int, content: str, tokens: int, answer: Answer | None = None) -> Answer:
    messages = [{"role": "user", "content": content}]
    sampling: Json = {"temperature": 0} if number % 2 else {"temperature": 1, "seed": number}
    body = {"model": cluster.model, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **sampling}
    async with sse.client() as http:
        return await sse.stream(http, f"{cluster.url}/v1/chat/completions", body, answer)


async def _lose(cluster: Cluster, kind: str, contents: list[str], undisturbed: list[str], tokens: int) -> Loss:
    status = await victims.ready(cluster)
    victim = _victim(cluster, status, kind)
    for node in cluster.nodes.values():
        node.log_lines()
    answers = [Answer() for _ in contents]
    tasks = [
        asyncio.create_task(_stream(cluster, n, content, tokens, answer))
        for n, (content, answer) in enumerate(zip(contents, answers, strict=True))
    ]
    await asyncio.gather(*(answer.begun.wait() for answer in answers))
    await asyncio.sleep(WARM_S)
    lost_at = time.time()
    if kind == "reset":
        await asyncio.to_thread(victims.reset_connections, victim)
    else:
        victim.process.send_signal({"hang": signal.SIGSTOP, "leave": signal.SIGTERM}.get(kind, signal.SIGKILL))
    done = await asyncio.gather(*tasks, return_exceptions=True)
    wrong = [n for n, answer in enumerate(done) if not isinstance(answer, Answer) or answer.text != undisturbed[n]]
    for n in wrong:
        print(
            f"\n{kind}: stream {n}: {done[n] if not isinstance(done[n], Answer) else 'another text'}", file=sys.stderr
        )
    parts = _parts(cluster, victim, kind, answers, lost_at)
    if kind != "reset":
        await asyncio.to_thread(_bring_back, cluster, victim, kind)
    return Loss(parts, len(wrong))


def _victim(cluster: Cluster, status: Json, kind: str) -> Victim:
    ring = cluster.ring(status)
    match kind:
        case "head":
            return cluster.named(status, status["head"])
        case "driver":
            return ring[0]
        case _:
            return ring[-1]


def _bring_back(cluster: Cluster, victim: Victim, kind: str) -> None:
    if kind == "leave":
        victim.process.wait(LEAVE_S)
    elif victim.alive:
        victim.process.send_signal(signal.SIGCONT)
        victim.process.kill()
    victim.process.wait()
    cluster.launch(victim.name)


def _parts(cluster: Cluster, victim: Victim, kind: str, answers: list[Answer], lost_at: float) -> dict[str, float]:
    lines = sorted(
        line for node in cluster.nodes.values() if node is not victim for line in node.log_lines() if line[0] >= lost_at
    )
    offset = time.time() - time.perf_counter()
    resumed = max((_after_pause(answer, lost_at - offset)[1] for answer in answers), default=0.0) + offset
    gone = [at for at, text in lines if text.startswith(f"{victim.name} is ") and _is_gone(text)]
    elected = [at for at, text in lines if text.startswith("this node is head")]
    planned = [at for at, text in lines if text.startswith("placement ")]
    if kind in ("leave", "reset") or not (gone and planned and resumed > planned[0]):
        pause = max((_after_pause(answer, lost_at - offset)[0] for answer in answers), default=0.0)
        return {**dict.fromkeys(PARTS, 0.0), "replay": pause}
    loaded = [at for at, text in lines if text.startswith("loaded ") and planned[0] <= at <= resumed]
    marks = [lost_at, gone[0]]
    marks.append(max(marks[-1], elected[0] if elected and elected[0] <= planned[0] else 0.0))
    marks.append(max(marks[-1], planned[0]))
    marks.append(max(marks[-1], max(loaded, default=0.0)))
    marks.append(max(marks[-1], resumed))
    return {part: after - before for part, before, after in zip(PARTS, marks, marks[1:], strict=False)}


def _is_gone(text: str) -> bool:
    return " is failed" in text or " is left" in text


def _after_pause(answer: Answer, lost_at: float) -> tuple[float, float]:
    """Return the longest gap since the loss, and the time at which it ended."""
    times = [at for at in answer.texts if at > lost_at]
    if not times:
        return 0.0, 0.0
    before = [lost_at, *times]
    gaps = [(after - at, after) for at, after in zip(before, times, strict=False)]
    return max(gaps)
