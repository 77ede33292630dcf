"""A ring of `node` processes on this machine, each on its own core, that split a model; and a model for it."""

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
import prompts
import sse
from figures import ROOT
from sse import Answer, Json

START_S = 180.0
CLIENTS = 300


def make_model(preset: str, directory: Path, bits: int = 0, mtp: float = 0) -> Path:
    """Return a folder with a model of random weights, which is kept for the next run.

    `bits`: of the weights, unless 0. `mtp`: how often the MTP layer is right; 0: it has none.
    """
    model = directory / (preset + (f"-{bits}bit" if bits else "") + (f"-mtp-{mtp}" if mtp else ""))
    if not (model / "config.json").exists():
        command = [sys.executable, str(ROOT / "scripts" / "make_model.py"), "--preset", preset, "--out", str(model)]
        command += ["--quantize", str(bits)] if bits else []
        command += ["--mtp", str(mtp)] if mtp else []
        subprocess.run(command, check=True, timeout=600, env=processes.environment())
    return model


@dataclass(frozen=True, slots=True)
class NodeRing:
    url: str
    model: str
    cores: tuple[int | None, ...]
    pids: tuple[int, ...]
    """Process ids of the stages, in the order of the ring."""
    keys: Iterator[str]
    """API keys, one for each request: a client of its own, so that no answer is guessed from an earlier one."""

    async def stream(
        self, prompt: Sequence[int], tokens: int, prediction: Sequence[int] = (), *, ignore_eos: bool = True
    ) -> Answer:
        async with sse.client(next(self.keys)) as http:
            options: Json = {"stream_options": {"include_usage": True}, "ignore_eos": ignore_eos}
            if prediction:
                options["prediction"] = {"type": "content", "content": prediction}
            return await sse.stream(http, f"{self.url}/completions", self._body(prompt, tokens) | options)

    async def batch(self, batch: Sequence[Sequence[int]], tokens: int) -> float:
        """Return the seconds for all prompts at once. Answers are not streamed: streams are the gateway's cost."""
        async with sse.client(next(self.keys)) as http:
            begin = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                url = f"{self.url}/completions"
                tasks = [group.create_task(sse.whole(http, url, self._body(prompt, tokens))) for prompt in batch]
            seconds = time.perf_counter() - begin
        counts = [task.result()["usage"]["completion_tokens"] for task in tasks]
        if set(counts) != {tokens}:
            raise SystemExit(f"Of {tokens} tokens each, the ring gave {sorted(set(counts))}.")
        return seconds

    def _body(self, prompt: Sequence[int], tokens: int) -> Json:
        asked = {"model": self.model, "prompt": list(prompt), "max_tokens": tokens}
        return {**asked, "temperature": 0, "ignore_eos": True}

    async def visible_prompt(self, length: int) -> list[int]:
        """Return a prompt whose first greedy token is text. Half a character would delay the first event."""
        for _ in range(50):
            prompt = prompts.token_ids(length)
            async with sse.client(next(self.keys)) as http:
                answer = await sse.whole(http, f"{self.url}/completions", self._body(prompt, 1))
            if answer["choices"][0]["text"]:
                return prompt
        raise SystemExit("The model's first token is never text.")


