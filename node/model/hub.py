"""Fetches models from the Hugging Face hub: only the files that a stage needs."""

import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from node.core.errors import HubUnavailable, ModelBroken, NoCapacity
from node.core.models import TensorHeader
from node.core.pool import Pool
from node.core.units import format_bytes
from node.model import fetched
from node.model.config import read_config
from node.model.digests import digest_like, is_digest, mismatch
from node.model.download import STALL_S, Source, download, first_bytes
from node.model.file_names import DESCRIPTION, INDEX, check_small_files, is_safe, is_small, is_weights
from node.model.formats import unloadable
from node.model.hub_errors import HUB_ERRORS, translated
from node.model.hub_search import HubModel, about, search
from node.model.layouts import Layouts, read_index
from node.model.safetensors_header import header_length
from node.model.weights import Weights

log = logging.getLogger(__name__)

_READERS = 8
"""Headers read concurrently; a large model has a hundred files and each costs a round trip."""
_BEGIN = 100_001
"""Bytes requested at first of a weight file: most headers are shorter."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a model before its weights are fetched."""

    config: dict[str, Any]
    weights: Weights
    directory: Path
    """Directory of the small files (config, tokenizer, index). `fetch` puts weights into the same one."""


class Hub:
    """Client of the hub.

    All methods block on network and disk. Defaults for endpoint, token and cache: huggingface_hub's.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        cache_dir: Path | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        self._layouts = layouts or Layouts()
        self._api = HfApi(endpoint=endpoint, token=token, library_name="pippin")
        self._cache = cache_dir or Path(constants.HF_HUB_CACHE)
        self._readers = Pool("header", _READERS, max_waiting=4096)
        self._hf_download = partial(
            hf_hub_download, cache_dir=self._cache, endpoint=endpoint, token=token, library_name="pippin"
        )

    def metadata(self, model_id: str, revision: str | None = None) -> Metadata:
        """Config and layout of the weights, downloading small files only.

        Without network they are read from the cache.
        """
        with _told(model_id):
            if not isinstance(try_to_load_from_cache(model_id, "config.json", self._cache, revision), str):
                # Without network this fails at once, while a download of an uncached file retries for half a minute.
                self._api.model_info(model_id, revision=revision, timeout=STALL_S)
            # The snapshot's name is the branch's commit: all further requests are for this one.
            directory = Path(self._download(model_id, "config.json", revision=revision)).parent
            weights = self._layouts.of(directory).description or self._describe(model_id, directory)
        return Metadata(read_config(directory), weights, directory)

    def search(self, text: str) -> list[HubModel]:
        """Raises HubUnavailable."""
        return search(self._api, text)

    def about(self, model_id: str) -> HubModel:
        """What the hub says of a model now. Raises ModelNotFound, HubUnavailable."""
        with _told(model_id):
            return about(self._api, model_id)

    def fetch(
        self,
        model_id: str,
        file: str,
        progress: Callable[[int], None] = lambda _: None,
        *,
        revision: str | None = None,
        needed: int = 0,
    ) -> Path:
        """Download a weight file, calling `progress` with its bytes that are here. Returns the directory that has it.

        A fetch that is broken off keeps what was received, and the next one resumes from there. Exceptions raised by
        `progress` cancel it. `needed`: bytes of all files that are to come from the hub, if they are more than this one.
        """
        metadata = self.metadata(model_id, revision)
        directory, size = metadata.directory, metadata.weights.sizes[file]
        if (directory / file).is_file():
            return directory
        self._check_space(model_id, max(size, needed))
        log.info("fetching %s of %s from the hub (%s)", file, model_id, format_bytes(size))
        with _told(model_id):
            url = hf_hub_url(model_id, file, revision=directory.name, endpoint=self._api.endpoint)
            found = get_hf_file_metadata(url, token=self._api.token, timeout=STALL_S, endpoint=self._api.endpoint)
            if found.size is None or found.etag is None or not is_safe(found.etag):
                raise HubUnavailable(f"The hub tells neither size nor ETag of {file} of {model_id}.")
            headers = build_hf_headers(token=self._api.token, library_name="pippin")
            blobs = directory.parent.parent / "blobs"
            blobs.mkdir(exist_ok=True)
            if found.etag not in fetched.blobs(blobs.parent):
                fetched.note(blobs.parent, found.etag)
            source = Source(url, headers, found.size, found.etag, f"{file} of {model_id}")
            download(source, blobs / found.etag, progress)
            self._download(model_id, file, revision=directory.name)  # links it into the snapshot
        return directory

    def _download(self, model_id: str, file: str, *, revision: str | None) -> str:
        """The path of a file in the cache, which has it from now on, and as Pippin's unless it was there."""
        repository = fetched.repository(self._cache, model_id)
        known = fetched.blobs(repository)
        path = self._hf_download(model_id, file, revision=revision)
        if (blob := Path(path).resolve().name) not in known:
            fetched.note(repository, blob)
        return path

    def _describe(self, model_id: str, directory: Path) -> Weights:
        """Download the small files, read the headers of the weights, and write a description for the next time."""
        info = self._api.model_info(model_id, revision=directory.name, files_metadata=True, timeout=STALL_S)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        small = [file for file, size in sizes.items() if is_small(file, size)]
        check_small_files(model_id, {file: sizes[file] for file in small})
        self._check_space(model_id, sum(sizes[file] for file in small))
        for file in small:
            _verify(model_id, Path(self._download(model_id, file, revision=directory.name)))
        loadable = set(filter(is_weights, sizes))
        index = directory / INDEX
        indexed = set(read_index(index, self._layouts.parser).values()) if index.is_file() else set()
        # A stale index names files that are not there.
        files = sorted(indexed if indexed and indexed <= loadable else loadable)
        if not files:
            raise unloadable(f"{model_id} on the hub", sizes)

        headers = self._readers.map(lambda file: self._header(model_id, directory.name, file, sizes[file]), files)
        tensors = {name: tensor for part in headers for name, tensor in part.items()}
        weights = Weights(tensors, {file: sizes[file] for file in files})
        part = directory / f"{DESCRIPTION}.{uuid.uuid4().hex}.part"  # nodes on one machine share the cache
        part.write_bytes(weights.to_json())
        part.replace(directory / DESCRIPTION)
        return weights

    def _header(self, model_id: str, commit: str, file: str, size: int) -> dict[str, TensorHeader]:
        where = f"{file} of {model_id} on the hub"
        url = hf_hub_url(model_id, file, revision=commit, endpoint=self._api.endpoint)
        headers = build_hf_headers(token=self._api.token, library_name="pippin")
        begin = first_bytes(url, headers, _BEGIN)
        length = header_length(where, begin, size)
        raw = begin[8:] if 8 + length <= len(begin) else first_bytes(url, headers, 8 + length)[8:]
        try:
            tensors, end = self._layouts.parser.header(raw[:length], file)
        except ValueError as error:
            raise ModelBroken(f"The header of {where} is damaged: {error}") from error
        if 8 + length + end > size:
            raise ModelBroken(f"{where} has {size:,} bytes; its header says at least {8 + length + end:,}.")
        return tensors

    def _check_space(self, model_id: str, needed: int) -> None:
        free = shutil.disk_usage(self._cache).free
        if needed > free:
            log.warning("%s has %s free; %s needs %s", self._cache, format_bytes(free), model_id, format_bytes(needed))
            raise NoCapacity(
                f"{model_id} needs {format_bytes(needed)} more on disk; that of the hub's cache has {format_bytes(free)} free.",
                hint="Free some space, or set HF_HOME to a larger disk.",
            )


def _verify(model_id: str, path: Path) -> None:
    """Compare a small file with its etag, by which the cache names it. Raises ModelBroken, and then deletes the file."""
    blob = path.resolve()
    if is_digest(blob.name) and (found := digest_like(blob.name, blob)) != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise mismatch(f"{path.name} of {model_id}", blob.name, found)


@contextmanager
def _told(model_id: str) -> Iterator[None]:
    """Translate exceptions of huggingface_hub into PippinErrors with hints."""
    try:
        yield
    except HUB_ERRORS as error:
        raise translated(error, model_id) from error
