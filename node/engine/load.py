"""Loads a stage: reads only the weights of its layers, each into memory once; those that are there it takes.

Loading is divided into pieces, as the node's other rings compute in the same thread.
"""

import json
import logging
import time
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_unflatten
from mlx_lm.utils import _get_classes, load_model

from node.core.errors import ModelBroken, ModelUnsupported, naming
from node.core.mlx_errors import MLX_ERRORS
from node.core.models import TensorHeader
from node.core.units import format_bytes
from node.engine.architectures import UNPROVEN_ON_METAL
from node.engine.device import PIECE_S, is_metal, release_memory
from node.engine.ghosts import find_layers
from node.engine.graph import sources, weights_in
from node.engine.mtp import Mtp, find_mtp, with_ends
from node.engine.plan import Plan, make_plan
from node.engine.rotation import Rotation
from node.engine.stage import Stage, Weight
from node.engine.tower import Tower
from node.engine.warm_up import warm_up
from node.engine.wiring import Wiring
from node.model.config import read_config, read_picture_form
from node.model.picture_form import PictureForm
from node.model.weights import is_tower

log = logging.getLogger(__name__)

_MAX_GROUP = 256 * 2**20
"""Maximum bytes of the tensors that are read at once. MLX has four threads that read, and each reads up to 32 MB of a
tensor at a time."""

_DTYPES = {
    "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16, "U32": mx.uint32,
    "I32": mx.int32, "U64": mx.uint64, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32,
    "C64": mx.complex64, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8,
}  # fmt: skip
"""MLX's dtype for each dtype of safetensors; MLX loads no others."""


def load_stage(
    directory: Path,
    start: int,
    end: int,
    tensors: Mapping[str, TensorHeader],
    kv_bits: int = 0,
    wiring: Wiring | None = None,
    *,
    unproven: bool = False,
    loaded: Sequence[Stage] = (),
) -> Generator[float, None, Stage]:
    """Load layers [start, end) of the model in `directory`, and with start 0 embedding, final norm and head. The layer after
    the last one is the MTP layer, of which the stage is a model of its own, see node.engine.mtp.

    Only the files with these weights need to be there. `tensors`: all tensors of the model, by name. `kv_bits`: bits of
    a number of the KV, or 0 for the dtype of the activations. `wiring`: of the weights; None: they are not wired.
    `unproven`: as of `make_plan`. `loaded`: other stages of the same model, whose weights this one shares. A generator of
    pieces, for `Compute.run_pieces`: yields the progress from 0 to 1, and returns the stage. Closing it frees all memory.

    Raises ModelUnsupported for an unsupported model or cut, and ModelBroken, which names the file or tensor, for
    damaged files and for missing or unknown tensors.
    """
    config, size = read_config(directory), sum(tensor.nbytes for tensor in tensors.values())
    mtp = find_mtp(config, tensors)
    if is_mtp := mtp is not None and start == mtp.layers:
        config, start, end = mtp.config, 0, 1
    plan = make_plan(config, size, kv_bits, unproven=unproven)
    plan.check_stage(start, end)
    _warn_if_unproven(directory.name, plan.model_type)
    yield 0.0
    scalars: dict[mx.Dtype, mx.array] = {}
    form = None if is_mtp else read_picture_form(directory, config)
    model = _load_lazily(directory, tensors, scalars, mtp, is_mtp=is_mtp, form=form if start == 0 else None)
    if form and form.in_axes:
        _prepare_axes(model, directory, start, end, config)
    own = own_weights(model, plan, start, end)
    free_others(model, own)
    # An MTP layer is a model of its own, with names that are those of other weights in the whole one.
    weights = {} if is_mtp else _take(model, own, loaded)
    loaded = ()  # they may be unloaded meanwhile
    unread = {name: weight for name, weight in own.items() if name not in weights}
    stand_ins = list(scalars.values())
    if stand_ins and sources([list(unread.values())], stand_ins)[0]:
        lacking = [name for name, weight in unread.items() if sources([[weight]], stand_ins)[0]]
        raise ModelBroken(
            f"{directory.name}: the files of layers {start}-{end - 1} are not all here: "
            f"{len(lacking)} of {len(own)} tensors are in others: {_examples(lacking, tensors)}"
        )
    del own
    layer_of = _layers_of(model)
    yield 0.0
    wired = 0
    try:
        for share, group, newly_wired in _read(unread, directory, wiring):
            wired += newly_wired
            weights |= _held(group, newly_wired, layer_of)
            del group
            yield share
        try:
            yield from warm_up(model, plan, start, end)
        except (IndexError, KeyError, TypeError, ValueError) as error:  # a RuntimeError may be the device's own
            raise ModelBroken(f"Layers {start}-{end - 1} of {directory.name} cannot be computed: {error!r}") from error
    except BaseException:  # GeneratorExit, too
        unread.clear()
        for _ in release_memory([model]):
            pass
        if wiring and wired:
            wiring.release(wired)
        raise
    return Stage(model, plan, start, end, weights)


