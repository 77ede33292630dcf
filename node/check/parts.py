"""The parts of a check. Each adds lines to the report."""

import os
import platform
import random
import re
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from node.check.processes import Node, PartFailed, compute, nodes, until
from node.check.report import Line, Report
from node.check.sizes import DENSE, VOCABULARY, Size
from node.core.addresses import is_self_assigned
from node.core.units import format_bytes
from node.host import memory
from node.host.chip import chip_name, system_name
from node.host.command import output_of
from node.host.descriptors import raise_limit
from node.host.interfaces import hardware_kinds, local_interfaces

ROOT = Path(__file__).parents[2]
SHORT = 24
"""How many tokens a short prompt has."""
MEET_S = 20.0
MAX_POOL = 2 * 2**30
SUITE_S = 600.0
MAY_RESTART = (
    "Save your work: some Macs have restarted (kernel panic, IOGPUMemory.cpp) under such a load as in the last part, two "
    "streams\nat once. If this one does, attach the newest .panic file in /Library/Logs/DiagnosticReports and this report, "
    "which lacks\nonly the end. Ctrl-C stops the check before."
)
MIN_FILES = 10_240
"""OPEN_MAX of macOS."""


def machine(report: Report, device: dict[str, Any]) -> None:
    """Chip, system, memory and limits; no names, as the report is for others to read."""
    report.section("This machine")
    is_mac = platform.system() == "Darwin"
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_limit()
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    info = ", ".join(f"{name} {value}" for name, value in sorted(device["info"].items()))
    models = device["for models"]
    report.add(
        Line("Chip", f"{chip_name()}, {platform.machine()}"),
        Line("System", f"{system_name()}, Python {platform.python_version()}"),
        Line("MLX", f"mlx {device['mlx']}, mlx-lm {device['mlx-lm']}, on {device['computes on']}"),
        Line("Memory", f"{format_bytes(memory.total())}, {format_bytes(memory.available())} of it available"),
        Line("The device's memory for models", format_bytes(models) if models else "no figure (CPU)"),
        Line("What MLX says of the device", info),
        Line(
            "Limit of open files",
            f"{before:,}, and {files:,} once a node has raised it",
            f"at least {MIN_FILES:,}, or all that the system allows",
            good=files >= min(MIN_FILES, most if most != resource.RLIM_INFINITY else MIN_FILES),
        ),
    )
    if is_mac:
        wired = output_of("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
        power = output_of("/usr/bin/pmset", "-g", "custom")
        thermal = output_of("/usr/bin/pmset", "-g", "therm")
        report.add(
            Line("Limit of wired memory", f"{wired or 'unknown'} MB", "0 MB, which means macOS's own"),
            Line("Minutes until it sleeps (0: never)", power_settings(power, "sleep")),
            Line("Low power mode (1: it computes at about half speed)", power_settings(power, "lowpowermode")),
            Line("Limits by heat", "; ".join(line.strip() for line in thermal.splitlines()) or "unknown"),
        )


def power_settings(text: str, setting: str) -> str:
    """The value of a setting with each source of power, of `pmset -g custom`."""
    found, power = [], ""
    for line in text.splitlines():
        name, _, value = line.strip().rpartition(" ")
        if line.endswith("Power:"):
            power = line.removesuffix(":")
        elif name.strip() == setting:
            found.append(f"{power} {value}")
    return ", ".join(found) or "unknown"


def bfloat16(report: Report) -> bool:
    """Whether the parts that compute have a meaning on this device."""
    what, expected = "bfloat16, the format of most models", "it is computed, as on all Macs that are not virtual"
    try:
        works = compute("bfloat16")
        found = "it is computed" if works else "it is computed wrongly"
    except PartFailed as error:
        works, found = False, str(error)
    report.add(Line(what, found if works else f"{found}. The parts that compute are left out", expected, good=works))
    return bool(works)


def links(report: Report) -> None:
    report.section("Network interfaces")
    for each in local_interfaces(kinds=hardware_kinds()):
        own = sum(map(is_self_assigned, each.addresses))
        said = f"{len(each.addresses)} addresses, {own} of them self-assigned"
        report.add(Line(each.name, f"{each.kind or 'of unknown kind'}, {said}"))


def suite(report: Report) -> None:
    """The engine's tests on this machine's device, if this is a checkout with their packages."""
    report.section("Tests of the engine on this device")
    what, expected = "tests/engine, without the slow ones", "all pass"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/engine"]
    if not (ROOT / "tests" / "engine").is_dir() or not find_spec("pytest"):
        report.add(Line(what, "not run: needs a checkout, and the packages of scripts/install dev", expected))
        return
    full_precision = {**os.environ, "MLX_ENABLE_TF32": "0"}  # an M5 computes float32 with fewer bits by default
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=full_precision, capture_output=True, text=True, timeout=SUITE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        marks = progress((error.stdout or b"").decode(errors="replace"))  # in bytes, whatever `text` says
        passed, failures = marks.count("."), marks.count("F") + marks.count("E")
        found = f"stopped after {SUITE_S:.0f} s with {passed} passed, {failures} failed"
        report.add(Line(what, found, expected, good=False if failures or not passed else None))
        return
    failed = re.findall(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
    ends = (done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]])[-1]
    report.add(Line(what, "\n                ".join([ends, *failed[:40]]), expected, good=done.returncode == 0))


