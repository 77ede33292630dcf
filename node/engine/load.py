"""Loads a stage: reads only the weights of its layers, each into memory once; those that are there it takes.

Loading is divided into pieces, as the node's other rings compute in the same thread.
"""

import logging
import time
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_unflatten

from node.core.errors import ModelBroken, ModelUnsupported, naming
from node.core.models import TensorHeader
from node.core.row_family import LayerKind
from node.core.units import format_bytes
from node.engine.architectures import UNPROVEN_ON_METAL, is_of_mlx_vlm, module_of
from node.engine.device import PIECE_S, is_metal, release_memory
from node.engine.ghosts import find_layers
from node.engine.graph import sources, weights_in
from node.engine.lazy_model import examples, load_lazily
from node.engine.mtp import find_mtp
from node.engine.mutual import Mutual
from node.engine.plan import Plan, make_plan
from node.engine.rotation import Positions, Rotation
from node.engine.stage import Stage, Weight
from node.engine.warm_up import warm_up
from node.engine.wiring import Wiring
from node.model.config import read_config, read_picture_form
from node.model.picture_form import PictureForm

log = logging.getLogger(__name__)

_MAX_GROUP = 256 * 2**20
"""Maximum bytes of the tensors that are read at once. MLX has four threads that read, and each reads up to 32 MB of a
tensor at a time."""


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
    """Load layers [start, end) of the model in `directory`, and with start 0 embedding, final norm and head. From the layer after
    the last one on it is the MTP layer, of which the stage is a model of its own, see node.engine.mtp.

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
        config = mtp.config
    plan = make_plan(config, size, kv_bits, unproven=unproven)
    if is_mtp:
        start, end = 0, plan.layers
    plan.check_stage(start, end)
    _warn_if_unproven(directory.name, plan.model_type)
    yield 0.0
    scalars: dict[mx.Dtype, mx.array] = {}
    form = None if is_mtp else read_picture_form(directory, config)
    model = load_lazily(directory, tensors, scalars, mtp, is_mtp=is_mtp, form=form if start == 0 else None)
    if form:
        _place(model, form, directory, start, end, config)
    own = own_weights(model, plan, start, end)
    free_others(model, own)
    # An MTP layer is a model of its own, with names that are those of other weights in the whole one.
    weights = {} if is_mtp else _take(model, own, loaded)
    warm, ran = _run_by(() if is_mtp else loaded, kv_bits)
    loaded = ()  # they may be unloaded meanwhile
    unread = {name: weight for name, weight in own.items() if name not in weights}
    if lacking := _made_of(list(scalars.values()), unread):
        raise ModelBroken(
            f"{directory.name}: the files of layers {start}-{end - 1} are not all here: "
            f"{len(lacking)} of {len(own)} tensors are in others: {examples(lacking, tensors)}"
        )
    del own
    layer_of = _layers_of(model)
    yield 0.0
    with _whole_or_freed(model, unread, wiring) as wired:
        for share, group, newly_wired in _read(unread, directory, wiring):
            wired.append(newly_wired)
            weights |= _held(group, newly_wired, layer_of)
            del group
            yield share
        _check_tables(unread, config)
        stage = Stage(model, plan, start, end, weights)
        try:
            yield from warm_up(stage, warm, ran)
        except (IndexError, KeyError, TypeError, ValueError) as error:  # a RuntimeError may be the device's own
            raise ModelBroken(f"Layers {start}-{end - 1} of {directory.name} cannot be computed: {error!r}") from error
    return stage


def _made_of(stand_ins: Sequence[mx.array], weights: Mapping[str, mx.array]) -> list[str]:
    """The weights that are computed from a stand-in for a tensor that is not here."""
    if not stand_ins or not sources([list(weights.values())], stand_ins)[0]:
        return []
    return [name for name, weight in weights.items() if sources([[weight]], stand_ins)[0]]


@contextmanager
def _whole_or_freed(model: Module, unread: dict[str, mx.array], wiring: Wiring | None) -> Iterator[list[int]]:
    """Frees all memory if a load fails, or is closed. Yields the bytes that were wired, one number a group."""
    wired: list[int] = []
    try:
        yield wired
    except BaseException:  # GeneratorExit, too
        unread.clear()
        for _ in release_memory([model]):
            pass
        if wiring and any(wired):
            wiring.release(sum(wired))
        raise


def _place(model: Any, form: PictureForm, directory: Path, start: int, end: int, config: Mapping[str, Any]) -> None:
    """Have the layers know where pictures are. Without positions in three axes, the model has no use of its tower."""
    if not form.in_axes:
        if form.mutual != "none":
            model.placing = Mutual(form.mutual)
        return
    try:
        if is_of_mlx_vlm(module_of(config)):
            model.placing = Positions(model)
        else:
            model.placing = Rotation(list(find_layers(model))[start:end], config.get("text_config") or config)
    except ModelUnsupported as error:
        log.warning("%s takes no pictures here: %s", directory.name, error)
        if "tower" in model:
            del model.tower


def _check_tables(weights: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
    """DeepSeek V4's weights name the experts of a token, and MLX computes beyond the ends of arrays if asked to. Qwen's have sizes of
    tables, by which numbers are divided; a division by -1 may end the process. Raises ModelBroken.
    """
    experts = int(config.get("n_routed_experts") or 0)
    for name, table in weights.items():
        is_sizes = name.endswith("ngram_heads_vocab_sizes")
        if not (is_sizes or name.endswith("tid2eid")):
            continue
        least, most = (int(of(table).item()) for of in (mx.min, mx.max))  # type: ignore[arg-type]
        if is_sizes and least < 1:
            raise ModelBroken(f"{name} has a size of {least}.")
        if not is_sizes and (least < 0 or most >= experts):
            raise ModelBroken(f"{name} names experts beyond the {experts} that there are.")


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


def _run_by(stages: Sequence[Stage], kv_bits: int) -> tuple[frozenset[LayerKind], frozenset[int]]:
    """The kinds of layers, and the layers, that these stages have run with such KV."""
    alike = [stage for stage in stages if stage.plan.kv_bits == kv_bits]
    layers = (layer for stage in alike for layer in range(stage.start, stage.end))
    return frozenset(kind for stage in alike for kind in stage.kinds), frozenset(layers)


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
