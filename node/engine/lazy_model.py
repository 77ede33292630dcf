"""Has mlx-lm build a whole model without reading weights, and refuses files whose tensors are not exactly the model's."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.utils import load_model

from node.core.errors import ModelBroken, ModelUnsupported, naming
from node.core.mlx_errors import MLX_ERRORS
from node.core.models import TensorHeader
from node.engine.graph import weights_in
from node.engine.model_classes import model_classes
from node.engine.mtp import Mtp, Sanitize, with_ends
from node.engine.tower import Tower
from node.model.config import read_config
from node.model.picture_form import PictureForm
from node.model.weights import is_tower

log = logging.getLogger(__name__)

_DTYPES = {
    "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16, "U32": mx.uint32,
    "I32": mx.int32, "U64": mx.uint64, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32,
    "C64": mx.complex64, "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8,
}  # fmt: skip
"""MLX's dtype for each dtype of safetensors; MLX loads no others."""


def load_lazily(
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
    only_mtp = mtp if is_mtp else None

    def classes(config: dict[str, Any]) -> tuple[type[Module], Any]:
        base, args = model_classes(config)

        class Checked(base):  # type: ignore[misc, valid-type]
            def __init__(self, arguments: Any) -> None:
                super().__init__(arguments)
                if only_mtp:
                    with_ends(self, only_mtp)

            def sanitize(self, _weights: dict[str, mx.array]) -> dict[str, mx.array]:
                sanitize: Sanitize | None = getattr(super(), "sanitize", None)
                if only_mtp:
                    return only_mtp.sanitized(sanitize, held)
                kept = mtp.without(held) if mtp else held
                return sanitize(kept) if sanitize else kept

            def load_weights(self, weights: list[tuple[str, mx.array]], *, strict: bool = True) -> Module:
                _check_tensors(directory, tensors, dict(weights), dict(weights_in(self)))
                loaded: Module = super().load_weights(weights, strict=strict)
                return loaded

        return Checked, args

    model: Module
    config = only_mtp.config if only_mtp else None
    try:
        with _loading(directory):
            model, _ = load_model(directory, lazy=True, strict=False, model_config=config, get_model_classes=classes)
    finally:
        held.clear()  # the model's class refers to it
    if form and of_tower:
        try:
            model.tower = Tower(read_config(directory), form, of_tower)
        except (ModelUnsupported, ModelBroken) as error:
            log.warning("%s takes no pictures here: %s", directory.name, error)
    return model


@contextmanager
def _loading(directory: Path) -> Iterator[None]:
    """Turns what mlx-lm raises for a model that it cannot load into ModelBroken or ModelUnsupported."""
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelBroken(f"A small file of {directory.name} is damaged: {naming(error, directory)}") from error
    except ValueError as error:
        raise ModelUnsupported(f"mlx-lm cannot load {directory.name}: {naming(error, directory)}") from error
    except MLX_ERRORS as error:
        raise ModelBroken(
            f"The weights of {directory.name} cannot be loaded: {naming(repr(error), directory)}"
        ) from error


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
            f"{directory.name} lacks {len(missing)} of {len(taken)} tensors: {examples(missing, tensors)}"
        )
    if surplus := [name for name in given if name not in taken]:
        raise ModelBroken(
            f"{directory.name} has {len(surplus)} tensors that the model of its config.json does not take: "
            f"{examples(surplus, tensors)}",
            hint="Fetch the model again, or check that config.json belongs to these files.",
        )
    for name, value in given.items():
        if value.shape != taken[name].shape:
            raise ModelBroken(
                f"{directory.name}: tensor {examples([name], tensors)} has shape {value.shape} instead of "
                f"{taken[name].shape}."
            )


def examples(names: Sequence[str], tensors: Mapping[str, TensorHeader]) -> str:
    """The first names, with their files, for an error."""
    return ", ".join(f"{name} (in {tensors[name].file})" if name in tensors else name for name in names[:3])