def progress(printed: str) -> str:
    """The marks of the tests that have ended, one each, of what `pytest -q` has printed so far."""
    return "".join(re.findall(r"^([.FEsxX]+)(?: +\[ *\d+%\])?$", printed, re.MULTILINE))


def split(report: Report, folder: Path, size: Size) -> None:
    report.section("A split model computes what the whole one does")
    for name, config in size.configs.items():
        layers = config["num_hidden_layers"]
        what, expected = f"{config['model_type']}, 4 bits, in 2 stages", "the same bits in all steps"
        with report.expecting(what, expected):
            found = compute("split", folder=str(folder / name), cuts=[0, layers // 2, layers])
            steps, equal = found["steps"], found["equal"]
            said = f"the same bits in {equal} of {steps} steps, the same token in {found['chosen']}"
            if equal < steps:
                said += f"; the farthest logit is off by {found['farthest']:.2g} of their spread"
            report.add(Line(what, said, expected, good=equal == steps))


def pool(report: Report, folder: Path, size: Size) -> None:
    report.section("MLX's free buffers during a long answer")
    what, expected = f"after {size.pool_tokens} tokens", f"at most {format_bytes(MAX_POOL)}, as after half of them"
    with report.expecting(what, expected):
        found = compute("pool", folder=str(folder / DENSE), layers=size.layers, tokens=size.pool_tokens)
        end, middle, active = (format_bytes(found[each]) for each in ("end", "middle", "active"))
        said = f"{end}, after half of them {middle}, beside {active} in use"
        report.add(Line(what, said, expected, good=found["end"] <= MAX_POOL))


def rows(report: Report, folder: Path, size: Size) -> None:
    """Whether guesses may share a step with the token before them on this machine, and what that costs."""
    report.section("Several tokens of one session in a step")
    with report.expecting("Numbers of tokens with equal bits", "they are found"):
        found = compute("rows", folder=str(folder / DENSE), layers=size.layers)
        groups, seconds = found["groups"], {int(count): took for count, took in found["seconds"].items()}
        said = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        report.add(Line("Numbers of tokens with equal bits", said))
        for count in sorted(seconds)[1:]:
            report.add(
                Line(f"Time of a step of {count} tokens", f"{seconds[count] / seconds[1]:.2f} times that of one token")
            )
    with report.expecting("Time from one stream to another", "it is measured"):
        report.add(Line("Time from one stream to another", f"{1e6 * compute('fence'):.0f} µs"))


def speed(report: Report, folder: Path, size: Size, *, judge: bool) -> str:
    """One node against mlx-lm's own loop, with a short and a long prompt. Returns the node's answer to the short one."""
    report.section("One node against stock mlx-lm, same model")
    lengths = (SHORT, SHORT, size.context, size.context)  # each twice: the first compiles kernels
    prompts = [_prompt(length, seed) for seed, length in enumerate(lengths)]
    theirs = compute("stock", folder=str(folder / DENSE), prompts=prompts, tokens=size.tokens)
    with _alone(folder, size, sessions=1) as node:
        ours = [node.complete(DENSE, prompt, size.tokens) for prompt in prompts]

    def compare(what: str, own: float, stock: float, digits: int) -> None:
        found = f"{own:.{digits}f} of {stock:.{digits}f} tokens/s: {own / stock:.2f}"
        report.add(Line(what, found, "at least 0.90 of mlx-lm's", good=own / stock >= 0.9 if judge else None))

    for length, at in ((SHORT, 1), (size.context, 3)):
        own, stock = ((size.tokens - 1) / max(each[at]["rest"], 1e-9) for each in (ours, theirs))
        compare(f"Answer after a prompt of {length} tokens", own, stock, 1)
    own, stock = (size.context / each[3]["first"] for each in (ours, theirs))
    compare(f"Prompt of {size.context} tokens", own, stock, 0)
    return str(ours[1]["text"])


@contextmanager
def _alone(folder: Path, size: Size, *, sessions: int) -> Iterator[Node]:
    """One node that serves the model. Raises PartFailed."""
    options = ["--models-dir", str(folder), "--model", DENSE, "--host", "127.0.0.1", "--no-mdns"]
    options += ["--context", str(size.context + size.tokens + 64), "--max-sessions", str(sessions)]
    with nodes(folder / "nodes", options) as (node,):
        _ready(node, 1)
        yield node


def turnover(report: Report, folder: Path, size: Size) -> None:
    """Two streams whose prompts have nothing in common, so that caches are made and dropped all the time.

    It is the last part, as it may bring the Mac down. Raises PartFailed.
    """
    report.section(f"Two streams at once, with new prompts for {size.busy_s:.0f} s")
    if platform.system() == "Darwin":
        report.section(MAY_RESTART)
    # When it is interrupted, the node ends first, and with it the streams.
    with ThreadPoolExecutor(2) as streams, _alone(folder, size, sessions=2) as node:
        until_s = time.monotonic() + size.busy_s

        def stream(seed: int) -> int:
            answers = 0
            while answers == 0 or time.monotonic() < until_s:
                node.complete(DENSE, _prompt(size.context, seed + 2 * answers), size.tokens)
                answers += 1
            return answers

        counts = list(streams.map(stream, (100, 101)))
    report.add(Line("Answers", f"{sum(counts)}, all whole", "all whole, and this machine still runs", good=True))


def two_nodes(report: Report, folder: Path, size: Size, alone: str, *, host: str) -> None:
    """Two nodes that find each other by mDNS, and split the model. `alone`: one node's answer. `host`: as of `node`."""
    report.section("Two nodes on this machine")
    name = f"check-{uuid.uuid4().hex[:8]}"
    both = ["--models-dir", str(folder), "--cluster", name, "--stages", "2", "--max-sessions", "1", "--context", "1024"]
    both += ["--host", host] if host else []
    options = [[*both, "--model", DENSE], both]
    what, expected = "Discovery by mDNS", f"they find each other within {MEET_S:.0f} s"
    with nodes(folder / "nodes", *options) as pair:
        try:
            until(lambda: _count(pair[0]) == len(pair), MEET_S, "they find each other")
        except PartFailed as error:
            report.add(Line(what, f"{error}. {pair[0].last_words}", expected, good=False))
            return
        report.add(Line(what, "they found each other", expected, good=True))
        status = _ready(pair[0], 2)
        answers = [node.complete(DENSE, _prompt(SHORT, 1), size.tokens) for node in pair]
    same = sum(answer["text"] == alone for answer in answers)
    what, expected = "Answers through either node", "both as one node's"
    report.add(Line(what, f"{same} of 2 as one node's", expected, good=same == len(answers)))
    report.add(Line("Speed of two stages", f"{(size.tokens - 1) / max(answers[1]['rest'], 1e-9):.1f} tokens/s"))
    for node in status["nodes"]:
        if link := node["link"]:
            kind = link["kind"] or "of unknown kind"
            rate = f", {format_bytes(link['bytes_per_second'])}/s" if link["bytes_per_second"] else ""
            report.add(Line(f"Link from {node['name']}", f"{link['interface']} ({kind}), {link['rtt_ms']} ms{rate}"))


def _count(node: Node) -> int:
    return sum(each["state"] not in ("failed", "left", "refused") for each in node.status()["nodes"])


def _ready(node: Node, stages: int) -> dict[str, Any]:
    """The status as soon as the model is served by so many stages. Raises PartFailed."""

    def ready() -> dict[str, Any] | None:
        status = node.status()
        rings: Sequence[Any] = [ring for model in status["models"] for ring in model["rings"]]
        served = status["state"] == "ready" and any(len(ring["stages"]) == stages for ring in rings)
        return status if served else None

    found = until(ready, 60, "the model is loaded")
    assert found
    return found


def _prompt(length: int, seed: int) -> list[int]:
    chosen = random.Random(seed)  # noqa: S311
    return [chosen.randrange(100, VOCABULARY) for _ in range(length)]
