"""Private copies of tokenizer files, for a sandbox to clean (`node.text.tokenizer_settings`) and for this process to read."""

import asyncio
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NewType

from node.core.errors import ModelBroken, NotReady
from node.core.pool import Pool
from node.model.file_names import MAX_TOKENIZER_BYTES

CleanFolder = NewType("CleanFolder", Path)
"""A copy that a sandbox has cleaned, or a folder of our own: transformers may read it."""

VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json", "vocab.txt"),
    *("spiece.model", "spm.model", "sentencepiece.model", "sentencepiece.bpe.model"),
)
PREFIX = "pippin-tokenizer-"
"""Beginning of the names of private folders."""
_MERGES = "merges.txt"
_OTHERS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template.jinja"),
)
_TEMPLATES = "additional_chat_templates"
_MOST_TEMPLATES = 16
_OTHER_BYTES = 32 * 2**20
"""Maximum bytes of a file of settings. They tell each added token in some 190 bytes: speech models add 65,536, or 12 MB."""


@asynccontextmanager
async def copies(pool: Pool, *directories: Path) -> AsyncIterator[tuple[Path, list[Path]]]:
    """A private folder, and in it a copy of the tokenizer files of each directory. It goes with the context.

    Raises ModelBroken, NotReady, Overloaded.
    """
    job = asyncio.wrap_future(pool.submit(_copies, directories))
    try:
        private, folders = await asyncio.shield(job)
        yield private, folders
    finally:
        await asyncio.wait([job])  # a thread that still copies would make what has been removed
        if not job.exception():
            shutil.rmtree(job.result()[0], ignore_errors=True)


def _copies(directories: Sequence[Path]) -> tuple[Path, list[Path]]:
    with writing():
        private = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        folders = [private / str(number) for number in range(len(directories))]
        for directory, folder in zip(directories, folders, strict=True):
            copy(directory, folder)
    except BaseException:
        shutil.rmtree(private, ignore_errors=True)
        raise
    return private, folders


def remove_stale() -> None:
    """Remove the private folders that killed nodes of this user have left. Those of running nodes are seconds old."""
    with suppress(OSError):  # there may be no temporary folder
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            found = folder.lstat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > 3600:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def writing(folder: Path | None = None) -> Iterator[None]:
    """Raises NotReady for an OSError in the context, which is this machine's fault and none of the model's files."""
    try:
        yield
    except OSError as error:
        what = f"The tokenizer can't be copied to a temporary folder, {folder or error.filename}: {error.strerror}."
        raise NotReady(what, hint="Free space there, or restart the node with TMPDIR set to another folder.") from error


def copy(directory: Path, folder: Path) -> None:
    """Copy a model's tokenizer files to a new folder.

    Raises ModelBroken if a file is missing, too large, or elsewhere; NotReady if the folder can't be written.
    """
    with writing(folder):
        folder.mkdir()
        (folder / _TEMPLATES).mkdir()
    try:
        vocabularies = [_copy(directory, folder, name, MAX_TOKENIZER_BYTES) for name in VOCABULARIES]
        if not any(vocabularies):
            what = f"{directory.name} has no tokenizer: there is none of {', '.join(VOCABULARIES)}."
            raise ModelBroken(what, hint="Fetch the model again, or take another one.")
        _copy(directory, folder, _MERGES, MAX_TOKENIZER_BYTES)
        templates = sorted(path.name for path in directory.glob(f"{_TEMPLATES}/*.jinja"))[:_MOST_TEMPLATES]
        for name in (*_OTHERS, *(f"{_TEMPLATES}/{template}" for template in templates)):
            _copy(directory, folder, name, _OTHER_BYTES)
    except (OSError, RuntimeError) as error:  # a RuntimeError: a loop of links
        reason = error.strerror if isinstance(error, OSError) else "a loop of links"
        raise ModelBroken(f"The tokenizer of {directory.name} can't be read: {reason}.") from error


def _copy(directory: Path, folder: Path, name: str, most: int) -> bool:
    """Whether there is such a file."""
    path = directory / name
    if not os.path.lexists(path):
        return False
    file = path.resolve(strict=True)
    # A link may lead to a file in the model's directory or the hub's cache, or of the same name: the node itself makes
    # links to the same files of other directories (`node.model.stage_fetch.link`).
    is_cached = any(part.startswith("models--") for part in file.parts) and {"blobs", "snapshots"} & set(file.parts)
    if not (file.is_relative_to(directory.resolve()) or is_cached or file.name == Path(name).name):
        what = f"{name} of {directory.name} is a link to a file outside of the model."
        raise ModelBroken(what, hint="Put the file itself there.")
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as source:  # a pipe would block
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelBroken(f"{name} of {directory.name} is not a regular file.", hint="Fetch the model again.")
        if status.st_size > most:
            raise ModelBroken(f"{name} of {directory.name} has {status.st_size:,} bytes; {most:,} are the most.")
        content = source.read(status.st_size)
    with writing(folder):
        (folder / name).write_bytes(content)
    return True
