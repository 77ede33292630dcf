"""The parts of a check that compute with MLX, each run in a process of its own: `python -m node.check.compute PART JSON`.

A part gets its arguments as JSON, and prints its result as one line of JSON.
"""

import importlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Generator, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from node.check.sizes import VOCABULARY
from node.core.frames import Open
from node.engine.compute import Compute
from node.engine.device import choose_device, device_memory, is_gpu
from node.engine.graph import weights_in
from node.engine.load import load_stage
from node.engine.plan import build
from node.engine.speed import measure
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, unpack
from node.model.layouts import Layout

TOKENIZER = Path(__file__).parents[1] / "builtin" / "pippin-demo"
GREEDY_STEPS = 20
CROSSINGS = 64
GROUP, BITS = 64, 4
Json = dict[str, Any]
T = TypeVar("T")


def device() -> Json:
    """What MLX says about the device."""
    return {
        "mlx": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "computes on": str(mx.default_device()),
        "is gpu": is_gpu(),
        "for models": device_memory(),
        "info": mx.device_info(),
    }


def bfloat16() -> bool:
    """Whether the device computes bfloat16, the format of most models. A virtual GPU of a Mac fails."""
    halves = mx.full((64, 64), 0.5, dtype=mx.bfloat16)
    return bool(mx.array_equal(halves @ halves, mx.full((64, 64), 16.0, dtype=mx.bfloat16)))


def write(configs: dict[str, Json], folder: str) -> None:
    """Write models of random weights, bfloat16 in 4 bits, each with the built-in model's tokenizer."""
    demo = json.loads((TOKENIZER / "config.json").read_text())
    added = {name: demo[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    added["quantization"] = {"group_size": GROUP, "bits": BITS}
    for name, config in configs.items():
        path = Path(folder) / name
        path.mkdir(parents=True)
        mx.random.seed(7)
        model = build(config)
        model.update(tree_map(_spread, model.parameters()))  # type: ignore[no-untyped-call]
        quantize(model, group_size=GROUP, bits=BITS)
        weights = dict(weights_in(model))
        mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": "mlx"})
        (path / "config.json").write_text(json.dumps(config | added))
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            shutil.copyfile(TOKENIZER / file, path / file)


def _spread(weight: mx.array) -> mx.array:
    """Random matrices, large enough for the output not to repeat the input; norms and the like as they are."""
    if weight.ndim > 1:
        weight = mx.random.normal(weight.shape, scale=1.5 / math.prod(weight.shape[1:]) ** 0.5)
    return weight.astype(mx.bfloat16)


def split(folder: str, cuts: Sequence[int]) -> Json:
    """Compare a model cut at these layers with the whole one: two chunks of a prompt, and greedy tokens."""
    whole, _ = load_model(Path(folder))
    caches = make_prompt_cache(whole)
    stages = [_load(folder, start, end) for start, end in pairwise(cuts)]
    for stage in stages:
        stage.lanes.apply(Open(0))
    steps = [_tokens(70, seed=1), _tokens(9, seed=2)]
    equal, chosen, farthest = 0, 0, 0.0
    count = len(steps) + GREEDY_STEPS
    for number in range(count):
        expected = whole(steps[number], cache=caches)
        hidden: tuple[mx.array, ...] = ()
        for stage in stages:  # as bytes, as between nodes
            hidden = unpack(pack(stage.run(0, steps[number], hidden)))
        found = stages[0].finish(hidden, every=True)
        best = mx.argmax(expected[:, -1:], axis=-1).astype(mx.int32)
        wide = expected.astype(mx.float32)
        spread = float(mx.std(wide))
        equal += bool(mx.array_equal(expected, found)) and spread > 0  # a model that says nothing proves nothing
        chosen += bool(mx.array_equal(best, mx.argmax(found[:, -1:], axis=-1)))
        farthest = max(farthest, float(mx.max(mx.abs(wide - found.astype(mx.float32)))) / spread)
        steps.append(best)
    return {"steps": count, "equal": equal, "chosen": chosen, "farthest": farthest}


def pool(folder: str, layers: int, tokens: int) -> Json:
    """Bytes of the buffers that MLX keeps for reuse, in the middle and at the end of a long answer."""
    compute = Compute()  # its thread sets the limits of a node
    compute.start()

    def answer() -> list[int]:
        stage = _load(folder, 0, layers)
        stage.lanes.apply(Open(0))
        step, held = _tokens(64, seed=3), []
        for number in range(1, tokens + 1):
            logits = stage.finish(stage.run(0, step))
            step = mx.argmax(logits, axis=-1, keepdims=True).astype(mx.int32)
            mx.eval(step)
            if number in (tokens // 2, tokens):
                held.append(int(mx.get_cache_memory()))
        return [*held, int(mx.get_active_memory())]

    try:
        middle, end, active = compute.submit(answer).result()
    finally:
        compute.stop()
    return {"middle": middle, "end": end, "active": active}


def rows(folder: str, layers: int) -> Json:
    """How many tokens of one session a step may have: in groups of equal bits, and the seconds of such steps."""
    found = _result(measure(_load(folder, 0, layers)))
    return {"groups": found.groups, "seconds": found.seconds}


def fence() -> float:
    """Seconds that a result takes from one stream of the device to another: on a GPU from there to the CPU, or back."""
    device = mx.default_stream(mx.default_device())
    streams = {True: device, False: mx.new_stream(mx.cpu)}

    def took(*, crossing: bool) -> float:
        begin, value = time.perf_counter(), mx.zeros((1,))
        for number in range(CROSSINGS):
            value = mx.add(value, 1, stream=streams[number % 2 == 0 or not crossing])
        mx.eval(value)
        return time.perf_counter() - begin

    least = {crossing: min(took(crossing=crossing) for _ in range(10)) for crossing in (False, True)}
    return max(0.0, least[True] - least[False]) / CROSSINGS


def stock(folder: str, prompts: Sequence[Sequence[int]], tokens: int) -> list[Json]:
    """Stock mlx-lm's times for these prompts: `first`, seconds to the first token, and `rest`, from there to the last."""
    generate: Any = importlib.import_module("mlx_lm.generate")  # `mlx_lm.generate` is a function of that name
    model, _ = load_model(Path(folder))
    results = []
    for prompt in prompts:
        begin = time.perf_counter()
        made = [
            (time.perf_counter(), int(token))
            for token, _ in generate.generate_step(mx.array(list(prompt)), model, max_tokens=tokens)
        ]
        results.append({"first": made[0][0] - begin, "rest": made[-1][0] - made[0][0], "tokens": [t for _, t in made]})
    return results


def _load(folder: str, start: int, end: int) -> Stage:
    return _result(load_stage(Path(folder), start, end, Layout(Path(folder)).weights.tensors))


def _result(pieces: Generator[float, None, T]) -> T:
    """Of a generator that runs in pieces, here without a pause."""
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            result: T = ended.value
            return result


def _tokens(length: int, seed: int) -> mx.array:
    """Random tokens, int32 [1, length]."""
    return mx.random.randint(100, VOCABULARY, (1, length), key=mx.random.key(seed)).astype(mx.int32)


PARTS = {part.__name__: part for part in (device, bfloat16, write, split, pool, rows, fence, stock)}


def main() -> None:
    part, arguments = sys.argv[1:]
    choose_device(os.environ.get("PIPPIN_DEVICE", ""))
    print(json.dumps(PARTS[part](**json.loads(arguments)), default=str))


if __name__ == "__main__":
    main()