def _prepare_axes(model: Any, directory: Path, start: int, end: int, config: Mapping[str, Any]) -> None:
    """Without positions in three axes, the model has no use of its tower."""
    try:
        model.rotation = Rotation(list(find_layers(model))[start:end], config.get("text_config") or config)
    except ModelUnsupported as error:
        log.warning("%s takes no pictures here: %s", directory.name, error)
        if "tower" in model:
            del model.tower


def _warn_if_unproven(model: str, architecture: str) -> None:
    kernel = UNPROVEN_ON_METAL.get(architecture)
    if kernel and is_metal():
        log.warning(
            "%s (%s) computes with a Metal kernel of its own (%s), which was not tested with Pippin. `node --check` "
            "tests it on this Mac.",
            model,
            architecture,
            kernel,
        )


def _load_lazily(
    directory: Path,
    tensors: Mapping[str, TensorHeader],
    scalars: dict[mx.Dtype, mx.array],
    mtp: Mtp | None,
    *,
    is_mtp: bool,
    form: PictureForm | None,
) -> Module:
    """Load the complete model with mlx-lm, or its MTP layer, without reading weights. `mtp`: the layer, if the model has one. With
    a `form` of pictures it has a `tower`, if mlx-vlm is here.

    A tensor whose file is missing is replaced by a broadcast one of the `scalars`: mlx-lm guesses a checkpoint's
    format, and which modules are quantized, from the tensors that it gets.

    Raises ModelBroken unless the files have exactly the tensors of the model.
    """
    held = _lazy_tensors(directory, tensors, scalars)
    of_tower = {name: tensor for name, tensor in held.items() if is_tower(name)} if form else {}

    def classes(config: dict[str, Any]) -> tuple[type[Module], type]:
        base, args = _get_classes(config)

        class Checked(base):  # type: ignore[misc, valid-type]
            def __init__(self, arguments: Any) -> None:
                super().__init__(arguments)
                if mtp and is_mtp:
                    with_ends(self, mtp)

            def sanitize(self, _weights: dict[str, mx.array]) -> dict[str, mx.array]:
                sanitize = getattr(super(), "sanitize", None)
                if mtp and is_mtp:
                    return mtp.sanitized(sanitize, held)
                kept = mtp.without(held) if mtp else held
                found: dict[str, mx.array] = sanitize(kept) if sanitize else kept
                return found

            def load_weights(self, weights: list[tuple[str, mx.array]], *, strict: bool = True) -> Module:
                _check_tensors(directory, tensors, dict(weights), dict(weights_in(self)))
                loaded: Module = super().load_weights(weights, strict=strict)
                return loaded

        return Checked, args

    model: Module
    try:
        model, _ = load_model(
            directory,
            lazy=True,
            strict=False,
            model_config=mtp.config if mtp and is_mtp else None,
            get_model_classes=classes,
        )
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelBroken(f"A small file of {directory.name} is damaged: {naming(error, directory)}") from error
    except ValueError as error:
        raise ModelUnsupported(f"mlx-lm cannot load {directory.name}: {naming(error, directory)}") from error
    except MLX_ERRORS as error:
        raise ModelBroken(
            f"The weights of {directory.name} cannot be loaded: {naming(repr(error), directory)}"
        ) from error
    finally:
        held.clear()  # the model's class refers to it
    if form and of_tower:
        try:
            model.tower = Tower(read_config(directory), form, of_tower)
        except (ModelUnsupported, ModelBroken) as error:
            log.warning("%s takes no pictures here: %s", directory.name, error)
    return model


def _lazy_tensors(
    directory: Path, tensors: Mapping[str, TensorHeader], scalars: dict[mx.Dtype, mx.array]
) -> dict[str, mx.array]:
    """All tensors of the model, not read yet, with stand-ins for those in missing files."""
    held: dict[str, mx.array] = {}
    for file in sorted({tensor.file for tensor in tensors.values()}):
        if (directory / file).is_file():
            try:
                held |= cast(dict[str, mx.array], mx.load(str(directory / file)))
            except MLX_ERRORS as error:
                raise ModelBroken(f"{file} of {directory.name} cannot be loaded: {naming(error, directory)}") from error
    for name, tensor in tensors.items():
        if name not in held:
            dtype = _DTYPES.get(tensor.dtype)
            if dtype is None:
                raise ModelUnsupported(f"MLX cannot load {name} of {directory.name}, which is in {tensor.dtype}.")
            held[name] = mx.broadcast_to(scalars.setdefault(dtype, mx.zeros((), dtype)), tensor.shape)
    return held


