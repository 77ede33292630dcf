"""Downloads one file from the hub into its cache by HTTP. A download that broke off is resumed, also by another
process.

huggingface_hub's own download starts each file from zero, and Xet's cannot be stopped within a file.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

from node.core.errors import HubUnavailable, ModelBroken, NotReady
from node.model.digests import is_digest
from node.model.hub_errors import HUB_ERRORS, first_line, is_temporary
from node.model.partial_file import PartialFile

log = logging.getLogger(__name__)

STALL_S = 10.0
"""Read timeout: a connection to the hub that delivers nothing for this long is closed; a download opens another one."""
TRIES = 5
"""Consecutive attempts without a byte before the download fails."""
_PIECE = 8 << 30
"""Bytes requested at once: CDNs refuse to send more than some 50 GB."""
_MAX_PAUSE_S = 8.0
_LOOK_S = 0.25
"""Interval at which `progress` is called during a pause, as it may cancel the download."""


@dataclass(frozen=True, slots=True)
class Source:
    """URL of a file, and the expected size and content."""

    url: str
    headers: Mapping[str, str]
    size: int
    etag: str
    """SHA-256 of a large file, git blob id of a small one; of a mirror maybe some other name for its content."""
    name: str = ""
    """What errors call it."""


def download(source: Source, blob: Path, progress: Callable[[int], None]) -> None:
    """Download `source` into `blob`, calling `progress(bytes here)` at first and after each piece. Its exceptions
    cancel the download.

    Waits while another process or thread downloads the same file. Raises HUB_ERRORS, HubUnavailable, ModelBroken,
    NoCapacity.
    """
    while not blob.exists():
        try:
            with closing(PartialFile(blob, source.size, source.etag, source.name)) as partial:
                progress(partial.offset)
                _complete(source, partial, progress)
        except NotReady:
            progress(0)
            time.sleep(_LOOK_S)


def first_bytes(url: str, headers: Mapping[str, str], count: int) -> bytes:
    """The first `count` bytes of a file, or all that a server sends of it. Raises HUB_ERRORS."""
    begin = bytearray()
    asked = {**headers, "Accept-Encoding": "identity", "Range": f"bytes=0-{count - 1}"}
    with get_session().stream("GET", url, headers=asked, timeout=STALL_S) as response:
        hf_raise_for_status(response)
        for chunk in response.iter_raw():  # of a server that ignores the range, no more than that
            begin += chunk
            if len(begin) >= count:
                break
    return bytes(begin[:count])


def _complete(source: Source, partial: PartialFile, progress: Callable[[int], None]) -> None:
    digest = source.etag if is_digest(source.etag) else None
    while True:
        is_resumed = partial.offset > 0
        _fill(source, partial, progress)
        try:
            partial.finish(digest)
        except ModelBroken:
            if not is_resumed:
                raise
            log.warning("%s: what an earlier try left was damaged; fetching it anew", source.url)
        else:
            return


def _fill(source: Source, partial: PartialFile, progress: Callable[[int], None]) -> None:
    failures = 0
    while partial.offset < source.size:
        before = partial.offset
        try:
            for chunk in _chunks(source, partial):
                partial.write(chunk)
                progress(partial.offset)
            if partial.offset > before:
                continue  # a server may send less than was asked for
            raise HubUnavailable(f"The hub sends nothing of {source.url} from byte {before:,} on.")
        except HUB_ERRORS as error:
            failures = 1 if partial.offset > before else failures + 1
            if failures >= TRIES or not is_temporary(error):
                raise
            log.warning(
                "%s at byte %d of %d: %s; trying again", source.url, partial.offset, source.size, first_line(error)
            )
        _pause(min(2.0 ** (failures - 1), _MAX_PAUSE_S), partial, progress)


def _chunks(source: Source, partial: PartialFile) -> Iterator[bytes]:
    """Yield the bytes from the partial file's offset on, as they arrive."""
    last = min(source.size, partial.offset + _PIECE) - 1
    headers = {**source.headers, "Accept-Encoding": "identity", "Range": f"bytes={partial.offset}-{last}"}
    with get_session().stream("GET", source.url, headers=headers, timeout=STALL_S) as response:
        hf_raise_for_status(response)
        if response.status_code != 206:
            if partial.offset:
                log.warning("%s: the server can't send a part of it; fetching it anew", source.url)
                partial.restart()
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {partial.offset}-"):
            raise HubUnavailable(f"The hub sends another part of {source.url} than byte {partial.offset:,} on.")
        yield from response.iter_raw()


def _pause(seconds: float, partial: PartialFile, progress: Callable[[int], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        progress(partial.offset)
        time.sleep(min(left, _LOOK_S))
