"""The models that the cluster shall serve, and what the head knows of each."""

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from node.cluster.agent import Agent
from node.cluster.model_specs import ModelSpecs
from node.cluster.readiness import ready_rings
from node.core.clock import now
from node.core.errors import (
    ModelChanged,
    ModelCrashes,
    Overloaded,
    PippinError,
    ShuttingDown,
    as_pippin_error,
    error_from,
)
from node.core.limits import MAX_TEXT_CHARS
from node.core.models import ModelSpec, Wish
from node.core.reports import Crash, Issue, NodeReport, StageReport, StageState
from node.core.rings import Placement, Refusal
from node.core.views import ClusterView
from node.core.warning_codes import Code

log = logging.getLogger(__name__)

FRESH_S = 3.0
"""Time for which a model's failure answers all requests for it; a later request makes the head try again."""
RETRY_S = 15.0
"""Time after which a model that could not be described or loaded is tried again without a request; doubled each time
that it fails again, up to MOST_RETRY_S."""
MOST_RETRY_S = 300.0
OPEN_WAIT_S = 60.0
"""A new request waits this long for its model to load; then the client is told to come back. For as long, a model that loads
for a request makes no room for another one, and one that cannot be served stays wanted: its nodes may come back.
"""
MOST_ASKED = 64
"""Maximum models that are wanted for requests alone and are not served."""


@dataclass(slots=True)
class Retry:
    """When something that fails is tried again: ever less often."""

    failures: int = 0
    """How often it failed, one time after the other."""
    at: float = 0.0

    def fail(self) -> None:
        self.at = now() + min(RETRY_S * 2 ** min(self.failures, 10), MOST_RETRY_S)
        self.failures += 1


@dataclass(slots=True)
class WantedModel:
    """Wanted for good if it is named, otherwise until its memory is needed."""

    asked_at: float = 0.0
    """Time of the last request."""
    served_at: float = 0.0
    """Time at which it last had a ring."""
    placed_at: float = 0.0
    """Time at which it got its ring; refreshed while it has none."""
    used_at: float = 0.0
    """Time at which it was last seen to answer requests."""
    kept_at: float = 0.0
    """Time at which a request last said how long it may be idle."""
    preload: bool = False
    """Whether some node names it with --model."""
    wish: Wish = field(default_factory=Wish)
    spec: ModelSpec | None = None
    draft: str = ""
    """Id of the draft model that was last looked for; empty if none was."""
    draft_failure: Issue | None = None
    """Why the model has to do without it."""
    draft_retry: Retry = field(default_factory=Retry)
    failure: Refusal | None = None
    """Why it could not be described or loaded."""
    failed_at: float = 0.0
    retry: Retry = field(default_factory=Retry)

    @property
    def is_named(self) -> bool:
        """Whether it stays loaded although nobody asks for it."""
        return self.preload or self.wish.named

    def is_idle(self, after_s: float) -> bool:
        """Whether it is to be unloaded, as it had no request for so long, or for as long as a request said. The request that
        said so is yet to begin.
        """
        keep_s = after_s if self.wish.keep_s is None else self.wish.keep_s
        awaited = self.used_at < self.kept_at and now() - self.kept_at < OPEN_WAIT_S
        idle_s = now() - max(self.asked_at, self.used_at, self.kept_at)
        return not self.is_named and not awaited and idle_s > keep_s


MTP_PROTOCOL = 8
"""The first protocol whose nodes know of MTP layers: a node before it would fail to load one."""


