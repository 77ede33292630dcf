"""Model files that a directory takes from peers. All functions block on disk."""

from collections.abc import Iterable
from pathlib import Path

from node.core.errors import ModelBroken
from node.core.model_files import File
from node.model.file_names import is_small, is_weights
from node.model.parts_file import PartsFile


def has_file(directory: Path, file: File) -> bool:
    """Whether the directory has the file already, at its full size."""
    path = directory / _plain(file.name)
    return path.is_file() and path.stat().st_size == file.size


def open_parts(directory: Path, file: File) -> PartsFile:
    """Open a file that peers offer, to be written in parts. Raises NoCapacity, and NotReady while it is open elsewhere."""
    directory.mkdir(parents=True, exist_ok=True)
    return PartsFile(directory / _plain(file.name), file.size)


def link(directory: Path, paths: Iterable[Path]) -> None:
    """Link the files that the directory lacks into it; config.json last."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted(paths, key=lambda path: path.name == "config.json"):
        own = directory / _plain(path.name)
        if not own.is_file():
            own.unlink(missing_ok=True)
            own.symlink_to(path.resolve())


def _plain(name: str) -> str:
    if not (is_small(name) or is_weights(name)):
        raise ModelBroken(f"A peer offers a file of the name {name[:100]!r}.")
    return name
