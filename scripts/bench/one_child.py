"""Stamps when the device works and when it has nothing to do; see one.py. Its argument is the model.

MLX has no clock of the device, so this process wraps the calls that begin and await work: after each begun evaluation a
probe of one number is evaluated, for which another thread waits.
"""

import asyncio
import importlib
import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import prompts
from mlx_lm.utils import load_model

from node.core.generation import GenerateRequest, Sampling
from node.core.models import ModelVersion
from node.core.rings import Fence, Ring, StageSpec
from node.engine.compute import Compute
from node.engine.faults import Faults
from node.engine.load import load_stage
from node.engine.runner import Runner
from node.model.layouts import Layout
from node.ring.driver import Driver
from node.ring.limits import RingLimits
from node.ring.requests import generate
from node.ring.scheduler import Scheduler

mlx_generate = importlib.import_module("mlx_lm.generate")  # `mlx_lm.generate` is a function of that name
NO_GRAMMARS: Any = None
CONTEXT = 8192


class Stamps:
    """The times in which work was begun and not ended, while the calls of MLX are wrapped."""

    def __init__(self) -> None:
        self.busy: list[tuple[float, float]] = []
        self._probes: queue.SimpleQueue[tuple[float, mx.array]] = queue.SimpleQueue()
        threading.Thread(target=self._wait, daemon=True).start()
        self._async_eval: Any = mx.async_eval
        module: Any = mx
        module.async_eval = self._begin
        for name in ("tolist", "item"):
            setattr(mx.array, name, self._read(getattr(mx.array, name)))

    def _begin(self, *args: Any) -> None:
        begun = time.perf_counter()
        self._async_eval(*args)
        first = args[0][0] if isinstance(args[0], tuple) and args[0] else args[0]
        if isinstance(first, mx.array):  # others are caches, to which a reference would cost a copy
            probe = first.sum()
            self._async_eval(probe)
            self._probes.put((begun, probe))

    def _wait(self) -> None:
        while True:
            begun, probe = self._probes.get()
            mx.eval(probe)
            self.busy.append((begun, time.perf_counter()))

    def _read(self, original: Callable[[mx.array], Any]) -> Callable[[mx.array], Any]:
        def read(array: mx.array) -> Any:
            begun = time.perf_counter()
            value = original(array)
            self.busy.append((begun, time.perf_counter()))
            return value

        return read

    def idle_us(self, begin: float, end: float, steps: int) -> float:
        """Idle µs for each step between two times."""
        time.sleep(0.5)  # until the last probe is stamped
        idle, until = 0.0, begin
        for begun, ended in sorted(self.busy):
            if begin <= begun <= end:
                idle += max(0.0, begun - until)
                until = max(until, ended)
        self.busy.clear()
        return idle / steps * 1e6


def of_stock(stamps: Stamps, path: Path, prompt: Sequence[int], tokens: int) -> float:
    model: Any = load_model(path)[0]
    times = [time.perf_counter() for _ in mlx_generate.generate_step(mx.array(list(prompt)), model, max_tokens=tokens)]
    mx.synchronize()
    return stamps.idle_us(times[4], times[-4], tokens - 8)


async def of_driver(stamps: Stamps, path: Path, prompt: Sequence[int], tokens: int) -> float:
    layers: int = json.loads((path / "config.json").read_text())["num_hidden_layers"]
    ring = Ring("m@1.1", ModelVersion("m"), (StageSpec("a", 0, layers),), CONTEXT, 1, fence=Fence(1, 1))
    compute = Compute()
    compute.start()
    stage = await compute.run_pieces(load_stage(path, 0, layers, Layout(path).weights.tensors))
    limits = RingLimits(context=CONTEXT, max_sessions=1, max_queue=4, max_rows=4, chunk=128, step_timeout_s=600)
    runner = Runner(stage, path, Faults())
    scheduler = Scheduler(limits, runner.plan, itertools.count(1 << 16), 1)
    driver = Driver(ring, scheduler, compute, runner, None, print, leftover={})
    task = asyncio.create_task(driver.run())
    request = GenerateRequest("r", "m", tuple(prompt), tokens, sampling=Sampling(temperature=0))
    times = [time.perf_counter() async for _ in generate(driver, NO_GRAMMARS, request)]
    task.cancel()
    await asyncio.wait([task])
    await compute.run(mx.synchronize)
    compute.stop()
    return stamps.idle_us(times[4], times[-4], tokens - 8)


def main() -> None:
    path = Path(sys.argv[1])
    stamps = Stamps()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompt = prompts.token_ids(asked["context"])
        stock = of_stock(stamps, path, prompt, asked["tokens"])
        driver = asyncio.run(of_driver(stamps, path, prompt, asked["tokens"]))
        print(json.dumps({"stock us": stock, "driver us": driver}), flush=True)


if __name__ == "__main__":
    main()
