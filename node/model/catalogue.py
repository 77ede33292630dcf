"""Catalogue of the models whose files are on this node."""

import difflib
import logging
import math
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from huggingface_hub import constants

from node.core.errors import ModelBroken, ModelNotFetched, ModelNotFound, PippinError
from node.core.limits import MAX_MODELS, MAX_NAME_CHARS
from node.core.models import HeldModel, Shard
from node.core.units import format_bytes
from node.host.examination import without_home
from node.model import fetched
from node.model.file_names import DESCRIPTION, checked_revision, id_parts
from node.model.formats import TAKE_ANOTHER
from node.model.layouts import Layouts
from node.model.scanner import Folder, FolderScanner
from node.model.short_names import SHORT_NAMES, canonical, not_for_mlx, untagged
from node.model.weights import Weights

log = logging.getLogger(__name__)

_PATH_HINT = "Start a node with --model and this path, and name the model by its folder."


def lm_studio(home: Path) -> tuple[Path, ...]:
    """Where LM Studio keeps models, today and in its first versions. The folders need not exist."""
    return home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"


class Catalogue:
    """Finds models in this order: those that come with Pippin, the user's directories, models from peers, the hub's
    cache.

    `local`, `unusable`, `created`, `match` and `target` answer from memory. All other methods read directories, and so may block for
    as long as a disk takes to wake up.
    """

    def __init__(
        self,
        builtin: Path,
        models_dirs: Sequence[Path],
        data_dir: Path,
        hub_cache: Path | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        self.layouts = layouts or Layouts()
        self._fetched = data_dir / "fetched"
        self._roots = (builtin, *models_dirs, data_dir / "models")
        self._hub_cache = hub_cache or Path(constants.HF_HUB_CACHE)
        self._scanner = FolderScanner(self.layouts)
        self._refreshing = threading.Lock()
        self._searched_again_at = -math.inf
        self._local: tuple[HeldModel, ...] = ()
        self._created: dict[str, int] = {}
        self._gguf: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where models from peers and from the hub are kept."""
        return self._fetched, self._hub_cache

    @property
    def denied(self) -> tuple[Path, ...]:
        """What the system did not let the last search read, though the files' permissions might."""
        return self._scanner.denied

    def refresh(self) -> None:
        """Search the disk for models that came or went, and list the first MAX_MODELS.

        Raises OSError when this process has no descriptors left.
        """
        with self._refreshing:
            local: dict[HeldModel, None] = {}
            created: dict[str, int] = {}
            for model_id, folder in self._scanner.search(self._roots, self._fetched, self._hub_cache):
                if folder.whole and len(local) < MAX_MODELS:
                    local[HeldModel(model_id, folder.revision, folder.bytes)] = None
                    created.setdefault(model_id, folder.files["config.json"][1] // 1_000_000_000)
            self._created, self._local = created, tuple(local)
            self._gguf = tuple(sorted(set(self._scanner.gguf) - created.keys()))

    def local(self) -> tuple[HeldModel, ...]:
        """The models that were complete at the last search, in the order of the directories searched."""
        return self._local

    def unusable(self) -> dict[str, str]:
        """Ids of the models that were there at the last search in a format that is not supported, with what to do instead."""
        return dict.fromkeys(self._gguf, f"Its files here are GGUF, the format of llama.cpp. {TAKE_ANOTHER}")

    def created(self, model_id: str) -> int:
        """Time at which the model came to this node, in seconds since 1970; 0 if it is not complete here."""
        return self._created.get(model_id, 0)

    def find(self, name: str, elsewhere: Sequence[str] = ()) -> str:
        """Resolve a name to a model id: one held here or `elsewhere` if it matches, else a hub id.

        Finds a model that came since the last search. Raises ModelNotFound, or the error of `flaw`.
        """
        if model_id := self.match(name, elsewhere):
            return model_id
        if time.monotonic() - self._searched_again_at > 1.0:  # anybody can send such names
            self._searched_again_at = time.monotonic()
            self.refresh()
        if model_id := self.match(name, elsewhere):
            return model_id
        if flaw := self.flaw(canonical(name)):
            raise flaw
        _check_name(name.strip())
        known = {each: each for each in SHORT_NAMES}
        for model in (*self._created, *elsewhere):
            known |= {model.lower(): model, model.lower().rpartition("/")[2]: model}
        near = difflib.get_close_matches(name.strip().lower(), known, n=1)
        hint = f"Did you mean {known[near[0]]}?" if near else "Write its hub id, `org/name`, or see `/v1/models`."
        raise ModelNotFound(f"There is no model {name.strip()!r} here.", hint=hint, param="model")

    def match(self, name: str, elsewhere: Sequence[str] = ()) -> str | None:
        """Resolve a name as `find` does; None for a one-part name that matches nothing. Raises ModelNotFound."""
        if len(name) > MAX_NAME_CHARS:  # comparing names takes time quadratic in their length
            what = f"The model's name has {len(name):,} characters; {MAX_NAME_CHARS} are the most."
            raise ModelNotFound(what, param="model")
        name = untagged(name)
        wanted = canonical(name)
        held = (*self._created, *elsewhere)
        for model_id in (name, wanted):
            if model_id in held:
                return model_id
        for model_id in held:
            if name.lower() in (model_id.lower(), model_id.lower().rpartition("/")[2]):
                return model_id
        if "/" in name:
            _check_name(name)
        return wanted if len(id_parts(wanted)) == 2 else None

    def whole(self, model_id: str, revision: str = "") -> Folder | None:
        """Folder of the complete model, or None; without `revision`, the first one found."""
        return next((folder for folder in self._places(model_id, revision) if folder.whole), None)

    def described(self, model_id: str, revision: str = "") -> Folder | None:
        """Folder with at least the config and all tensor headers, which suffice to place the model; else None."""
        return next(self._describing(model_id, revision), None)

    def directory_for(self, shard: Shard, ends: bool) -> Path | None:
        """Directory with the files of one stage: of the complete model, or of the part that the stage needs."""
        places = self._places(shard.model, shard.version.revision)
        has_stage = self._scanner.has_stage
        return next((place.path for place in places if has_stage(place, shard.start, shard.end, ends)), None)

    def offered(self, model_id: str, revision: str) -> list[Path]:
        """Directories from which other nodes may take files of the model: they describe all of its tensors."""
        return [place.path for place in self._describing(model_id, revision)]

    def paths(self, model_id: str, revision: str) -> dict[str, Path]:
        """All files of the model that are here, in any directory, by name."""
        found: dict[str, Path] = {}
        for place in self._places(model_id, revision):
            for name in place.files:
                found.setdefault(name, place.path / name)
        return found

    def weights(self, directory: Path) -> Weights:
        """See `Layout.weights`. Raises also ModelBroken if the directory can't be read."""
        try:
            return self.layouts.of(directory).weights
        except OSError as error:
            raise ModelBroken(f"{directory.name} cannot be read: {error.strerror}.") from error

    def flaw(self, model_id: str) -> PippinError | None:
        """The error if a folder of this name exists but holds no valid model; else None."""
        for root in self._roots:
            path = _place(root, id_parts(model_id))
            try:
                if path.is_dir():
                    self.weights(path)
                    if not (path / "config.json").is_file():
                        return ModelBroken(f"{model_id} has no config.json.", hint="Fetch the model again.")
            except PippinError as error:
                return error
            except OSError:
                continue
        return None

    def tokenizer_directory(self, model_id: str, revision: str) -> Path | None:
        """A directory with the model's small files (config and tokenizer), and maybe weights."""
        return next((folder.path for folder in self._places(model_id, revision) if folder.has_tokenizer), None)

    def target(self, model_id: str, revision: str) -> Path:
        """Directory for files of the model that are fetched from peers; it may not exist yet."""
        return self._fetched.joinpath(checked_revision(revision), *id_parts(model_id))

    def remove(self, model_id: str, *, not_fetched: bool = False) -> int:
        """Delete all files of a model that were fetched, whole or not. Returns the number of bytes that are free now.

        `not_fetched`: also its folder in the hub's cache if another program fetched some of it. Raises ModelNotFetched if
        there is such a one, ModelNotFound if there are no files, ModelBroken if they can't be deleted.
        """
        parts = id_parts(model_id)
        own = [root.joinpath(*parts) for root in self._scanner.folders(self._fetched)]
        if len(parts) == 1:  # the folder of an organization, with its models, has such a name, too
            own = [path for path in own if (path / "config.json").is_file()]
        cached = fetched.repository(self._hub_cache, model_id)
        found = [path for path in (*own, cached) if path.is_dir()]
        if not found:
            builtin, *others = [_place(root, parts) for root in self._roots]
            kept = next((path for path in others if path.is_dir()), None)
            where = "See `cluster models`."
            if kept:
                log.info("%s is not deleted: %s was not fetched", model_id, kept)
                where = "Its folder is a user's, and named in that node's log: delete it there."
            where = "It comes with Pippin." if builtin.is_dir() else where
            raise ModelNotFound(f"No files of {model_id} were fetched to this node.", hint=where, param="model")
        if cached in found and not not_fetched and not fetched.is_fetched(cached):
            size = format_bytes(fetched.size_on_disk([cached]))
            raise ModelNotFetched(
                f"Pippin did not fetch all of {model_id} in {without_home(cached)} ({size}).",
                hint=f'`cluster rm --yes {model_id}` deletes it all the same, as does "not_fetched": true in HTTP.',
                param="model",
            )
        return _delete(found)

    def _describing(self, model_id: str, revision: str) -> Iterator[Folder]:
        return (place for place in self._places(model_id, revision) if place.whole or DESCRIPTION in place.files)

    def _places(self, model_id: str, revision: str) -> Iterator[Folder]:
        """Folders of this revision; for an empty `revision`, all whose revision is known."""
        parts, scanner = id_parts(model_id), self._scanner
        own = (scanner.read(_place(root, parts)) for root in self._roots)
        roots = [root for root in scanner.folders(self._fetched) if revision in ("", root.name)]
        of_peers = (scanner.read(root.joinpath(*parts), root.name) for root in roots)
        for folder in chain(own, of_peers, scanner.snapshots(fetched.repository(self._hub_cache, model_id))):
            if folder and folder.revision and revision in ("", folder.revision):
                yield folder


def _delete(folders: Sequence[Path]) -> int:
    """Returns the number of bytes that are free now. Raises ModelBroken."""
    freed, folder = 0, folders[0]
    try:
        freed = fetched.size_on_disk(folders)
        for folder in folders:
            shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s can't be deleted: %s", folder, error.strerror)
        hint = "Its node's log names the folder: delete it yourself."
        raise ModelBroken(f"{folder.name} can't be deleted: {error.strerror}.", hint=hint) from error
    return freed


def _check_name(name: str) -> None:
    """Raises ModelNotFound for names of something else, with what to write instead."""
    if instead := not_for_mlx(name):
        raise ModelNotFound(f"{name!r} is no model for MLX.", hint=instead, param="model")
    if name.startswith(("/", "./", "../", "~")):
        raise ModelNotFound(f"{name!r} is a path.", hint=_PATH_HINT, param="model")


def _place(root: Path, parts: tuple[str, ...]) -> Path:
    """Where a directory of models has a model: in it, or it is the model's folder itself."""
    return root if parts == (root.name,) and (root / "config.json").is_file() else root.joinpath(*parts)
