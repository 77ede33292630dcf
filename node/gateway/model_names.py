"""Which model a request means by a name: an alias of --alias, an id, or a short name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.cluster.agent import Agent
from node.core.clock import now
from node.core.errors import ModelNotFound
from node.core.generation import RANGES, in_range
from node.core.pool import Pool
from node.core.reports import NodeReport
from node.model.catalogue import Catalogue
from node.model.short_names import untagged


@dataclass(slots=True)
class ModelNames:
    """Knows the aliases of all nodes. If several nodes have the same one, that of the node that is asked counts first."""

    agent: Agent
    catalogue: Catalogue
    files: Pool

    def held(self) -> list[str]:
        """Ids of the models that some node of the cluster holds or serves."""
        served = {ring.model for ring in self.agent.placement.rings}
        return sorted(served | {held.id for report in self.agent.alive() for held in report.models})

    def match(self, name: str) -> str | None:
        """The model's id, without looking at the disk; None for a name that matches nothing. Raises ModelNotFound."""
        return self.catalogue.match(self._without_alias(name), self.held())

    async def id_of(self, name: str) -> str:
        """The model's id. May look at the disk. Raises ModelNotFound, ModelBroken.

        A model that came to this node just now is about to be asked of the head, so wait until that has heard of it.
        """
        agent, deadline = self.agent, now() + 1.0  # it takes some milliseconds
        if (model := self.match(name)) is None:
            model = await self.files.run(self.catalogue.find, self._without_alias(name), self.held())
            agent.touch()
        elif any(ring.model == model for ring in agent.placement.rings):
            return model
        while agent.head not in ("", agent.info.id) and agent.states.lacks_news(agent.head) and now() < deadline:
            await agent.changed.wait(0.02)
        return model

    def aliases(self) -> Mapping[str, str]:
        """Ids of models by alias, without aliases of models that are not known."""
        aliases, held = sorted(self._aliases().items()), self.held()
        return {name: model for name, given in aliases if (model := self._match_told(given, held))}

    def preset(self, model: str) -> Mapping[str, float]:
        """Sampling that --sampling of any node gives to the requests of a model that do not say it. `model`: its id."""
        found: dict[str, float] = {}
        held = self.held()
        for each in (preset for report in self._nodes() for preset in report.presets):
            if self._match_told(self._without_alias(each.model), held) == model:
                found |= each.sampling
        return {name: found[name] for name in RANGES.keys() & found if in_range(name, found[name])}

    def _match_told(self, name: str, held: Sequence[str]) -> str | None:
        """The id of a model that another node names, perhaps by any text; None for a name that matches nothing."""
        try:
            return self.catalogue.match(name, held)
        except ModelNotFound:
            return None

    def _without_alias(self, name: str) -> str:
        return self._aliases().get(untagged(name), name)

    def _aliases(self) -> dict[str, str]:
        return {untagged(alias.name): alias.model for report in self._nodes() for alias in report.aliases}

    def _nodes(self) -> Sequence[NodeReport]:
        """Those that are here, this node last, so that what it says counts."""
        own = self.agent.info.id
        return sorted(self.agent.alive(), key=lambda report: (report.info.id == own, report.info.id))
