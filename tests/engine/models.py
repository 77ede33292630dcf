"""Makes tiny models on disk, and runs them cut into stages or whole.

Most tests share the models of a process, as writing and loading them takes longer than the tests' own steps.
"""

import atexit
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

import mlx.core as mx
from mlx import nn
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from node.core.frames import CacheOp, Open
from node.core.generation import Sampling
from node.engine.architectures import is_of_mlx_vlm, module_of
from node.engine.lanes import LeftoverKv
from node.engine.load import load_stage
from node.engine.plan import Plan, build, make_plan
from node.engine.sampling import Draw, History, Sampled, begin_draw
from node.engine.stage import Stage
from node.engine.tensor_codec import pack, unpack
from node.model.config import read_config
from node.model.file_names import DESCRIPTION
from node.model.layouts import Layout
from node.model.weights import layer_of
from tests.engine.configurations import BASE
from tests.engine.vlm import WholeText

PROMPT_TOKENS = 128
SHARED = Path(mkdtemp(prefix="pippin-models-"))
"""Folder of the models that the tests of this process share."""
atexit.register(shutil.rmtree, SHARED, ignore_errors=True)
T = TypeVar("T")


def shared_model(config: dict[str, Any], *, bits: int = 0, mode: str = "affine", dtype: mx.Dtype = mx.float32) -> Path:
    """A model as of `write_model`, which this process writes once. Tests must change neither its files nor its weights."""
    return _shared_model(json.dumps(config), bits, mode, dtype)


@cache
def _shared_model(config_json: str, bits: int, mode: str, dtype: mx.Dtype) -> Path:
    return write_model(Path(mkdtemp(dir=SHARED)), json.loads(config_json), bits=bits, mode=mode, dtype=dtype)


def is_shared(directory: Path) -> bool:
    return directory.parent == SHARED


def write_model(
    directory: Path,
    config: dict[str, Any],
    *,
    bits: int = 0,
    mode: str = "affine",
    others: Mapping[str, int] | None = None,
    layer_files: bool = False,
    dtype: mx.Dtype = mx.float32,
) -> Path:
    """Write a model of random weights, the same for the same config.

    Its matrices have `bits` bits in MLX's `mode` of quantization, those in `others`, by path, the number given there; 0 means not
    quantized. With `layer_files`, each layer has its own file.
    """
    mx.random.seed(7)
    model = build(config)
    # Weights that begin as zeros or ones would hide a layer that is left out.
    model.update(tree_map(lambda w: shaken(w, dtype), model.parameters()))
    if bits:
        group = 16 if mode == "nvfp4" else 32
        own = {path: {"group_size": group, "bits": count} if count else False for path, count in (others or {}).items()}
        config = config | {"quantization": {"group_size": group, "bits": bits, "mode": mode} | own}
        of_model = getattr(model, "quant_predicate", None) or (lambda *_: True)

        def chosen(path: str, module: Module) -> Any:
            can = hasattr(module, "to_quantized") and module.weight.shape[-1] % group == 0 and of_model(path, module)
            return own.get(path, bool(can))

        nn.quantize(model, group_size=group, bits=bits, mode=mode, class_predicate=chosen)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(directory / "model.safetensors"), dict(tree_flatten(model.parameters())))
    if layer_files:
        into_files(directory, by_layer)
    return directory


def shaken(weight: mx.array, dtype: mx.Dtype) -> mx.array:
    if weight.dtype == mx.int32:  # a table of experts
        return mx.random.randint(0, BASE["n_routed_experts"], weight.shape).astype(mx.int32)
    if not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    return (weight + 0.1 * mx.random.normal(weight.shape)).astype(dtype)


def into_files(directory: Path, file_of: Callable[[int, str], str]) -> None:
    """Divide a model's single file into several: `file_of` names the file of the n-th tensor, given its name."""
    path = directory / "model.safetensors"
    weights = mx.load(str(path))
    mx.eval(weights)
    path.unlink()
    files: dict[str, dict[str, mx.array]] = {}
    for number, name in enumerate(sorted(weights)):
        files.setdefault(f"model-{file_of(number, name)}.safetensors", {})[name] = weights[name]
    for file, held in files.items():
        mx.save_safetensors(str(directory / file), held)
    weight_map = {name: file for file, held in files.items() for name in held}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def by_layer(_: int, name: str) -> str:
    """One file for each layer, and one for tensors outside of the layers."""
    layer = layer_of(name)
    return "ends" if layer is None else str(layer)


def fetched(source: Path, target: Path, start: int, end: int) -> Path:
    """Make a folder with only the files that a node fetches for a stage of the model."""
    weights, plan = Layout(source).weights, make_plan(read_config(source))
    target.mkdir()
    (target / DESCRIPTION).write_bytes(weights.to_json())
    for name in ("config.json", *weights.files_for(start, end, start == 0 or bool(plan.shared))):
        os.link(source / name, target / name)
    return target


