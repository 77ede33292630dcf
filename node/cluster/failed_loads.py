"""Loads of wanted models that failed, or ended a node: when they are tried again, and where not."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from node.cluster.agent import Agent
from node.cluster.readiness import ready_rings
from node.cluster.wanted_model import Retry, WantedModel, refusal_of
from node.core.clock import now
from node.core.errors import ModelChanged, ModelCrashes, error_from
from node.core.reports import Crash, NodeReport, StageReport, StageState
from node.core.views import ClusterView


class FailedLoads:
    def __init__(self, agent: Agent, models: Mapping[str, WantedModel]) -> None:
        self._agent = agent
        self._models = models
        self.retries: dict[tuple[str, str], Retry] = {}
        """Of replicas that could not be loaded, by model and node."""

    def note(self, nodes: Sequence[NodeReport], view: ClusterView) -> None:
        """Refuse models that a node could not load; a model that another ring serves is only barred from that node."""
        placed = {ring.id: ring.model for ring in view.placement.rings}
        served = {model for model in placed.values() if ready_rings(view, model)}
        for model in served & self._models.keys():
            self._models[model].retry.failures = 0
        loaded = {
            (stage.shard.model, node.info.id)
            for node in nodes
            for stage in node.stages
            if stage.state is StageState.READY
        }
        failing = {(model, node.info.id) for model in self._models for node in nodes} - loaded
        self.retries = {pair: retry for pair, retry in self.retries.items() if pair in failing or retry.at > now()}
        for node in nodes:
            for stage in node.stages:
                # Nothing is placed on a draining node anyway, and other nodes may be able to load it.
                if stage.state is not StageState.FAILED or stage.ring not in placed or node.draining:
                    continue
                model = stage.shard.model
                if model in served:
                    if (model, node.info.id) not in self.barred():
                        self.retries.setdefault((model, node.info.id), Retry()).fail()
                elif wanted := self._models.get(model):
                    _refuse(wanted, node.info.name, stage)
        for node, crash in self._crashes(nodes):
            if crash.model not in served:
                fault = ModelCrashes(
                    f"{node.info.name} ended by a fault ({crash.cause}) while it loaded {crash.model}.",
                    hint=f"`last-crash.txt` in its data directory has more. `cluster load {crash.model}` tries it again.",
                )
                self._models[crash.model].failure = refusal_of(crash.model, fault)

    def _crashes(self, nodes: Iterable[NodeReport]) -> Iterator[tuple[NodeReport, Crash]]:
        """What ended nodes that loaded these models, and why no other node is to try, until a user wants it all the same."""
        for node in nodes:
            for crash in node.crashed:
                wanted = self._models.get(crash.model)
                is_same = wanted and wanted.spec and wanted.spec.version.revision == crash.revision
                if wanted and is_same and crash.at > wanted.wish.despite:
                    yield node, crash

    def barred(self) -> tuple[tuple[str, str], ...]:
        """(Model, node) pairs of replicas that are not to be tried yet."""
        crashed = [(crash.model, node.info.id) for node, crash in self._crashes(self._agent.alive())]
        return (*(pair for pair, retry in self.retries.items() if retry.at > now()), *crashed)


def _refuse(wanted: WantedModel, node: str, stage: StageReport) -> None:
    """Note that a node could not load a model. `node`: its name."""
    if wanted.failure:  # told already, as by another node of its ring
        return
    model = stage.shard.model
    code, _, text = stage.error.partition(": ")
    hint = f"The log of {node} has more. It is tried again, ever less often; `cluster load {model}` does so at once."
    wanted.failure = refusal_of(model, error_from(code, f"{node} could not load {model}: {text}", hint=hint))
    if code == ModelChanged.code:  # the description is of files that are gone: another is looked for at once
        wanted.spec, wanted.failed_at, wanted.retry.at = None, -math.inf, now()
        return
    wanted.failed_at = now()
    wanted.retry.fail()
