"""What nodes tell each other of a model's files. Messages on the wire have the same fields."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class File:
    """A file that a node offers to others."""

    name: str
    size: int
    digest: str = ""
    """In hex, of the whole content: the hub's etag, which is a SHA-256 or the SHA-1 of a git blob; of other small files
    the SHA-256. Empty if it is not known without reading gigabytes.
    """


@dataclass(frozen=True, slots=True)
class Listing:
    """A node's files of one revision of a model."""

    files: tuple[File, ...] = ()
    fetching: tuple[str, ...] = ()
    """Names of the files that it is downloading from the hub."""
