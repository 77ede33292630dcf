"""Digests of model files, as the hub has them: its etag is the SHA-256 of a large file and the git blob id of a small one."""

import hashlib
import re
from pathlib import Path
from typing import Protocol

from node.core.errors import ModelBroken
from node.model.file_names import is_small

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def is_digest(etag: str) -> bool:
    """Whether the etag can be computed from the content. Those of mirrors may be anything."""
    return bool(_SHA256.fullmatch(etag) or _GIT_BLOB.fullmatch(etag))


def hash_for(digest: str, size: int) -> Hash:
    """A hash of a file of `size` bytes that has the form of `digest`: a git blob id, or else SHA-256."""
    if _GIT_BLOB.fullmatch(digest):
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


def digest_like(digest: str, path: Path) -> str:
    """The digest of a whole file, of the same kind as `digest`. Raises OSError."""
    with path.open("rb") as file:
        found = hash_for(digest, path.stat().st_size)
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def mismatch(name: str, expected: str, found: str) -> ModelBroken:
    return ModelBroken(
        f"{name} was damaged on its way: its digest is {found}, expected is {expected[:64]}.",
        hint="It is not used, and fetched again at the next try.",
    )


def digest_of(path: Path) -> str:
    """What is known of a file's digest: what it was verified against, else for a small file its SHA-256, else nothing.

    Raises OSError.
    """
    blob = path.resolve()
    if blob.parent.name == "blobs" and is_digest(blob.name):  # the hub's cache names files by their etags
        return blob.name
    if noted := _noted(path):
        return noted
    return digest_like("", path) if is_small(path.name) else ""


def note_digest(path: Path, digest: str) -> None:
    """Keep the digest against which a file was verified, for the nodes that fetch it from here. Raises OSError."""
    _note_of(path).write_text(digest)


def _noted(path: Path) -> str:
    try:
        noted = _note_of(path).read_text(errors="replace")
    except OSError:
        return ""
    return noted if is_digest(noted) else ""


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + ".digest")