def _check_tensors(
    directory: Path, tensors: Mapping[str, TensorHeader], given: Mapping[str, mx.array], taken: Mapping[str, mx.array]
) -> None:
    """Raises ModelBroken unless the `given` tensors have the names and shapes of the model's, which are `taken`."""
    if missing := [name for name in taken if name not in given]:
        raise ModelBroken(
            f"{directory.name} lacks {len(missing)} of {len(taken)} tensors: {_examples(missing, tensors)}"
        )
    if surplus := [name for name in given if name not in taken]:
        raise ModelBroken(
            f"{directory.name} has {len(surplus)} tensors that the model of its config.json does not take: "
            f"{_examples(surplus, tensors)}",
            hint="Fetch the model again, or check that config.json belongs to these files.",
        )
    for name, value in given.items():
        if value.shape != taken[name].shape:
            raise ModelBroken(
                f"{directory.name}: tensor {_examples([name], tensors)} has shape {value.shape} instead of "
                f"{taken[name].shape}."
            )


def _examples(names: Sequence[str], tensors: Mapping[str, TensorHeader]) -> str:
    """The first names, with their files, for an error."""
    return ", ".join(f"{name} (in {tensors[name].file})" if name in tensors else name for name in names[:3])


def own_weights(model: Module, plan: Plan, start: int, end: int) -> dict[str, mx.array]:
    """The stage's weights: those of its layers, and those outside of layers that it needs."""
    layer_of = _layers_of(model)

    def is_own(name: str, value: mx.array) -> bool:
        layer = layer_of.get(id(value))
        if layer is None:
            return start == 0 or name.rpartition(".")[0] in plan.shared
        return start <= layer < end

    return {name: value for name, value in weights_in(model) if is_own(name, value)}


def _layers_of(model: Module) -> dict[int, int]:
    """The layer of each weight that is in one, by its id."""
    return {id(value): index for index, layer in enumerate(find_layers(model)) for _, value in weights_in(layer)}


def _take(model: Module, names: Container[str], loaded: Sequence[Stage]) -> dict[str, Weight]:
    """Give the model those of these weights that another stage has in memory."""
    taken: dict[str, Weight] = {}
    for stage in loaded:
        # One that is being unloaded has lost some already.
        lent = [
            (name, value)
            for name, value in weights_in(stage.model)
            if name in names and name in stage.weights and name not in taken
        ]
        model.update(tree_unflatten(lent), strict=False)
        taken |= {name: stage.weights[name] for name, _ in lent}
    return taken


def _held(group: Mapping[str, mx.array], wired: int, layer_of: Mapping[int, int]) -> dict[str, Weight]:
    """What is known of weights that were read together, of which so many bytes are wired."""
    held, before, total = {}, 0, sum(weight.nbytes for weight in group.values()) or 1
    for name, weight in group.items():
        done = before + weight.nbytes
        held[name] = Weight(weight.nbytes, wired * done // total - wired * before // total, layer_of.get(id(weight)))
        before = done
    return held


def free_others(model: Module, own: Mapping[str, mx.array]) -> None:
    """Replace all other weights by broadcast zeros, as models read their shapes and dtypes."""
    rest = [(name, weight) for name, weight in weights_in(model) if name not in own]
    zeros = [(name, mx.broadcast_to(mx.zeros((), weight.dtype), weight.shape)) for name, weight in rest]
    model.update(tree_unflatten(zeros), strict=False)


def _read(
    unread: Mapping[str, mx.array], directory: Path, wiring: Wiring | None
) -> Iterator[tuple[float, dict[str, mx.array], int]]:
    """Read the weights in groups, so that MLX reads several tensors at once, and memory for conversions is freed after
    each group. Yields, after each, the share that is read, the group, and how many bytes of it are wired.
    """
    names, weights = list(unread), list(unread.values())
    total = sum(weight.nbytes for weight in weights) or 1
    done, read, unwired, size = 0, 0, 0, _MAX_GROUP // 8
    while done < len(weights):
        group = _group(weights, done, size)
        begun, before = time.perf_counter(), mx.get_active_memory()
        try:
            mx.eval(group)
        except (RuntimeError, ValueError) as error:
            raise ModelBroken(f"The weights of {directory.name} cannot be read: {naming(error, directory)}") from error
        mx.clear_cache()
        wired = wiring.wire(before) if wiring else 0
        nbytes = sum(weight.nbytes for weight in group)
        done, read, unwired = done + len(group), read + nbytes, unwired + (0 if wired else nbytes)
        # A group is a piece of the load, which other rings wait for: a slow disk gets smaller ones.
        size = min(2 * size, _MAX_GROUP) if time.perf_counter() - begun < PIECE_S else max(size // 2, 1)
        yield min(read / total, 0.99), dict(zip(names[done - len(group) : done], group, strict=True)), wired
    if wiring and unwired:
        left = format_bytes(unwired)
        log.warning("%s of the weights of %s are not wired, as there was KV (--wire)", left, directory.name)


def _group(weights: Sequence[mx.array], begin: int, size: int) -> Sequence[mx.array]:
    """The weights from `begin` that have up to `size` bytes together; at least one."""
    end, total = begin + 1, weights[begin].nbytes
    while end < len(weights) and total + weights[end].nbytes <= size:
        total += weights[end].nbytes
        end += 1
    return weights[begin:end]
