"""The models that the cluster shall serve, and what the head knows of each."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from node.cluster.agent import Agent
from node.cluster.failed_loads import FailedLoads
from node.cluster.model_specs import ModelSpecs
from node.cluster.readiness import ready_rings
from node.cluster.wanted_model import BEGIN_S, OPEN_WAIT_S, WantedModel, refusal_of
from node.core.clock import now
from node.core.errors import Overloaded, PippinError, ShuttingDown, as_pippin_error, error_from
from node.core.models import ModelSpec, Wish
from node.core.reports import Issue, NodeReport
from node.core.rings import Placement, Refusal
from node.core.views import ClusterView
from node.core.warning_codes import Code

log = logging.getLogger(__name__)

MOST_ASKED = 64
"""Maximum models that are wanted for requests alone and are not served."""


class WantedModels:
    def __init__(self, agent: Agent, specs: ModelSpecs) -> None:
        self._agent = agent
        self._specs = specs
        self.models: dict[str, WantedModel] = {}
        """By id."""
        self.unloaded: set[str] = set()
        """Models that a user has unloaded, until no node names them any more."""
        self.loads = FailedLoads(agent, self.models)
        self.group = asyncio.TaskGroup()
        """Runs the searches for descriptions. To be entered by the head's task."""
        self.describing: dict[str, asyncio.Task[Refusal | None]] = {}

    # --- requests -----------------------------------------------------------------------------------------------------

    async def ask(self, model: str) -> None:
        """Add a model for a request; returns when its description is known.

        Raises Overloaded if too many models are being looked for, or the model's failure.
        """
        asked = self._only_asked(self._agent.placement)
        if model not in self.models and len(asked) >= MOST_ASKED:  # make room for one more
            idle = [each for each in asked if each not in self.describing]
            if not idle:
                raise Overloaded(
                    f"The head is looking for {len(asked)} other models already.", hint="Try again in a few seconds."
                )
            del self.models[min(idle, key=lambda each: self.models[each].asked_at)]
        wanted = self.models.setdefault(model, WantedModel())
        wanted.asked_at = now()
        failure = wanted.failure if now() < wanted.failed_at + 3.0 else None  # a later request tries again
        if failure is None:
            wanted.failure = None
            if wanted.spec is None:
                # The caller may go away; the next one uses the result.
                failure = await asyncio.shield(self._describe(model, wanted))
        if failure:
            raise error_from(failure.code, failure.message, hint=failure.hint)

    def wish(self, model: str, wish: Wish) -> Wish:
        """Set what a user wishes of a model. Returns what was wished before."""
        wanted = self.models.setdefault(model, WantedModel())
        before, wanted.wish = wanted.wish, wish
        self.unloaded.discard(model)
        return before

    def keep(self, model: str, keep_s: float) -> None:
        """Set how long a model may be idle after the request that says so. One that is gone meanwhile stays so."""
        if wanted := self.models.get(model):
            wanted.wish, wanted.used_at = replace(wanted.wish, keep_s=keep_s), now()

    def withdraw(self, model: str, before: Wish) -> None:
        """Undo a wish that failed. A model that nobody else wants and that can't be described is forgotten."""
        wanted = self.models.get(model)
        if wanted is None:
            return
        wanted.wish = before
        if wanted.spec is None and model in self._only_asked(self._agent.placement) and model not in self.describing:
            del self.models[model]

    def drop(self, model: str) -> None:
        """Forget a model that a user unloads, also if nodes name it with --model."""
        self.unloaded.add(model)
        self.models.pop(model, None)
        self.describing.pop(model, None)  # whoever wants it again must not wait for that one

    def forget_users(self) -> None:
        """Forget what users told this node while it was head: the head of now may have been told otherwise."""
        self.unloaded.clear()
        for wanted in self.models.values():
            wanted.wish = Wish()

    def _only_asked(self, current: Placement) -> list[str]:
        """Models that are wanted for requests alone: nobody names them, and no ring serves them."""
        served = {ring.model for ring in current.rings}
        return [model for model, wanted in self.models.items() if not wanted.is_named and model not in served]

    # --- descriptions -------------------------------------------------------------------------------------------------

    def _describe(self, model: str, wanted: WantedModel) -> asyncio.Task[Refusal | None]:
        """The task that searches a model's description, at most one per model. Its result is the failure, if any.

        Raises ShuttingDown when the head's task has ended.
        """
        if model not in self.describing:
            search = self._find_spec(model, wanted)
            try:
                self.describing[model] = self.group.create_task(search, name=f"describe {model}")
            except RuntimeError as error:
                search.close()
                raise ShuttingDown(
                    "This node is stopping.", hint="Ask another node, or this one when it is back."
                ) from error
        return self.describing[model]

    async def _find_spec(self, model: str, wanted: WantedModel) -> Refusal | None:
        """Root of a task: any error becomes the reason why the model is refused."""
        try:
            wanted.draft = self._draft_of(model)
            spec = wanted.spec or await self._specs.find(model)
            if wanted.draft:
                spec = await self._with_draft(spec, wanted)
            wanted.spec, wanted.failure, wanted.retry.failures = spec, None, 0
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("describing failed")
            failed = as_pippin_error(error)
            refusal = refusal_of(model, failed)
            level = logging.DEBUG if refusal == wanted.failure else logging.ERROR
            log.log(level, "%s", failed if failed.message.startswith(model) else f"{model}: {failed}")
            if wanted.spec is None:  # otherwise an earlier head told it meanwhile
                wanted.failure, wanted.failed_at = refusal, now()
                wanted.retry.fail()
        finally:
            if self.describing.get(model) is asyncio.current_task():
                del self.describing[model]
            if wanted.failure and self.models.get(model) is wanted and model in self._only_asked(self._agent.placement):
                del self.models[model]  # those who wait are told; a later request makes the head try again
            self._agent.head_due.notify()
        return wanted.failure

    async def _with_draft(self, spec: ModelSpec, wanted: WantedModel) -> ModelSpec:
        """A description with that of the draft model; without it if that can't be used, as the text is the same."""
        try:
            found = await self._specs.with_draft(wanted.draft, spec)
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("describing failed")
            if spec.draft and spec.draft.id == wanted.draft:  # as an earlier head has found it
                return spec
            failed = refusal_of(wanted.draft, as_pippin_error(error))
            issue = Code.DRAFT_REFUSED.issue(
                model=spec.id, draft=wanted.draft, error=failed.message, hint=failed.hint or None
            )
            log.log(
                logging.DEBUG if issue == wanted.draft_failure else logging.WARNING, "%s %s", issue.text, issue.hint
            )
            wanted.draft_failure = issue
            wanted.draft_retry.fail()
            return replace(spec, draft=None)
        wanted.draft_failure, wanted.draft_retry.failures = None, 0
        return found

    def issues(self) -> tuple[Issue, ...]:
        """Of the models that are served without the draft model that a node wants for them."""
        served = [wanted for model, wanted in self.models.items() if wanted.spec and self._draft_of(model)]
        return tuple(wanted.draft_failure for wanted in served if wanted.draft_failure)

    def _draft_of(self, model: str) -> str:
        """The draft model that a node wants for a model; empty if none does."""
        nodes = sorted(self._agent.alive(), key=lambda node: node.info.id)
        return next((each.draft for node in nodes for each in node.drafts if each.model == model), "")

    def lacks_spec(self, current: Placement) -> bool:
        """Whether a placed model is not known yet, as on a new head; until it is, the placement must not change."""
        placed = [self.models.get(ring.model) for ring in current.rings]
        return any(wanted is None or (wanted.spec is None and wanted.failure is None) for wanted in placed)

    def specs(self, models: Iterable[str]) -> tuple[ModelSpec, ...]:
        """Descriptions of those of the models that have one, with what a user wishes of them."""
        known = [wanted for model in models if (wanted := self.models[model]).spec]
        return tuple(replace(wanted.spec, wish=wanted.wish) for wanted in known if wanted.spec)

    # --- planning -----------------------------------------------------------------------------------------------------

    def update(self, nodes: Sequence[NodeReport], current: Placement) -> None:
        """Add the models that are named or placed, forget those that nobody needs, and search descriptions."""
        for model in self._only_asked(current):
            wanted = self.models[model]
            unserved_s = now() - max(wanted.asked_at, wanted.served_at)
            if unserved_s > OPEN_WAIT_S and model not in self.describing:
                del self.models[model]
        named = {model for node in nodes for model in node.preload}
        self.unloaded &= named
        preload = named - self.unloaded
        served = {ring.model for ring in current.rings}
        for model in preload | served:
            self.models.setdefault(model, WantedModel(used_at=now()))
        for model in served:
            self.models[model].served_at = now()
        for model in self.models.keys() - served:
            self.models[model].placed_at = now()
        self._take_over(current)
        for model, wanted in self.models.items():
            wanted.preload = model in preload
            # A node that joined since may have the model's files.
            is_new = wanted.spec is None and self._agent.last_joined_at > wanted.failed_at
            is_due = wanted.failure is not None and (is_new or wanted.retry.at < now())
            if is_due and wanted.spec:
                wanted.failure = None
            draft = self._draft_of(model)
            is_draft_due = wanted.draft_failure is not None and wanted.draft_retry.at < now()
            lacks_draft = draft != "" and (draft != wanted.draft or is_draft_due)
            if (is_due or not wanted.failure) and (not wanted.spec or lacks_draft):
                self._describe(model, wanted)

    def _take_over(self, current: Placement) -> None:
        """Take what users wish from an earlier head's placement, maybe this node's own, which has forgotten it since. Descriptions
        from any: no node may have the whole model, and the hub may be unreachable.
        """
        is_earlier = current.fence.term != self._agent.term
        for spec in current.specs:
            if is_earlier and spec.wish.named and spec.id not in self.unloaded:
                self.models.setdefault(spec.id, WantedModel(used_at=now()))
            known = self.models.get(spec.id)
            if known and (known.spec is None or is_earlier) and not known.wish.named:
                known.wish = spec.wish
            if known and known.spec is None:
                known.spec, known.failure = spec, None

    def placeable(self) -> list[str]:
        """Models that could be placed: named ones first, then by the time of the last request, latest first."""
        ready = [model for model, wanted in self.models.items() if wanted.spec and not wanted.failure]
        return sorted(ready, key=lambda model: (not self.models[model].is_named, -self.models[model].asked_at))

    def note_loading(self, view: ClusterView) -> None:
        for model in {ring.model for ring in view.placement.rings if not ready_rings(view, ring.model)}:
            self.models[model].loading_at = now()

    def loading(self, view: ClusterView) -> set[str]:
        """Placed models that a request may wait for."""
        placed = {ring.model for ring in view.placement.rings}
        fresh = {model for model in placed if now() - self.models[model].placed_at < OPEN_WAIT_S}
        return {model for model in fresh if not ready_rings(view, model)}

    def beginning(self, view: ClusterView) -> dict[str, float]:
        """Models that have loaded and of which the first request is yet to come, each with the time until which it is waited for."""
        used = {each.ring for peer in view.peers for each in peer.report.traffic if each.requests}
        begun = {ring.model for ring in view.placement.rings if ring.id in used}
        ready = {ring.model for ring in view.placement.rings if ready_rings(view, ring.model)}
        new = {model: self.models[model] for model in ready - begun if model in self.models}
        until = {
            model: max(wanted.asked_at, wanted.loading_at) + BEGIN_S
            for model, wanted in new.items()
            if not wanted.is_named  # it makes no room anyway
        }
        return {model: end for model, end in until.items() if now() < end}

    def refusals(self) -> tuple[Refusal, ...]:
        """Of models that could not be described or loaded."""
        return tuple(wanted.failure for wanted in self.models.values() if wanted.failure)
