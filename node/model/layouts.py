"""What the files in a model's folder tell of its tensors, without loading any."""

import errno
import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from node.core.errors import ModelBroken, PippinError
from node.core.lru_cache import LruCache
from node.core.models import TensorHeader
from node.model.config import read_config, read_picture_form
from node.model.file_names import CONFIGS, DESCRIPTION, INDEX, check_size, is_weights
from node.model.formats import unloadable
from node.model.json_parser import JsonParser
from node.model.picture_form import PictureForm
from node.model.safetensors_header import AGAIN, MAX_TENSORS, header_length
from node.model.weights import Weights, count_parameters, is_tower, layers_by_file

log = logging.getLogger(__name__)

Stat = tuple[int, int, int]
"""(Size in bytes, modification time in ns, inode)."""

_NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")
_READ = {*CONFIGS, DESCRIPTION, INDEX}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""errnos of links that lead nowhere."""


class Layout:
    """The weights of a folder at one moment. Each file is read once, when it is first needed, so most properties block."""

    def __init__(self, directory: Path, parser: JsonParser | None = None) -> None:
        """Raises OSError."""
        self._directory = directory
        self._parser = parser or JsonParser()
        self._headers: dict[str, dict[str, TensorHeader]] = {}
        self.stats: Mapping[str, Stat] = _stats(directory)
        """Of the files that it is read from, by name."""
        self._present = set(filter(is_weights, self.stats))

    @cached_property
    def description(self) -> Weights | None:
        """The description of a partially fetched model, or None. A damaged one is deleted. Raises OSError, and the
        sandbox's errors.
        """
        if DESCRIPTION not in self.stats:
            return None
        path = self._directory / DESCRIPTION
        try:
            check_size(DESCRIPTION, self.stats[DESCRIPTION][0])
            return self._parser.description(path.read_bytes())
        except (ModelBroken, ValueError) as error:
            log.warning("%s can't be used, and is deleted: %.300s", path, error)
            with suppress(OSError):  # of a disk that can't be written
                path.unlink()
            return None

    @cached_property
    def weight_map(self) -> dict[str, str]:
        """Map from tensor to file, whether or not the file is here: from the description, the index or the headers.

        Raises OSError, ModelBroken, and ModelUnsupported for weights in an unsupported format.
        """
        if self.description is not None:
            return self.description.weight_map
        name, present = self._directory.name, self._present
        indexed = read_index(self._directory / INDEX, self._parser) if INDEX in self.stats else {}
        # An index whose files are all missing, next to other weights, is left over from before a conversion.
        if indexed and (not present or present & set(indexed.values())):
            if not all(map(is_weights, indexed.values())):
                raise unloadable(name, indexed.values())
            return indexed
        if not present:
            raise unloadable(name, [path.name for path in self._directory.iterdir()])
        for file in sorted(present):
            number = _NUMBERED.search(file)
            if number and len(present) < int(number[2]):
                raise ModelBroken(
                    f"{name}: {len(present)} of {int(number[2])} weight files are here.", hint="Fetch the model again."
                )
        return {tensor: file for file in sorted(present) for tensor in self._header(file)}

    @cached_property
    def weights(self) -> Weights:
        """All tensors, from the headers of the files that are here.

        Raises ModelBroken when a file is truncated or lacks a tensor that the index places in it, and the errors of
        `weight_map`. Files may be missing only if a description tells what they would hold.
        """
        try:
            return self._read()
        except OSError as error:
            raise ModelBroken(f"{self._directory.name} cannot be read: {error.strerror}.") from error

    def _read(self) -> Weights:
        name, known, expected = self._directory.name, self.description, self.weight_map
        needed = layers_by_file(expected).keys()
        files = set(expected.values())
        absent = files - self._present
        if known is None and absent & needed:
            raise ModelBroken(f"{name}: {min(absent & needed)} is missing.", hint="Fetch the model again.")
        tensors: dict[str, TensorHeader] = {}
        sizes: dict[str, int] = {}
        if known is not None:
            tensors = {name: tensor for name, tensor in known.tensors.items() if tensor.file in absent}
            sizes = {file: known.sizes[file] for file in absent}
        for file in sorted(files - absent):
            tensors.update(self._header(file))
            sizes[file] = self.stats[file][0]
            if len(tensors) > MAX_TENSORS:
                raise ModelBroken(f"{name} has more than {MAX_TENSORS:,} tensors.")
        lacking = [
            tensor
            for tensor, file in expected.items()
            if file in needed and (tensor not in tensors or tensors[tensor].file != file)
        ]
        if lacking:
            raise ModelBroken(
                f"{name}: {expected[lacking[0]]} lacks {len(lacking)} of the tensors that belong there, "
                f"{lacking[0]} for one.",
                hint="Fetch the model again.",
            )
        return Weights(tensors, sizes)

    @cached_property
    def parameters(self) -> int:
        """See `count_parameters`. Raises as `weights` does."""
        return count_parameters(self.weights, read_config(self._directory))

    @cached_property
    def told(self) -> tuple[bytes, str]:
        """The description of the weights for peers, and its SHA-256 in hex. Raises as `weights` does."""
        description = self.weights.to_json()
        return description, hashlib.sha256(description).hexdigest()

    def _header(self, file: str) -> dict[str, TensorHeader]:
        if file not in self._headers:
            self._headers[file] = read_header(self._directory / file, self._parser)
        return self._headers[file]


class Layouts:
    """The layouts of the folders that were read last, each until its files change. Thread-safe."""

    def __init__(self, parser: JsonParser | None = None) -> None:
        self.parser = parser or JsonParser()
        self._known: LruCache[Path, Layout] = LruCache(8)
        self._using = threading.Lock()

    def of(self, directory: Path) -> Layout:
        """Raises OSError."""
        found = Layout(directory, self.parser)
        with self._using:
            known = self._known.get(directory)
            if known is None or known.stats != found.stats:
                known = found
                self._known.put(directory, found)
            return known

    def picture_form(self, directory: Path) -> PictureForm | None:
        """See `read_picture_form`; None also for a conversion for text only, whose config.json may still tell of a tower. Raises
        ModelBroken.
        """
        form = read_picture_form(directory, read_config(directory))
        try:
            tensors = self.of(directory).weight_map if form else ()
        except (PippinError, OSError):  # the files that name them are on other nodes
            return form
        return form if any(map(is_tower, tensors)) else None


def stat_of(found: os.stat_result) -> Stat:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _stats(directory: Path) -> dict[str, Stat]:
    found = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name in _READ or is_weights(entry.name):
                try:
                    if entry.is_file():
                        found[entry.name] = stat_of(entry.stat())
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
    return found


def read_header(path: Path, parser: JsonParser) -> dict[str, TensorHeader]:
    """Read the tensors of a safetensors file.

    Raises OSError, and ModelBroken unless header and tensors account for all its bytes.
    """
    size, where = path.stat().st_size, f"{path.name} of {path.parent.name}"
    with path.open("rb") as file:
        length = header_length(where, file.read(8), size)
        raw = file.read(length)
    try:
        tensors, end = parser.header(raw, path.name)
    except ValueError as error:
        raise ModelBroken(
            f"{where}: its safetensors header of {length:,} bytes is damaged: {error}", hint=AGAIN
        ) from error
    if size != 8 + length + end:
        raise ModelBroken(f"{where} has {size:,} bytes; its header says {8 + length + end:,}.", hint=AGAIN)
    return tensors


def read_index(path: Path, parser: JsonParser) -> dict[str, str]:
    """Map from tensor to file in an index. Raises OSError, ModelBroken."""
    check_size(path.name, path.stat().st_size)
    try:
        return parser.index(path.read_bytes())
    except ValueError as error:
        raise ModelBroken(f"{path.name} is damaged: {error}", hint="Fetch the model again.") from error
