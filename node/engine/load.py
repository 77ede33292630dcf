"""Loads a stage: of a model's files only what its layers need, into memory once.

It is done in pieces, each of them evaluated, as a node computes for its other rings in the same thread.
"""

import re
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_unflatten
from mlx_lm.utils import _get_classes, load_model

from node.core.errors import ModelBroken, ModelUnsupported
from node.core.frames import Open
from node.engine.device import PIECE_S, release_memory
from node.engine.dry_run import LENGTH, ROWS
from node.engine.files import check_weights, read_config, read_weight_map
from node.engine.ghosts import find_layers
from node.engine.plan import Plan, make_plan
from node.engine.stage import Stage
from node.engine.trace import weights_in

_WARM_UP = (8, 1)
"""Lengths of the steps that a new stage runs: a prefill and a decode use other kernels."""


def load_stage(directory: Path, start: int, end: int) -> Generator[float, None, Stage]:
    """Load layers [start, end) of the model in `directory`, and with start 0 embedding, final norm and head.

    Only the files that hold these need to be there. A generator, to be run in the compute thread: yields the share that is
    done, from 0 to 1, whenever other work may be done in between, and returns the stage. Closing it lets go of everything.

    Raises ModelUnsupported for a model or a cut that Pippin does not run, ModelBroken, naming what is at fault, when files
    are damaged or lack tensors.
    """
    config = read_config(directory)
    plan = make_plan(config)
    plan.check_stage(start, end)
    yield 0.0
    check_weights(directory)
    weight_map = read_weight_map(directory)
    model, found = _load_lazily(directory, weight_map, start, end)
    names = _own(model, find_layers(model), plan, start, end)
    missing = [name for name in names if name not in found]
    if missing:
        raise ModelBroken(
            f"{directory.name} lacks {len(missing)} of {len(names)} tensors of layers {start} to {end}: "
            + ", ".join(f"{name}{_file_of(name, weight_map)}" for name in missing[:3])
        )
    wrong = [f"{name} {found[name]}" for name in names if found[name]]
    if wrong:
        raise ModelBroken(f"{directory.name}: tensor {wrong[0]}{_file_of(wrong[0].split()[0], weight_map)}.")
    _hollow_rest(model, set(names))
    yield 0.0
    by_name = dict(weights_in(model))
    weights = [by_name[name] for name in names]
    del by_name
    dtype, size = _dtype(weights), sum(weight.nbytes for weight in weights)
    try:
        yield from _read(weights, directory)
        yield from _warm_up(model, plan, start, end, dtype)
    except BaseException:  # closed, too
        weights.clear()
        for _ in release_memory([model]):
            pass
        raise
    return Stage(model, plan, start, end, size)


def _load_lazily(directory: Path, weight_map: Mapping[str, str], start: int, end: int) -> tuple[Module, dict[str, str]]:
    """The model with weights that are not read yet; and by name those that come from files, with what is wrong or ""."""
    found: dict[str, str] = {}

    def classes(config: dict[str, Any]) -> tuple[type[Module], type]:
        base, args = _get_classes(config)

        class Checked(base):  # type: ignore[misc, valid-type]
            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                sanitize = getattr(super(), "sanitize", None)
                if sanitize is None:
                    return weights
                stand_ins = _stand_ins(weights, weight_map, dict(weights_in(self)), start, end)
                ids = {id(value) for value in stand_ins.values()}
                return {name: value for name, value in sanitize(weights | stand_ins).items() if id(value) not in ids}

            def load_weights(self, weights: list[tuple[str, mx.array]], *, strict: bool = True) -> Module:
                shapes = {name: value.shape for name, value in weights_in(self)}
                for name, value in weights:
                    good = value.shape == shapes.get(name, value.shape)
                    found[name] = "" if good else f"has shape {value.shape} instead of {shapes[name]}"
                loaded: Module = super().load_weights(weights, strict=strict)
                return loaded

        return Checked, args

    try:
        model, _ = load_model(directory, lazy=True, strict=False, get_model_classes=classes)
    except (RuntimeError, OSError, KeyError, IndexError, StopIteration, AttributeError, TypeError) as error:
        raise ModelBroken(f"The weights of {directory.name} cannot be loaded: {error!r}") from error
    except ValueError as error:
        raise ModelUnsupported(f"mlx-lm cannot load {directory.name}: {error}") from error
    return model, found


