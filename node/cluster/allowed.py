"""Which models a request may have loaded."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from node.cluster.agent import Agent
from node.core.errors import ModelNotAllowed
from node.model.short_names import canonical


class Allowed:
    """Those whose id matches one of the patterns, in any case; and those that nodes preload or that have a place, as
    they cost nothing more. Without patterns all.
    """

    def __init__(self, agent: Agent, patterns: Iterable[str]) -> None:
        """A pattern is one of fnmatch, in which `*` also stands for slashes, or a model's short name."""
        self._agent = agent
        self._patterns = tuple(canonical(pattern).lower() for pattern in patterns)

    def among(self, models: Iterable[str]) -> list[str]:
        if not self._patterns:
            return list(models)
        here = {ring.model for ring in self._agent.placement.rings}
        here.update(model for report in self._agent.alive() for model in report.preload)
        return [model for model in models if model in here or self._matches(model)]

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        if not self.among([model]):
            raise ModelNotAllowed(
                f"{model} is none of the models that requests may have loaded on {self._agent.info.name}.",
                hint="See /v1/models; --allow-model adds to them.",
                param="model",
            )

    def _matches(self, model: str) -> bool:
        return any(fnmatchcase(model.lower(), pattern) for pattern in self._patterns)