class WantedModels:
    def __init__(self, agent: Agent, specs: ModelSpecs) -> None:
        self._agent = agent
        self._specs = specs
        self.models: dict[str, WantedModel] = {}
        """By id."""
        self.unloaded: set[str] = set()
        """Models that a user has unloaded, until no node names them any more."""
        self.retries: dict[tuple[str, str], Retry] = {}
        """Of replicas that could not be loaded, by model and node."""
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
        failure = wanted.failure if now() < wanted.failed_at + FRESH_S else None
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
        """Set how long a model may be idle. One that is gone meanwhile stays so."""
        if wanted := self.models.get(model):
            wanted.wish, wanted.kept_at = replace(wanted.wish, keep_s=keep_s), now()

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
            refusal = _refusal(model, failed)
            log.log(logging.DEBUG if refusal == wanted.failure else logging.ERROR, "%s: %s", model, failed)
            if wanted.spec is None:  # otherwise an earlier head told it meanwhile
                wanted.failure, wanted.failed_at = refusal, now()
                wanted.retry.fail()
        finally:
            del self.describing[model]
            if wanted.failure and model in self._only_asked(self._agent.placement):
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
            failed = _refusal(wanted.draft, as_pippin_error(error))
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
        served = ((model, wanted) for model, wanted in self.models.items() if wanted.spec and self._draft_of(model))
        return tuple(wanted.draft_failure for _, wanted in served if wanted.draft_failure)

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
        specs = [replace(wanted.spec, wish=wanted.wish) for wanted in known if wanted.spec]
        if any(report.info.protocol < MTP_PROTOCOL for report in self._agent.alive()):
            specs = [replace(spec, mtp=None) for spec in specs]
        return tuple(specs)

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
        for spec in current.specs:  # of earlier heads: no node may have the whole model, and the hub may be unreachable
            known = self.models.get(spec.id)
            if known and (known.spec is None or current.head != self._agent.info.id) and not known.wish.named:
                known.wish = spec.wish
            if known and known.spec is None:
                known.spec, known.failure = spec, None
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

    def note_failed_loads(self, nodes: Sequence[NodeReport], view: ClusterView) -> None:
        """Refuse models that a node could not load; a model that another ring serves is only barred from that node."""
        placed = {ring.id: ring.model for ring in view.placement.rings}
        served = {model for model in placed.values() if ready_rings(view, model)}
        for model in served & self.models.keys():
            self.models[model].retry.failures = 0
        loaded = {
            (stage.shard.model, node.info.id)
            for node in nodes
            for stage in node.stages
            if stage.state is StageState.READY
        }
        failing = {(model, node.info.id) for model in self.models for node in nodes} - loaded
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
                elif wanted := self.models.get(model):
                    _refuse(wanted, node.info.name, stage)
        for node, crash in self._crashes(nodes):
            if crash.model not in served:
                self.models[crash.model].failure = _refusal(crash.model, _crashed(node.info.name, crash))

    def _crashes(self, nodes: Iterable[NodeReport]) -> Iterator[tuple[NodeReport, Crash]]:
        """What ended nodes that loaded these models, and why no other node is to try, until a user wants it all the same."""
        for node in nodes:
            for crash in node.crashed:
                wanted = self.models.get(crash.model)
                is_same = wanted and wanted.spec and wanted.spec.version.revision == crash.revision
                if wanted and is_same and crash.at > wanted.wish.despite:
                    yield node, crash

    def barred(self) -> tuple[tuple[str, str], ...]:
        """(Model, node) pairs of replicas that are not to be tried yet."""
        crashed = [(crash.model, node.info.id) for node, crash in self._crashes(self._agent.alive())]
        return (*(pair for pair, retry in self.retries.items() if retry.at > now()), *crashed)

    def placeable(self) -> list[str]:
        """Models that could be placed: named ones first, then by the time of the last request, latest first."""
        ready = [model for model, wanted in self.models.items() if wanted.spec and not wanted.failure]
        return sorted(ready, key=lambda model: (not self.models[model].is_named, -self.models[model].asked_at))

    def loading(self, view: ClusterView) -> set[str]:
        """Placed models that a request may wait for. They make no room: they would be asked for again, without end."""
        placed = {ring.model for ring in view.placement.rings}
        fresh = {model for model in placed if now() - self.models[model].placed_at < OPEN_WAIT_S}
        return {model for model in fresh if not ready_rings(view, model)}

    def refusals(self) -> tuple[Refusal, ...]:
        """Of models that could not be described or loaded."""
        return tuple(wanted.failure for wanted in self.models.values() if wanted.failure)


def _refuse(wanted: WantedModel, node: str, stage: StageReport) -> None:
    """Note that a node could not load a model. `node`: its name."""
    if wanted.failure:  # told already, as by another node of its ring
        return
    model = stage.shard.model
    code, _, text = stage.error.partition(": ")
    hint = f"The log of {node} has more. It is tried again, ever less often; `cluster load {model}` does so at once."
    wanted.failure = _refusal(model, error_from(code, f"{node} could not load it: {text}", hint=hint))
    if code == ModelChanged.code:  # the description is of files that are gone: another is looked for at once
        wanted.spec, wanted.failed_at, wanted.retry.at = None, -math.inf, now()
        return
    wanted.failed_at = now()
    wanted.retry.fail()


def _crashed(node: str, crash: Crash) -> ModelCrashes:
    return ModelCrashes(
        f"{node} ended by a fault ({crash.cause}) while it loaded {crash.model}.",
        hint=f"`last-crash.txt` in its data directory has more. `cluster load {crash.model}` tries it again.",
    )


def _refusal(model: str, error: PippinError) -> Refusal:
    """Truncate to a length that peers accept; they would refuse the whole heartbeat otherwise."""
    return Refusal(model, error.code, error.message[: MAX_TEXT_CHARS // 2], error.hint[: MAX_TEXT_CHARS // 2])
