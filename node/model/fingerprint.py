"""Revision of a model in a local directory: a digest of its files' content, the same for a copy on another machine."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from node.model.file_names import DESCRIPTION, is_small

_SAMPLES = 16
_SAMPLE_BYTES = 4096
_CHUNK = 1 << 20


def fingerprint(directory: Path, names: Iterable[str]) -> str:
    """Digest of the named files. Raises OSError.

    It covers all bytes of config, tokenizer, template and index, but only size and samples of weights: reading
    gigabytes would take too long.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        if name == DESCRIPTION:  # it adds nothing to the other files
            continue
        with (directory / name).open("rb") as file:
            size = file.seek(0, 2)
            digest.update(json.dumps([name, size]).encode())
            file.seek(0)
            for part in iter(partial(file.read, _CHUNK), b"") if is_small(name) else _samples(file, size):
                digest.update(part)
    return f"local-{digest.hexdigest()[:32]}"


def _samples(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield samples at equal distances, from the header to the last bytes."""
    for number in range(_SAMPLES):
        file.seek(max(size - _SAMPLE_BYTES, 0) * number // (_SAMPLES - 1))
        yield file.read(_SAMPLE_BYTES)