class Whole:
    """The stock model with its own caches: the reference."""

    def __init__(self, directory: Path, caches: Callable[[Module], list[Any]] = make_prompt_cache) -> None:
        self.model = _shared_whole(directory) if is_shared(directory) else load_whole(directory)
        self._make_caches = caches
        self.caches = caches(self.model)

    def step(self, tokens: mx.array) -> mx.array:
        """Logits [rows, length, vocabulary]."""
        logits: mx.array = self.model(tokens, cache=self.caches)
        mx.eval(logits, [cache.state for cache in self.caches])
        return logits

    def fresh(self) -> "Whole":
        """The same model with empty caches."""
        other = object.__new__(Whole)
        other.model, other.caches = self.model, self._make_caches(self.model)
        other._make_caches = self._make_caches
        return other


def load_whole(directory: Path) -> Any:
    """The model of mlx-lm, or mlx-vlm's of a type that mlx-lm lacks."""
    return WholeText(directory) if is_of_mlx_vlm(module_of(read_config(directory))) else load_model(directory)[0]


_shared_whole = cache(load_whole)


def plan_of(directory: Path, kv_bits: int = 0) -> Plan:
    """The plan with which the model's stages are loaded."""
    return _shared_plan(directory, kv_bits) if is_shared(directory) else _plan(directory, kv_bits)


def _plan(directory: Path, kv_bits: int) -> Plan:
    return make_plan(read_config(directory), Layout(directory).weights.total_bytes, kv_bits)


_shared_plan = cache(_plan)


def load(directory: Path, start: int, end: int, kv_bits: int = 0) -> Stage:
    """Load a stage in one go. One of a shared model is loaded once; its caches are always new."""
    if not is_shared(directory):
        return at_a_stretch(pieces(directory, start, end, kv_bits))
    stage = _shared_stage(directory, start, end, kv_bits).sibling()
    stage.leftover = LeftoverKv()
    return stage


@cache
def _shared_stage(directory: Path, start: int, end: int, kv_bits: int) -> Stage:
    return at_a_stretch(pieces(directory, start, end, kv_bits))


def pieces(
    directory: Path, start: int, end: int, kv_bits: int = 0, loaded: Sequence[Stage] = ()
) -> Generator[float, None, Stage]:
    """Return the load of a stage before its first piece."""
    return load_stage(directory, start, end, Layout(directory).weights.tensors, kv_bits, loaded=loaded)


def at_a_stretch(pieces: Generator[float, None, T]) -> T:
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            result: T = ended.value
            return result


class Ring:
    """Stages, each with its own model object, that pass each other bytes."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.apply(Open(0))

    def apply(self, *ops: CacheOp) -> None:
        for stage in self.stages:
            for op in ops:
                stage.lanes.apply(op)

    def step(
        self, tokens: mx.array, lane: int = 0, lengths: Sequence[int] = (), *, every: bool = True, unverified: int = 0
    ) -> mx.array:
        """Logits [rows, length, vocabulary], or of the last tokens [rows, vocabulary]."""
        return self.stages[0].finish(self._layers(tokens, lane, lengths, unverified), lengths, every=every)

    def hidden(self, tokens: mx.array, lane: int = 0) -> mx.array:
        """After the final norm [rows, length, width]."""
        return self.stages[0].hidden(self._layers(tokens, lane, ()))

    def _layers(self, tokens: mx.array, lane: int, lengths: Sequence[int], unverified: int = 0) -> tuple[mx.array, ...]:
        driver = self.stages[0]
        hidden = driver.run(lane, tokens, (), lengths, unverified=unverified)
        told = tokens if driver.plan.reads_tokens else None
        for stage in self.stages[1:]:
            hidden = stage.run(lane, told, unpack(pack(hidden)), lengths, unverified=unverified)
        return unpack(pack(hidden))


class Stages:
    """The stages of one model on disk, each loaded once."""

    def __init__(self, directory: Path, kv_bits: int = 0) -> None:
        self._directory, self._kv_bits = directory, kv_bits
        self._loaded: dict[tuple[int, int], Stage] = {}

    def ring(self, *bounds: int) -> Ring:
        """The ring cut at these layers, from 0 to the number of layers."""
        pairs = list(pairwise(bounds))
        for pair in pairs:
            if pair not in self._loaded:
                self._loaded[pair] = load(self._directory, *pair, self._kv_bits)
        return Ring([self._loaded[pair] for pair in pairs])


def prompt(length: int, seed: int = 1) -> mx.array:
    """Random tokens, int32 [1, length]."""
    return mx.random.randint(0, PROMPT_TOKENS, (1, length), key=mx.random.key(seed)).astype(mx.int32)


def likeliest(logits: mx.array) -> mx.array:
    """The greedy choice after the last position, int32 [rows, 1]."""
    return mx.argmax(logits[:, -1:], axis=-1).astype(mx.int32)


def same(a: mx.array, b: mx.array) -> bool:
    """Whether two arrays are equal bit by bit. (Some models ban tokens with minus infinity.)"""
    return a.shape == b.shape and a.dtype == b.dtype and bool(mx.array_equal(a, b))


def sample(
    logits: mx.array,
    params: Sequence[Sampling],
    positions: Sequence[int],
    histories: Sequence[History],
) -> list[Sampled]:
    """Draw one token for each row of logits [rows, vocabulary], and read them."""
    draws = [Draw(*each) for each in zip(params, positions, histories, strict=True)]
    return begin_draw(logits, draws).read()
