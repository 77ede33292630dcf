"""The models that requests may use: lists of them, and what their small files tell of each."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from node.cluster.agent import Agent
from node.cluster.allowlist import Allowlist
from node.cluster.model_list import build_models
from node.core.errors import ModelNotFound, PippinError
from node.core.limits import MAX_NAME_CHARS
from node.core.lru_cache import LruCache
from node.core.models import HeldModel, ModelDescription, ModelEntry
from node.core.nodes import Address
from node.core.pool import Pool
from node.engine.architectures import WITHOUT_EMBEDDINGS
from node.engine.plan import max_context
from node.gateway.model_names import ModelNames
from node.model.catalogue import Catalogue
from node.model.config import read_config, read_license, read_sampling, read_template
from node.model.short_names import SHORT_NAMES, known_sizes, untagged
from node.text.fim import names_marks

TokenizerFiles = Callable[[HeldModel, Address | None], Awaitable[Path]]
"""The directory of a model's small files, which are fetched if they are not here."""


class _Facts(NamedTuple):
    """Empty, 0 and False if the files that tell them are not here."""

    config: Mapping[str, Any]
    parameters: int
    takes_pictures: bool


@dataclass(slots=True)
class ModelIndex:
    agent: Agent
    catalogue: Catalogue
    names: ModelNames
    allowlist: Allowlist
    small_files: TokenizerFiles
    files: Pool
    started_at: int
    """Unix seconds, for models of which no file is here."""
    _facts: LruCache[tuple[str, str], "_Facts"] = field(default_factory=lambda: LruCache(64))
    """What `told` has read, by model and revision."""

    def entries(self) -> Sequence[ModelEntry]:
        """Models that some node of the cluster holds or serves, and that a request may use; then the aliases.

        An alias that is a model's id as well stands for its own model, as in requests.
        """
        aliases = self.names.aliases()
        allowed = set(self.allowlist.filter({*self.names.held(), *aliases.values()}))
        models = {model: model for model in self.names.held()} | dict(aliases)
        placement = self.agent.placement
        held = [each for report in self.agent.alive() for each in report.models]
        revisions = {each.id: each.revision for each in held} | {
            each.model: each.version.revision for each in placement.rings
        }
        sizes = {spec.id: spec.weight_bytes for spec in placement.specs} | {each.id: each.bytes for each in held}
        return [
            ModelEntry(
                name,
                self.catalogue.created(model) or self.started_at,
                "pippin",
                revisions.get(model, ""),
                sizes.get(model, 0),
                model,
            )
            for name, model in models.items()
            if model in allowed
        ]

    def known(self, name: str) -> ModelEntry | None:
        """The one of `entries` that a name means; None if there is none. Raises ModelNotFound for what is no model's name."""
        entries = {entry.id: entry for entry in self.entries()}
        return entries.get(untagged(name)) or entries.get(self.names.match(name) or "")

    def overview(self) -> dict[str, Any]:
        """The models that nodes hold or that the cluster wants, ready for JSON."""
        aliases, allowed = self.names.aliases(), self.allowlist.filter
        unusable = self.catalogue.unusable()
        return build_models(self.agent.view(), SHORT_NAMES, aliases, allowed, unusable, known_sizes())

    async def told(self, entry: ModelEntry) -> ModelEntry:
        """One of `entries` with what the model's files tell, as far as they are here and can be read."""
        version = entry.model, entry.revision
        facts = self._facts.get(version)
        if facts is None:
            try:
                facts = await self.files.run(self._read_facts, *version)
            except (PippinError, OSError):
                return entry
            if all((*version, facts.config, facts.parameters)):
                self._facts.put(version, facts)
        return self._with_facts(entry, facts)

    def _with_facts(self, entry: ModelEntry, facts: _Facts) -> ModelEntry:
        contexts = [ring.context for ring in self.agent.placement.rings if ring.model == entry.model]
        context = min(contexts, default=max_context(facts.config) if facts.config else 0)
        return replace(entry, context=context, **facts._asdict())

    def _read_facts(self, model: str, revision: str, directory: Path | None = None) -> _Facts:
        """`directory`: of the model's small files, if that is known."""
        directory = directory or self.catalogue.tokenizer_directory(model, revision)
        config = read_config(directory) if directory else {}
        takes_pictures = directory is not None and self.catalogue.layouts.picture_form(directory) is not None
        described = self.catalogue.described(model, revision)
        parameters = self.catalogue.layouts.of(described.path).parameters if described else 0
        return _Facts(config, parameters, takes_pictures)

    async def ready_for_pictures(self) -> list[str]:
        """Models that have a ring and take pictures, and that a request may use."""
        served = {ring.model for ring in self.agent.placement.rings}
        told = [await self.told(entry) for entry in self.entries() if entry.id in served]
        return [entry.id for entry in told if entry.takes_pictures]

    async def describe(self, name: str) -> ModelDescription:
        """What is known of one of `entries`. Raises ModelNotFound, ModelBroken, and the errors of a transfer."""
        entry, model = self.known(name), self.names.match(name)
        if entry is None or model is None:
            raise ModelNotFound(f"There is no model {name[:MAX_NAME_CHARS]!r} here.", param="model")
        holder = next((address for address, _ in self.agent.holders(model)), None)
        directory = await self.small_files(HeldModel(model, entry.revision), holder)
        template = await self.files.run(read_template, directory, self.catalogue.layouts.parser)
        facts = await self.files.run(self._read_facts, model, entry.revision, directory)
        embeds = facts.config["model_type"] not in WITHOUT_EMBEDDINGS
        licensed = await self.files.run(read_license, directory)
        sampling = {**await self.files.run(read_sampling, directory), **self.names.preset(model)}
        fills_in = await self.files.run(names_marks, directory)
        known = self._with_facts(entry, facts)
        return ModelDescription(known, template, embeds, licensed, sampling, fills_in)
