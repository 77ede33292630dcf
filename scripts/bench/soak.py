"""Minutes of mixed load with a random node lost at intervals: no request may be lost, wrong or hang, and the gateway's
memory, the sessions and the tasks must not grow.

A gateway and a ring of two with one spare node, as in `recover`. Clients ask for short and long answers, greedy and
seeded, streamed and whole; some hang up in the middle. Each answer is compared with the answer to the same request
before the first loss. Exits with 1 if anything was wrong.
"""

import argparse
import asyncio
import contextlib
import random
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import sse
import victims
from figures import Row, at_most, report
from sse import Json
from victims import Cluster, Victim

HELP = "mixed load while random nodes are lost: no answer lost, wrong or hung, and no growth"
HANG_S = 60.0
"""Seconds after which an answer counts as hung. A lost node delays it by a few seconds only."""
GROWTH = 1.25
"""Maximum growth factor of the gateway's memory, from a third of the time to the end; caches are warm by then."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
BACK_S = 6.0
"""Seconds until a lost node is started again or continued."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, metavar="N", help="default: %(default)s")
    add("--every", type=float, default=20.0, metavar="S", help="seconds between two losses (default: %(default)s)")
    add("--clients", type=int, default=8, metavar="N", help="default: %(default)s")
    add("--seed", type=int, default=0, metavar="N", help="of the requests and losses (default: %(default)s)")


@dataclass(slots=True)
class Soak:
    cluster: Cluster
    ends: float
    expected: list[tuple[Json, str]] = field(default_factory=list)
    """Each request body with its answer."""
    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    memory: list[int] = field(default_factory=list)

    def wrong(self, what: str, body: Json) -> None:
        self.counts["wrong"] += 1
        print(f"\n{time.strftime('%X')} {what}: {body}", file=sys.stderr)


def run(options: argparse.Namespace) -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="pippin-soak-") as directory,
        victims.running(Path(directory), others=3, stages=2) as cluster,
    ):
        tasks = _tasks(cluster)
        soak = Soak(cluster, time.monotonic() + options.minutes * 60)
        asyncio.run(_soak(soak, options))
        left = _left_over(cluster)
        more_tasks = _tasks_more_than(tasks, cluster)
    growth = _growth(soak.memory)
    row: Row = {
        "minutes": options.minutes,
        "losses": soak.counts["losses"],
        "requests": soak.counts["requests"],
        "cancelled": soak.counts["cancelled"],
        "wrong, lost or hung": soak.counts["wrong"],
        "slowest s": soak.slowest_s,
        "sessions left": left,
        "tasks more": more_tasks,
        "gateway's memory": growth,
        **at_most(soak.counts["wrong"], 0),
    }
    report("Soak", [row], [f"gateway's memory: at the end, in times of what it was after a third (<= {GROWTH})"])
    if soak.counts["wrong"] or left or more_tasks > 0 or growth > GROWTH or not soak.counts["losses"]:
        sys.exit(1)  # these figures are not written
    return [row]


def _bodies() -> list[Json]:
    asked = [(f"Count from {n} to {n + 60}", tokens) for n in range(1, 5) for tokens in (20, 250)]
    asked += [("Hello", 40), ("Tell me a story.", 120)]
    return [
        {
            "model": victims.MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens,
            "ignore_eos": True,
            **({"temperature": 0} if index % 2 else {"temperature": 1, "seed": index}),
        }
        for index, (content, tokens) in enumerate(asked)
    ]


async def _soak(soak: Soak, options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    async with sse.client() as http, asyncio.TaskGroup() as group:
        for body in _bodies():
            soak.expected.append((body, await _ask(soak, http, body, streamed=False)))
        for number in range(options.clients):
            group.create_task(_client(soak, http, random.Random(options.seed * 1000 + number)))
        group.create_task(_watch(soak))
        while time.monotonic() + options.every < soak.ends:
            await asyncio.sleep(max(options.every - BACK_S, 0.0))
            await _lose(soak, rng)


async def _client(soak: Soak, http: aiohttp.ClientSession, rng: random.Random) -> None:
    while time.monotonic() < soak.ends:
        body, expected = rng.choice(soak.expected)
        soak.counts["requests"] += 1
        began = time.monotonic()
        try:
            if rng.random() < 0.1:
                await _go_away(soak, http, body, rng)
                continue
            async with asyncio.timeout(HANG_S):
                text = await _ask(soak, http, body, streamed=rng.random() < 0.7)
        except (TimeoutError, RuntimeError, OSError, sse.RefusedError, aiohttp.ClientError) as error:
            soak.wrong(f"{type(error).__name__} {error}", body)
        else:
            soak.slowest_s = max(soak.slowest_s, time.monotonic() - began)
            if text != expected:
                soak.wrong(f"{text!r} is not {expected!r}", body)


async def _ask(soak: Soak, http: aiohttp.ClientSession, body: Json, *, streamed: bool) -> str:
    url = f"{soak.cluster.url}/v1/chat/completions"
    if streamed:
        return (await sse.stream(http, url, body)).text
    return str((await sse.whole(http, url, body))["choices"][0]["message"]["content"])


async def _go_away(soak: Soak, http: aiohttp.ClientSession, body: Json, rng: random.Random) -> None:
    soak.counts["cancelled"] += 1
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rng.uniform(0.05, 1.0)):
            await _ask(soak, http, body, streamed=True)


async def _lose(soak: Soak, rng: random.Random) -> None:
    victim = rng.choice([node for node in soak.cluster.nodes.values() if node is not soak.cluster.gateway])
    number = rng.choice(SIGNALS)
    print(f"{time.strftime('%X')} {signal.Signals(number).name} {victim.name}", file=sys.stderr)
    soak.counts["losses"] += 1
    victim.process.send_signal(number)
    await asyncio.sleep(BACK_S)
    if number == signal.SIGSTOP:
        victim.process.send_signal(signal.SIGCONT)
    else:
        await asyncio.to_thread(_again, soak.cluster, victim)


def _again(cluster: Cluster, victim: Victim) -> None:
    victim.process.wait()
    cluster.launch(victim.name)


async def _watch(soak: Soak) -> None:
    process = psutil.Process(soak.cluster.gateway.process.pid)
    while time.monotonic() < soak.ends:
        soak.memory.append(process.memory_info().rss)
        await asyncio.sleep(1.0)


def _growth(memory: list[int]) -> float:
    third = memory[len(memory) // 3 :]
    return max(third[-5:]) / third[0] if third else float("nan")


def _left_over(cluster: Cluster) -> int:
    """Count the sessions that rings still have when all clients are gone."""
    count = 1

    def idle() -> bool:
        nonlocal count
        requests = [model["requests"] for model in cluster.status()["models"]]
        count = sum(each["running"] + each["queued"] for each in requests)
        return count == 0

    deadline = time.monotonic() + 15.0
    while not idle() and time.monotonic() < deadline:
        time.sleep(0.2)
    return count


def _tasks(cluster: Cluster) -> int:
    """Return the tasks of the gateway, the only node that is never lost."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=5) as answer:  # noqa: S310 - our own URL
        found = re.search(r"^pippin_tasks (\d+)", answer.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def _tasks_more_than(before: int, cluster: Cluster) -> int:
    """Return by how many the tasks have grown, with all nodes back and idle."""
    cluster.ready()
    deadline = time.monotonic() + 30.0
    while (more := _tasks(cluster) - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.5)
    return more