@contextlib.contextmanager
def running(
    stages: int,
    model: Path,
    scratch: Path,
    preload: Path | None,
    *,
    context: int = 4096,
    pinned: bool = True,
    with_keys: bool = True,
    from_two: bool = False,
    by_speed: bool = False,
    more: Sequence[str] = (),
    data: str = "",
) -> Iterator[NodeRing]:
    """Start the nodes and wait until they hold the model; at the end, stop them.

    `pinned`: each to a core of its own, the driver to the first one. `with_keys`: requests need an API key. `from_two`: see
    node_from_two.py. `by_speed`: load the model once more when its speed on each node is known, as that divides its layers.
    `more`: options of all nodes. `data`: begins the names of their folders in `scratch`, so that a later ring finds those of
    an earlier one; empty: other rings have others.
    """
    program = (str(Path(__file__).with_name("node_from_two.py")),) if from_two else ("-m", "node")
    keys = [secrets.token_hex(16) for _ in range(CLIENTS)] if with_keys else [""]
    key_file = scratch / "keys"
    key_file.touch(0o600)
    key_file.write_text("\n".join(keys))
    data = data or f"ring-of-{stages}-data"
    cores = assign(stages, processes.cores() if pinned else ())
    ports = _free_ports(2 * stages)
    nodes: list[subprocess.Popen[bytes]] = []
    logs = [scratch / f"ring-of-{stages}-node-{number}.log" for number in range(stages)]
    try:
        for number, log in enumerate(logs):
            arguments = [
                *("--name", f"node-{number}", "--cluster", f"bench-{os.getpid()}", "--host", "127.0.0.1", "--no-mdns"),
                *("--data-dir", str(scratch / f"{data}-{number}")),
                *("--api-port", str(ports[number]), "--grpc-port", str(ports[stages + number])),
                *(["--peer", f"127.0.0.1:{ports[stages]}"] if number else []),
                *("--models-dir", str(model.parent), "--model", model.name, "--stages", str(stages)),
                *("--context", str(context)),
                *(["--api-key-file", str(key_file)] if with_keys else []),
                *more,
            ]
            with processes.on_cores([core] if (core := cores[number]) is not None else []), log.open("wb") as out:
                nodes.append(processes.start_node(arguments, out, preload, program))
        url = f"http://127.0.0.1:{ports[0]}/cluster"
        order = _wait_ready(url, keys[0], stages, nodes, logs)
        if by_speed:
            _wait_ready(url, keys[0], stages, nodes, logs, measured=True)
            for command in ("unload", "load"):
                _ask(f"{url}/models/{model.name}/{command}", keys[0], {}, timeout=START_S)
            order = _wait_ready(url, keys[0], stages, nodes, logs)
        for number, core in zip(order, cores, strict=True):
            processes.pin(nodes[number].pid, core)
        pids = tuple(nodes[number].pid for number in order)
        yield NodeRing(f"http://127.0.0.1:{ports[order[0]]}/v1", model.name, tuple(cores), pids, itertools.cycle(keys))
    finally:
        processes.end(nodes)


def assign(stages: int, cores: Sequence[int]) -> list[int | None]:
    """Return a core for each stage. If there are too few, the driver keeps one of its own and the others share.

    That is fair for a single stream, of which only one stage computes at a time, but not for several.
    """
    if not cores:
        return [None] * stages
    if len(cores) >= stages:
        return list(cores[:stages])
    others = cores[1:] or cores
    return [cores[0], *(others[index % len(others)] for index in range(stages - 1))]


def _ask(url: str, key: str, body: Json | None = None, timeout: float = 2) -> Json:
    """`body`: of a POST."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout) as answer:  # noqa: S310 - our own URL
        found: Json = json.load(answer)
        return found


def _wait_ready(
    url: str,
    key: str,
    count: int,
    nodes: Sequence[subprocess.Popen[bytes]],
    logs: Sequence[Path],
    *,
    measured: bool = False,
) -> list[int]:
    """Return the numbers of the nodes in the order of the ring, the driver first. `measured`: wait until all know their speed."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and all(node.poll() is None for node in nodes):
        with contextlib.suppress(OSError):
            status = _ask(f"{url}/status", key)
            rings = [ring for model in status["models"] for ring in model["rings"] if len(ring["stages"]) == count]
            is_due = not measured or all(node["speeds"] for node in status["nodes"])
            if status["state"] == "ready" and rings and is_due:
                names = {node["id"]: node["name"] for node in status["nodes"]}
                return [int(names[stage["node"]].removeprefix("node-")) for stage in rings[0]["stages"]]
        time.sleep(0.2)
    tail = "\n".join(line for log in logs for line in [f"-- {log}", *log.read_text().splitlines()[-15:]])
    raise SystemExit(f"The ring of {count} did not start.\n{tail}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
