"""A model's tensors: the file, size and layer of each. Nothing is loaded."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from node.core.errors import ModelBroken
from node.core.models import TensorHeader
from node.model.file_names import DESCRIPTION, INDEX, is_safe, is_weights
from node.model.formats import unloadable
from node.model.safetensors_header import make_tensor, read_header

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.([0-9]{1,6})\.")

# Tensors that mlx-lm's `sanitize` drops: vision and audio towers, their adapters, heads for multi-token prediction.
_FOREIGN = re.compile(
    r"(?:^|\.)(?:vision|visual|audio|image_|embed_vision|embed_audio|multi_modal|mm_projector|patch_merge|aligner|mtp)"
)
_MAX_INDEX_BYTES = 64 << 20
"""Maximum bytes of an index; that of the largest models has some 15 MB."""
_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def is_foreign(tensor: str) -> bool:
    """Whether the tensor is not part of the text model, and so is never loaded."""
    layer = _LAYER.search(tensor)
    return _FOREIGN.search(tensor, 0, layer.start() if layer else len(tensor)) is not None


def layer_of(tensor: str) -> int | None:
    """Layer of the text model that a tensor belongs to; None for tensors outside of layers and foreign ones."""
    layer = _LAYER.search(tensor)
    return None if layer is None or is_foreign(tensor) else int(layer[1])


def files_for(weight_map: Mapping[str, str], start: int, end: int, ends: bool) -> set[str]:
    """Files with the layers [start, end) and, if `ends`, all tensors of the text model outside of layers.

    `weight_map`: tensor to file.
    """
    found = set()
    for tensor, file in weight_map.items():
        layer = layer_of(tensor)
        wanted = ends and not is_foreign(tensor) if layer is None else start <= layer < end
        if wanted:
            found.add(file)
    return found


def text_files(weight_map: Mapping[str, str]) -> set[str]:
    """Files with any part of the text model; a model is complete when these are here."""
    return {file for tensor, file in weight_map.items() if not is_foreign(tensor)}


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
        """Total bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def layer_bytes(self, layer: int) -> int:
        return self._by_layer[layer]

    @property
    def ends_bytes(self) -> int:
        """Bytes of the embedding, final norm, LM head and whatever else of the text model is outside of layers."""
        return self._by_layer[None]

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
        """Description as JSON, some 90 bytes per tensor; the tensors' sizes follow from dtype and shape."""
        files: dict[str, dict[str, Any]] = {file: {"size": size, "tensors": {}} for file, size in self.sizes.items()}
        for name, tensor in self.tensors.items():
            files[tensor.file]["tensors"][name] = [tensor.dtype, *tensor.shape]
        return json.dumps(files, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        """Parse the output of `to_json`, maybe of another node. Raises ModelBroken."""
        try:
            files = json.loads(raw).items()
            sizes = {_checked(file): int(held["size"]) for file, held in files}
            tensors = {
                name: make_tensor(file, name, dtype, shape)
                for file, held in files
                for name, (dtype, *shape) in held["tensors"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelBroken(f"The description of the weights is damaged: {error!r:.200}") from error
        held = Counter[str]()
        for tensor in tensors.values():
            held[tensor.file] += tensor.nbytes
        if wrong := [file for file, size in sizes.items() if held[file] > size]:
            raise ModelBroken(
                f"The description of the weights has {held[wrong[0]]:,} bytes of tensors in the {sizes[wrong[0]]:,} "
                f"of {wrong[0]}."
            )
        return cls(tensors, sizes)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the weights' layout from the headers of a directory's files. Blocks, for milliseconds.

        Raises ModelBroken when a file is truncated or lacks a tensor that the index places in it. Files may be missing
        only if a description tells what they would hold.
        """
        try:
            return cls._read(directory)
        except OSError as error:
            raise ModelBroken(f"{directory} cannot be read: {error}.") from error

    @classmethod
    def _read(cls, directory: Path) -> Self:
        known = read_description(directory)
        expected = weight_map(directory)
        needed = text_files(expected)
        files = set(expected.values())
        absent = {file for file in files if not (directory / file).is_file()}
        if known is None and absent & needed:
            raise ModelBroken(f"{directory}: {min(absent & needed)} is missing.", hint="Fetch the model again.")
        tensors, sizes = {}, {}
        if known is not None:
            tensors = {name: tensor for name, tensor in known.tensors.items() if tensor.file in absent}
            sizes = {file: known.sizes[file] for file in absent}
        for file in sorted(files - absent):
            tensors.update(read_header(directory / file))
            sizes[file] = (directory / file).stat().st_size
        lacking = [
            name
            for name, file in expected.items()
            if file in needed and (name not in tensors or tensors[name].file != file)
        ]
        if lacking:
            raise ModelBroken(
                f"{directory}: {expected[lacking[0]]} lacks {len(lacking)} of the tensors that belong there, "
                f"{lacking[0]} for one.",
                hint="Fetch the model again.",
            )
        return cls(tensors, sizes)


def read_description(directory: Path) -> Weights | None:
    """The description file of a partially fetched model, or None. Raises OSError, ModelBroken."""
    try:
        return Weights.from_json((directory / DESCRIPTION).read_bytes())
    except FileNotFoundError:
        return None


def weight_map(directory: Path) -> dict[str, str]:
    """Map from tensor to file, whether or not the file is here: from the description, the index or the headers.

    Raises OSError, ModelBroken, and ModelUnsupported for weights in an unsupported format.
    """
    known = read_description(directory)
    if known is not None:
        return known.weight_map
    present = {path.name for path in directory.glob("model*.safetensors") if is_weights(path.name) and path.is_file()}
    indexed = read_index(directory / INDEX)
    # An index whose files are all missing, next to other weights, is left over from before a conversion.
    if indexed and (not present or present & set(indexed.values())):
        if not all(map(is_weights, indexed.values())):
            raise unloadable(str(directory), indexed.values())
        return indexed
    if not present:
        raise unloadable(str(directory), [path.name for path in directory.glob("*")])
    for file in sorted(present):
        number = _NUMBERED.search(file)
        if number and len(present) < int(number[2]):
            raise ModelBroken(
                f"{directory}: {len(present)} of {int(number[2])} weight files are here.",
                hint="Fetch the model again.",
            )
    return {tensor: file for file in sorted(present) for tensor in read_header(directory / file)}


def read_index(path: Path) -> dict[str, str]:
    """Map from tensor to file in an index; empty if there is no index. Raises OSError, ModelBroken."""
    if not path.is_file():
        return {}
    if (size := path.stat().st_size) > _MAX_INDEX_BYTES:
        raise ModelBroken(f"{path} has {size:,} bytes; {_MAX_INDEX_BYTES:,} are the most.")
    try:
        entries = json.loads(path.read_bytes())["weight_map"].items()
        return {str(tensor): _checked(file, is_safe) for tensor, file in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelBroken(f"{path} is damaged: {error!r:.200}", hint="Fetch the model again.") from error


def _checked(file: object, accepts: Callable[[str], bool] = is_weights) -> str:
    """Return a weight file's name from an index or a description, which are untrusted. Raises ValueError."""
    if not isinstance(file, str) or "/" in file or not accepts(file):
        raise ValueError(f"{str(file)[:100]!r} is no name of a weight file")
    return file
