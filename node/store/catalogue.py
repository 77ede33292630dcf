"""The models whose files are on this node, and where."""

import difflib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import constants

from node.core.errors import ModelNotFound, PippinError
from node.core.types import LONGEST_NAME
from node.store.files import id_parts, is_safe
from node.store.names import canonical
from node.store.weights import files_for, text_files, weight_map

_FRESH_S = 5.0
"""How long a listing is reused: heartbeats ask twice a second, and people wait longer than this for a copy."""


class Catalogue:
    """Looks in this order: the models that come with Pippin, the user's directories, models from peers, the hub's cache.

    All methods but the constructor read directories and so may block for milliseconds.
    """

    def __init__(
        self, builtin: Path, models_dirs: Sequence[Path], data_dir: Path, hub_cache: Path | None = None
    ) -> None:
        self._fetched = data_dir / "models"
        self._roots = (builtin, *models_dirs, self._fetched)
        self._hub_cache = hub_cache or Path(constants.HF_HUB_CACHE)
        self._listed: tuple[str, ...] = ()
        self._listed_at = -_FRESH_S

    def local(self) -> tuple[str, ...]:
        """Ids of the models that are complete here, in the order of the places they are in."""
        if time.monotonic() - self._listed_at >= _FRESH_S:
            found = {model_id: None for model_id, directory in self._held() if _complete(directory)}
            self._listed, self._listed_at = tuple(found), time.monotonic()
        return self._listed

    def refresh(self) -> None:
        """Forgets the last listing; to be called when files have come or gone."""
        self._listed_at = -_FRESH_S

    def find(self, name: str, elsewhere: Sequence[str] = ()) -> str:
        """The id that a person means: one held here or `elsewhere` if there is one, else one to look for on the hub."""
        if len(name) > LONGEST_NAME:  # comparing names takes the square of their length
            what = f"The model's name has {len(name):,} characters; {LONGEST_NAME} are the most."
            raise ModelNotFound(what, param="model")
        name = name.strip()
        wanted = canonical(name)
        held = (*self.local(), *elsewhere)
        for model_id in (name, wanted):
            if model_id in held:
                return model_id
        for model_id in held:
            if name.lower() in (model_id.lower(), model_id.lower().rpartition("/")[2]):
                return model_id
        if len(id_parts(wanted)) == 2:
            return wanted
        near = difflib.get_close_matches(name, held, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Write its hub id, `org/name`, or see `/v1/models`."
        raise ModelNotFound(f"There is no model {name!r} here.", hint=hint, param="model")

    def directory(self, model_id: str) -> Path | None:
        """Where the whole model is, if it is."""
        return next((path for path in self._places(model_id) if _complete(path)), None)

    def directory_for(self, model_id: str, start: int, end: int, ends: bool) -> Path | None:
        """Where the files of one stage are: of a model that is here whole, or in the part that the stage needs."""
        for path in self._places(model_id):
            try:
                files = files_for(weight_map(path), start, end, ends)
            except (PippinError, OSError, RecursionError):
                continue
            if all((path / file).is_file() for file in files):
                return path
        return None

    def partial(self, model_id: str) -> Path | None:
        """A directory of the model that has its small files, config and tokenizer, and maybe weights."""
        return next((path for path in self._places(model_id) if _has_tokenizer(path)), None)

    def target(self, model_id: str) -> Path:
        """Where files of the model that come from peers belong; it may not exist yet."""
        return self._fetched.joinpath(*id_parts(model_id))

    def created(self, model_id: str) -> int:
        """When the model came to this node, in seconds since 1970; 0 if it is not here."""
        path = self.partial(model_id)
        return 0 if path is None else int((path / "config.json").stat().st_mtime)

    def _places(self, model_id: str) -> Iterator[Path]:
        parts = id_parts(model_id)
        for root in self._roots:
            path = root.joinpath(*parts)
            if (path / "config.json").is_file():
                yield path
        yield from self._snapshots(self._hub_cache / f"models--{'--'.join(parts)}")

    def _snapshots(self, folder: Path) -> Iterator[Path]:
        """The revisions of a model in the hub's cache: `main` as last seen, then the others, for a change of only the
        model's card makes a new one that holds nothing yet.
        """
        ref = folder / "refs" / "main"
        main = ref.read_text().strip() if ref.is_file() else ""
        configs = [path for path in folder.glob("snapshots/*/config.json") if path.is_file()]
        found = [path.parent for path in configs]
        yield from sorted(found, key=lambda path: (path.name == main, path.stat().st_mtime), reverse=True)

    def _held(self) -> Iterator[tuple[str, Path]]:
        for root in self._roots:
            for config in sorted([*root.glob("*/config.json"), *root.glob("*/*/config.json")]):
                parts = config.parent.relative_to(root).parts
                if all(map(is_safe, parts)):
                    yield "/".join(parts), config.parent
        for folder in sorted(self._hub_cache.glob("models--*")):
            model_id = folder.name.removeprefix("models--").replace("--", "/")
            for snapshot in self._snapshots(folder):
                yield model_id, snapshot


def _has_tokenizer(directory: Path) -> bool:
    return any(True for pattern in ("*token*", "vocab*", "*.model") for _ in directory.glob(pattern))


def _complete(directory: Path) -> bool:
    try:
        return all((directory / file).is_file() for file in text_files(weight_map(directory)))
    except (PippinError, OSError, RecursionError):  # a link to nowhere, an index nested without end
        return False