def _stand_ins(
    weights: Mapping[str, mx.array],
    weight_map: Mapping[str, str],
    parameters: Mapping[str, mx.array],
    start: int,
    end: int,
) -> dict[str, mx.array]:
    """Zeros that take no memory for the tensors of other stages, whose files are not here.

    Some models' `sanitize` looks for tensors of the first layer to tell the format, or goes through all layers. The index
    knows the names; shapes are those of the same tensor in another layer.
    """
    like = {_NUMBER.sub(".#", name, count=1): value for name, value in weights.items()}
    like |= {_NUMBER.sub(".#", name, count=1): value for name, value in weights.items() if f".{start}." in name}
    made = {}
    for name in weight_map.keys() - weights.keys():
        number = _NUMBER.search(name)
        ours = start <= int(number[1]) < end if number else start == 0
        peer = like.get(_NUMBER.sub(".#", name, count=1), parameters.get(name))
        if peer is not None and not ours:
            made[name] = mx.broadcast_to(mx.zeros((), peer.dtype), peer.shape)
    return made


_NUMBER = re.compile(r"\.(\d+)(?=\.)")


def _own(model: Module, layers: list[Module], plan: Plan, start: int, end: int) -> list[str]:
    """The names of the stage's tensors: those of its layers, and those outside of layers that it needs."""
    layer_of = {id(value): index for index, layer in enumerate(layers) for _, value in weights_in(layer)}

    def is_own(name: str, value: mx.array) -> bool:
        layer = layer_of.get(id(value))
        if layer is None:
            return start == 0 or name.rpartition(".")[0] in plan.shared
        return start <= layer < end

    return [name for name, value in weights_in(model) if is_own(name, value)]


def _file_of(name: str, weight_map: Mapping[str, str]) -> str:
    return f" (in {weight_map[name]})" if name in weight_map else ""


def _hollow_rest(model: Module, own: set[str]) -> None:
    """Let go of all other weights: zeros without memory take their place.

    A stage computes nothing with them, but models look at their shapes and dtypes on the way.
    """
    parameters = weights_in(model)
    dtype = _dtype([value for name, value in parameters if name in own])
    rest = []
    for name, value in parameters:
        if name not in own:
            kept = dtype if mx.issubdtype(value.dtype, mx.floating) else value.dtype
            rest.append((name, mx.broadcast_to(mx.zeros((), kept), value.shape)))
    model.update(tree_unflatten(rest), strict=False)


def _dtype(weights: list[mx.array]) -> mx.Dtype:
    """Of the stage's activations: what most of its weights are in that are not packed integers."""
    counts = Counter(weight.dtype for weight in weights if mx.issubdtype(weight.dtype, mx.floating))
    return counts.most_common(1)[0][0] if counts else mx.float32


def _read(weights: list[mx.array], directory: Path) -> Iterator[float]:
    """Read the weights, in pieces, so that also what a conversion takes beside them is freed in between."""
    total = sum(weight.nbytes for weight in weights) or 1
    done, begun = 0, time.perf_counter()
    for weight in weights:
        try:
            mx.eval(weight)
        except (RuntimeError, ValueError) as error:
            raise ModelBroken(f"The weights of {directory.name} cannot be read: {error}") from error
        done += weight.nbytes
        if time.perf_counter() - begun >= PIECE_S:
            mx.clear_cache()
            yield min(done / total, 0.99)
            begun = time.perf_counter()
    mx.clear_cache()


def _warm_up(model: Module, plan: Plan, start: int, end: int, dtype: mx.Dtype) -> Iterator[float]:
    """Run two steps, so that kernels are compiled before the first token is waited for: of each layer alone, in pieces."""
    cuts = [start, *(cut for cut in plan.cuts if start < cut < end), end]
    for first, last in pairwise(cuts):
        layer, lane = Stage(model, plan, first, last, 0), -1
        layer.lanes.apply(Open(lane))
        for length in _WARM_UP:
            tokens = mx.zeros((1, length), mx.int32)
            if first == 0:
                mx.eval(layer.begin(lane, tokens))
            else:
                mx.eval(layer.run(lane, _zeros(plan, first, length, dtype), tokens))
        layer.lanes.clear()
        yield 0.99
        if first == 0:
            mx.eval(layer.finish(_zeros(plan, plan.layers, 1, dtype)))
            mx.clear_cache()
            yield 0.99


def _zeros(plan: Plan, cut: int, length: int, dtype: mx.Dtype) -> list[mx.array]:
    """What travels at a cut, of one row."""
    sizes = {ROWS: 1, LENGTH: length}
    return [mx.zeros([sizes.get(size, size) for size in shape], dtype) for shape in plan.shapes[cut]]
