"""Which models a request may have loaded."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from node.cluster.agent import Agent
from node.core.errors import ModelNotAllowed
from node.model.short_names import canonical


class Allowlist:
    """Allows all models without patterns; else those that match one, ignoring case, are placed, or preloaded."""

    def __init__(self, agent: Agent, patterns: Iterable[str]) -> None:
        """`patterns`: of fnmatch, where `*` also matches slashes, or short names of models."""
        self._agent = agent
        self._patterns = tuple(canonical(pattern).lower() for pattern in patterns)

    def filter(self, models: Iterable[str]) -> list[str]:
        if not self._patterns:
            return list(models)
        here = {ring.model for ring in self._agent.placement.rings}
        here.update(model for report in self._agent.alive() for model in report.preload)
        return [
            model
            for model in models
            if model in here or any(fnmatchcase(model.lower(), pattern) for pattern in self._patterns)
        ]

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        if not self.filter([model]):
            raise ModelNotAllowed(
                f"Requests may not load {model} on {self._agent.info.name}.",
                hint="GET /v1/models lists the models that they may use; start the nodes with --allow-model to allow more.",
                param="model",
            )
