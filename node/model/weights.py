"""A model's tensors: the file, size and layer of each. Nothing is loaded."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from node.core.models import TensorHeader
from node.model.file_names import is_safe, is_weights
from node.model.safetensors_header import MAX_TENSORS, Entry, make_entry

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,6})\.")

# Tensors that mlx-lm's `sanitize` drops: vision and audio towers, their adapters, heads for multi-token prediction.
_FOREIGN = re.compile(
    r"(?:^|\.)(?:vision|visual|audio|image_|embed_vision|embed_audio|multi_modal|mm_projector|patch_merge|aligner|mtp)"
)

_TOWER = re.compile(r"(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|embed_vision)\.")

_MTP = re.compile(r"(?:[\w.]+\.)?mtp(?:_layers)?\.")

_GROUP = 64
"""Numbers that share a scale in MLX's quantization, unless the config says otherwise."""
_MAX_GROUP = 4096
"""Configs are not trusted. Groups of MLX have at most 128 numbers."""


def is_foreign(tensor: str) -> bool:
    """Whether the tensor is not part of the text model, and so is never loaded."""
    layer = _LAYER.search(tensor)
    return _FOREIGN.search(tensor, 0, layer.start() if layer else len(tensor)) is not None


def is_tower(tensor: str) -> bool:
    """Whether the tensor is one of a vision tower that drivers load, see node.engine.tower, if the model's kind is supported."""
    return _TOWER.match(tensor) is not None


def layer_of(tensor: str) -> int | None:
    """Layer of the text model that a tensor belongs to; None for tensors outside of layers and foreign ones."""
    layer = _LAYER.search(tensor)
    return None if layer is None or is_foreign(tensor) else int(layer[1])


def layers_by_file(weight_map: Mapping[str, str]) -> dict[str, set[int | None]]:
    """The layers that have tensors in each file with any part of the text model; None: it has tensors outside of layers.

    `weight_map`: tensor to file. A model is complete when these files are here.
    """
    found: dict[str, set[int | None]] = {}
    for tensor, file in weight_map.items():
        if not is_foreign(tensor):
            found.setdefault(file, set()).add(layer_of(tensor))
    return found


def files_for(weight_map: Mapping[str, str], start: int, end: int, ends: bool) -> set[str]:
    """Files with the layers [start, end) and, if `ends`, all tensors of the text model outside of layers, and of a tower.

    The layer after the model's last one is its layer for multi-token prediction (MTP). In some families it has that number; in
    others a name, and in a folder with nothing else any name. `weight_map`: tensor to file.
    """
    found = {
        file
        for file, held in layers_by_file(weight_map).items()
        if (ends and None in held) or any(layer is not None and start <= layer < end for layer in held)
    }
    found |= {file for tensor, file in weight_map.items() if ends and is_tower(tensor)}
    if found or start >= end:
        return found
    return {file for tensor, file in weight_map.items() if _MTP.match(tensor)} or set(weight_map.values())


