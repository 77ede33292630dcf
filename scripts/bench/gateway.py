"""The cost of HTTP and of the gateway: the real API on one core, with an engine that computes nothing.

  driver here       the gateway's node drives the ring: tokens come from the same process
  driver elsewhere  they come over gRPC (real RpcServer, RpcClient) from a second process

TTFT is measured with one request at a time, from its last byte sent to its first event with text. Tokens/s are of all
streams together; each token is an event of its own. The engine gives each stream one token per round, as a driver's
steps do, and waits until all are taken, so no tokens pile up to be sent in one event. `us a token` is the processor
time of the whole process; 1,000,000 divided by it is the capacity of the core.

The gateway has a core of its own. The client and the driver have one each, or share one if there are only two. Then
they slow `driver elsewhere` down, and its processor time is the figure to look at.
"""

import argparse
import asyncio
import contextlib
import pstats
import time
from pathlib import Path

import processes
import prompts
import psutil
import raw_client
from figures import Row, at_least, at_most, percentile, report
from processes import Child

HELP = "the cost of HTTP and the gateway, with an engine that computes nothing"
TTFT_TARGET_MS = 3.0
TOKENS_TARGET = 5000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--streams", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--max-tokens", type=int, default=512, metavar="N", help="of each stream (default: %(default)s)")
    add("--requests", type=int, default=300, metavar="N", help="in sequence, for TTFT (default: %(default)s)")
    add("--prompt-words", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--driver", choices=("here", "elsewhere"), help="only this one")
    add("--profile", type=Path, metavar="FILE", help="with --driver: cProfile of the gateway's process, which slows it")
    add("--quick", action="store_true", help="a short run: a check; figures mean nothing")


def run(options: argparse.Namespace) -> list[Row]:
    if options.quick:
        options.max_tokens, options.requests = 64, 30
    if options.profile and not options.driver:
        raise SystemExit("--profile needs --driver.")
    rows = _here(options) if options.driver != "elsewhere" else []
    rows += _elsewhere(options) if options.driver != "here" else []
    report(f"Gateway on one core, {options.streams} streams of {options.max_tokens} tokens", rows)
    if options.profile:
        _tell_profile(options.profile, options.streams * options.max_tokens)
    return rows


def _core(number: int) -> int | None:
    cores = processes.cores()
    return cores[min(number, len(cores) - 1)] if cores else None


def _here(options: argparse.Namespace) -> list[Row]:
    with Child("gateway_child.py", "gateway", *_profile(options), core=_core(0)) as gateway:
        return _measure("driver here", gateway, None, options)


def _elsewhere(options: argparse.Namespace) -> list[Row]:
    with contextlib.ExitStack() as stack:
        driver = stack.enter_context(Child("gateway_child.py", "driver", core=_core(2)))
        address = f"127.0.0.1:{driver.answer()['port']}"
        gateway = stack.enter_context(Child("gateway_child.py", "gateway", address, *_profile(options), core=_core(0)))
        return _measure("driver elsewhere", gateway, driver, options)


def _profile(options: argparse.Namespace) -> list[str]:
    return ["--profile", str(options.profile)] if options.profile else []


def _measure(name: str, gateway: Child, driver: Child | None, options: argparse.Namespace) -> list[Row]:
    started = gateway.answer()
    print(f"{name}: of each token's time, {started['own']:.1f} us are the fake engine's.")
    core = _core(1)
    with processes.on_cores([] if core is None else [core]):
        rows = asyncio.run(_ask(name, started["port"], gateway, driver, options))
    if options.profile:
        gateway.ask()  # when it answers, it has written its profile and ends
    return rows


async def _ask(name: str, port: int, gateway: Child, driver: Child | None, options: argparse.Namespace) -> list[Row]:
    def request(tokens: int) -> bytes:
        return raw_client.request("bench", prompts.text(options.prompt_words), tokens)

    clients = [await raw_client.connect(port) for _ in range(options.streams)]
    await asyncio.gather(*(client.ask(request(16)) for client in clients))
    ttfts = [(await clients[0].ask(request(4))).ttft * 1000 for _ in range(options.requests)]
    before = [_processor_s(child) for child in (gateway, driver)]
    begin = time.perf_counter()
    reads = await asyncio.gather(*(client.ask(request(options.max_tokens)) for client in clients))
    seconds = time.perf_counter() - begin
    used = [_processor_s(child) - was for child, was in zip((gateway, driver), before, strict=True)]
    for client in clients:
        client.close()
    tokens = sum(read.tokens for read in reads)
    share = percentile(ttfts, 0.5)
    return [
        {"case": name, "figure": "TTFT p50 ms", "value": share} | at_most(share, TTFT_TARGET_MS),
        {"case": name, "figure": "TTFT p99 ms", "value": percentile(ttfts, 0.99)},
        {"case": name, "figure": "tokens/s", "value": tokens / seconds} | at_least(tokens / seconds, TOKENS_TARGET),
        {"case": name, "figure": "events a token", "value": sum(read.events for read in reads) / tokens},
        {"case": name, "figure": "gateway's us a token", "value": used[0] / tokens * 1e6},
        *([{"case": name, "figure": "driver's us a token", "value": used[1] / tokens * 1e6}] if driver else []),
    ]


def _processor_s(child: Child | None) -> float:
    if child is None:
        return 0.0
    times = psutil.Process(child.process.pid).cpu_times()
    return float(times.user + times.system)


def _tell_profile(path: Path, tokens: int) -> None:
    print(f"Divide by {tokens:,} tokens; the warm-up and TTFT add a few.")
    pstats.Stats(str(path)).sort_stats("tottime").print_stats(30)
