"""Digests of model files, as the hub has them: its etag is the SHA-256 of a large file and the git blob id of a small one. And
the digest of a whole folder, which is the revision of a model that is not from the hub.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from node.core.errors import ModelBroken
from node.model.file_names import DESCRIPTION, PROCESSORS, is_license, is_small

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")
_CHUNK = 1 << 20
_SAMPLES = 16
_SAMPLE_BYTES = 4096


def is_digest(etag: str) -> bool:
    """Whether the etag can be computed from the content. Those of mirrors may be anything."""
    return bool(_SHA256.fullmatch(etag) or _GIT_BLOB.fullmatch(etag))


def hash_for(digest: str, size: int) -> "hashlib._Hash":
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
    with suppress(OSError):
        if is_digest(noted := _note_of(path).read_text(errors="replace")):
            return noted
    return digest_like("", path) if is_small(path.name) else ""


def note_digest(path: Path, digest: str) -> None:
    """Keep the digest against which a file was verified, for the nodes that fetch it from here. Raises OSError."""
    _note_of(path).write_text(digest)


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + ".digest")


def fingerprint(directory: Path, names: Iterable[str]) -> str:
    """Revision of a model in a local directory: the same for a copy on another machine. Raises OSError.

    It covers, of the named files, all bytes of config, tokenizer, template and index, but only size and samples of weights: reading
    gigabytes would take too long. Licenses change no answer.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        if name in (DESCRIPTION, *PROCESSORS) or is_license(name):  # they add nothing to the other files, or came later
            continue
        with (directory / name).open("rb") as file:
            size = file.seek(0, 2)
            digest.update(json.dumps([name, size]).encode())
            if is_small(name):
                file.seek(0)
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                continue
            for number in range(_SAMPLES):  # at equal distances, from the header to the last bytes
                file.seek(max(size - _SAMPLE_BYTES, 0) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return f"local-{digest.hexdigest()[:32]}"
