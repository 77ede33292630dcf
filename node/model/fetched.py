"""What Pippin fetched into the hub's cache, which other programs use, too: no other file there is deleted unasked."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from node.model.file_names import DESCRIPTION, id_parts

RECORD = ".pippin-fetched"
"""In a model's folder of the hub's cache: the names of the files that Pippin fetched into it, one a line."""


def repository(cache: Path, model_id: str) -> Path:
    """A model's folder of the hub's cache. Raises ModelNotFound for what is no id."""
    return cache / f"models--{'--'.join(id_parts(model_id))}"


def note(repository: Path, name: str) -> None:
    """Note that Pippin fetches a file, named as its blob. Nodes of one machine append to the same record."""
    with (repository / RECORD).open("a", encoding="utf-8") as record:
        record.write(f"{name}\n")


def blobs(repository: Path) -> set[str]:
    """The names of the files whose content is in a model's folder of the hub's cache, whole or not."""
    found: set[str] = set()
    for file in _files(repository):
        place = file.relative_to(repository).parts[0]
        if place in (RECORD, "refs", ".no_exist") or file.name.startswith(DESCRIPTION):
            continue  # no content: what the hub's client and Pippin note of the model
        # A part of a file has its name, or that and another process's mark, before `.incomplete`.
        found.add(file.name.partition(".")[0] if file.name.endswith(".incomplete") else file.name)
    return found


def is_fetched(repository: Path) -> bool:
    """Whether Pippin fetched all that is in a model's folder of the hub's cache. Folders of other programs have no record."""
    noted: set[str] = set()
    with suppress(FileNotFoundError):
        noted.update((repository / RECORD).read_text("utf-8", "replace").splitlines())
    return blobs(repository) <= noted


def size_on_disk(folders: Iterable[Path]) -> int:
    """Bytes that are free once the folders are deleted: of files with names elsewhere none, of others once."""
    links: dict[tuple[int, int], int] = {}
    freed = 0
    for folder in folders:
        for file in _files(folder):
            found = file.lstat()
            key = found.st_dev, found.st_ino
            links[key] = links.get(key, found.st_nlink) - 1
            freed += 0 if links[key] else found.st_size
    return freed


def _files(folder: Path) -> Iterator[Path]:
    """All files in a folder; links to other places are none."""
    for parent, _, names in os.walk(folder):
        yield from (path for name in names if not (path := Path(parent, name)).is_symlink())
