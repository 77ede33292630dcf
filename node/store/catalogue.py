"""The models whose files are on this node, and where."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path

from huggingface_hub import constants

from node.core.errors import ModelBroken, ModelNotFound, PippinError
from node.core.types import LONGEST_NAME, MOST_MODELS
from node.store.files import id_parts
from node.store.listing import Folder, Listing
from node.store.names import canonical
from node.store.weights import Weights


class Catalogue:
    """Looks in this order: the models that come with Pippin, the user's directories, models from peers, the hub's cache.

    `local`, `created`, `find` and `target` answer from memory; all other methods read directories and so may block for as
    long as a disk takes to wake up.
    """

    def __init__(
        self, builtin: Path, models_dirs: Sequence[Path], data_dir: Path, hub_cache: Path | None = None
    ) -> None:
        self._fetched = data_dir / "models"
        self._roots = (builtin, *models_dirs, self._fetched)
        self._hub_cache = hub_cache or Path(constants.HF_HUB_CACHE)
        self._listing = Listing()
        self._local: tuple[str, ...] = ()
        self._created: dict[str, int] = {}
        """Of each model that is complete here, in the order of the places they are in."""

    def refresh(self) -> None:
        """Searches the disk for models that came or went; lists the first MOST_MODELS. Raises OSError when this process has no descriptors left."""
        created: dict[str, int] = {}
        for model_id, folder in self._listing.search(self._roots, self._hub_cache):
            if folder.whole and len(created) < MOST_MODELS:
                created.setdefault(model_id, folder.created)
        self._created, self._local = created, tuple(created)

    def local(self) -> tuple[str, ...]:
        """Ids of the models that were complete here at the last search."""
        return self._local

    def created(self, model_id: str) -> int:
        """When the model came to this node, in seconds since 1970; 0 if it is not complete here."""
        return self._created.get(model_id, 0)

    def find(self, name: str, elsewhere: Sequence[str] = ()) -> str:
        """The id that a person means: one held here or `elsewhere` if there is one, else one to look for on the hub."""
        if len(name) > LONGEST_NAME:  # comparing names takes the square of their length
            what = f"The model's name has {len(name):,} characters; {LONGEST_NAME} are the most."
            raise ModelNotFound(what, param="model")
        name = name.strip()
        wanted = canonical(name)
        held = (*self._local, *elsewhere)
        for model_id in (name, wanted):
            if model_id in held:
                return model_id
        for model_id in held:
            if name.lower() in (model_id.lower(), model_id.lower().rpartition("/")[2]):
                return model_id
        if len(id_parts(wanted)) == 2:
            return wanted
        if flaw := self.flaw(wanted):
            raise flaw
        near = difflib.get_close_matches(name, held, n=1)
        hint = f"Did you mean {near[0]}?" if near else "Write its hub id, `org/name`, or see `/v1/models`."
        raise ModelNotFound(f"There is no model {name!r} here.", hint=hint, param="model")

    def directory(self, model_id: str) -> Path | None:
        """Where the whole model is, if it is."""
        return next((folder.path for folder in self._places(model_id) if folder.whole), None)

    def directory_for(self, model_id: str, start: int, end: int, ends: bool) -> Path | None:
        """Where the files of one stage are: of a model that is here whole, or in the part that the stage needs."""
        places = self._places(model_id)
        return next((place.path for place in places if self._listing.has_stage(place, start, end, ends)), None)

    def flaw(self, model_id: str) -> PippinError | None:
        """Why a folder of that name which somebody put here is no model, if there is one."""
        for root in self._roots:
            path = root.joinpath(*id_parts(model_id))
            try:
                if path.is_dir():
                    Weights.read(path)
                    if not (path / "config.json").is_file():
                        return ModelBroken(f"{path} has no config.json.", hint="Fetch the model again.")
            except PippinError as error:
                return error
            except OSError:
                continue
        return None

    def partial(self, model_id: str) -> Path | None:
        """A directory of the model that has its small files, config and tokenizer, and maybe weights."""
        return next((folder.path for folder in self._places(model_id) if folder.has_tokenizer), None)

    def target(self, model_id: str) -> Path:
        """Where files of the model that come from peers belong; it may not exist yet."""
        return self._fetched.joinpath(*id_parts(model_id))

    def _places(self, model_id: str) -> Iterator[Folder]:
        parts = id_parts(model_id)
        for root in self._roots:
            if folder := self._listing.look(root.joinpath(*parts)):
                yield folder
        yield from self._listing.snapshots(self._hub_cache / f"models--{'--'.join(parts)}")