@dataclass(frozen=True)
class Weights:
    """All tensors of one model, including those whose files are on other nodes."""

    tensors: Mapping[str, TensorHeader]
    sizes: Mapping[str, int]
    """Bytes of each weight file."""

    @cached_property
    def _by_layer(self) -> Counter[int | None]:
        total: Counter[int | None] = Counter()
        for name, tensor in self.tensors.items():
            if not is_foreign(name):
                total[layer_of(name)] += tensor.nbytes
        return total

    @property
    def layers(self) -> int:
        """Number of layers in the files; may exceed the config's by layers for multi-token prediction."""
        return max((layer for layer in self._by_layer if layer is not None), default=-1) + 1

    @property
    def total_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def layer_bytes(self, layer: int) -> int:
        return self._by_layer[layer]

    @property
    def ends_bytes(self) -> int:
        """Bytes of the embedding, final norm, LM head and whatever else of the text model is outside of layers."""
        return self._by_layer[None]

    @property
    def tower_bytes(self) -> int:
        return sum(tensor.nbytes for name, tensor in self.tensors.items() if is_tower(name))

    @property
    def head_bytes(self) -> int:
        """Bytes of the LM head, or of the embedding if they are tied: the largest module outside of layers, or as large
        as it.

        Per-layer embeddings are excluded, as they may be larger.
        """
        parts: Counter[str] = Counter()
        for name, tensor in self.tensors.items():
            if layer_of(name) is None and not is_foreign(name) and "per_layer" not in name:
                parts[name.rpartition(".")[0]] += tensor.nbytes
        return max(parts.values(), default=0)

    @property
    def weight_map(self) -> dict[str, str]:
        return {name: tensor.file for name, tensor in self.tensors.items()}

    def files_for(self, start: int, end: int, ends: bool) -> set[str]:
        return files_for(self.weight_map, start, end, ends)

    def to_json(self) -> bytes:
        """Description as JSON, some 90 bytes per tensor; the tensors' sizes follow from dtype and shape.

        It is made tensor by tensor, as `json.dumps` lets no other thread run.
        """
        files: dict[str, list[str]] = {file: [] for file in sorted(self.sizes)}
        for name in sorted(self.tensors):
            tensor = self.tensors[name]
            described = json.dumps([tensor.dtype, *tensor.shape], separators=(",", ":"))
            files[tensor.file].append(f"{json.dumps(name)}:{described}")
        parts = (
            f'{json.dumps(file)}:{{"size":{self.sizes[file]},"tensors":{{{",".join(entries)}}}}}'
            for file, entries in files.items()
        )
        return f"{{{','.join(parts)}}}".encode()


def parse_description(raw: bytes) -> tuple[dict[str, int], dict[str, Entry]]:
    """Parse the output of `Weights.to_json`, maybe of another node: bytes of each file, and the tensors.

    Raises ValueError, KeyError, TypeError, AttributeError or RecursionError if it is damaged.
    """
    files = json.loads(raw).items()
    sizes = {_checked(file): int(held["size"]) for file, held in files}
    if (count := sum(len(held["tensors"]) for _, held in files)) > MAX_TENSORS:
        raise ValueError(f"it has {count:,} tensors; {MAX_TENSORS:,} are the most")
    tensors = {
        name: make_entry(file, name, dtype, shape)
        for file, held in files
        for name, (dtype, *shape) in held["tensors"].items()
    }
    held = Counter[str]()
    for file, _, _, nbytes in tensors.values():
        held[file] += nbytes
    if wrong := [file for file, size in sizes.items() if held[file] > size]:
        raise ValueError(f"{held[wrong[0]]:,} bytes of tensors are in the {sizes[wrong[0]]:,} of {wrong[0]}")
    return sizes, tensors


def parse_index(raw: bytes) -> dict[str, str]:
    """Map from tensor to file in an index. Raises as `parse_description` does."""
    return {str(tensor): _checked(file, is_safe) for tensor, file in json.loads(raw)["weight_map"].items()}


def _checked(file: object, accepts: Callable[[str], bool] = is_weights) -> str:
    """Return a weight file's name from an index or a description, which are untrusted. Raises ValueError."""
    if not isinstance(file, str) or "/" in file or not accepts(file):
        raise ValueError(f"{str(file)[:100]!r} is no name of a weight file")
    return file


def count_parameters(weights: Weights, config: Mapping[str, Any]) -> int:
    """Number of parameters of the text model; 0 if it is quantized in a format whose packing is not known.

    MLX packs several numbers of a quantized tensor into one; the scales, one for each group, tell how many there are.
    """
    if "quantization_config" in config and "quantization" not in config:
        return 0
    general = config.get("quantization")
    settings = general if isinstance(general, Mapping) else {}
    total = 0
    for name, tensor in weights.tensors.items():
        module, _, kind = name.rpartition(".")
        quantized = f"{module}.scales" in weights.tensors
        if is_foreign(name) or (quantized and kind in ("weight", "biases")):
            continue
        size = math.prod(tensor.shape)
        if quantized and kind == "scales":
            own = settings.get(module)  # modules may have settings of their own
            group = (own if isinstance(own, Mapping) else settings).get("group_size")
            size *= group if type(group) is int and 0 < group <= _MAX_GROUP else _GROUP
        total += size
    return total
