"""The head: keeps a placement that serves the wanted models on the nodes that are present."""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from node.cluster.agent import Agent
from node.cluster.handover import Handover
from node.cluster.model_specs import ModelSpecs
from node.cluster.readiness import ready_rings
from node.cluster.spreading import Spreading
from node.cluster.wanted import WantedModels
from node.core.clock import in_step, now
from node.core.errors import ModelBusy, ModelNotFound, NoCapacity, NotReady, PippinError, error_from
from node.core.models import Wish
from node.core.reports import Issue, NodeReport, StageState
from node.core.rings import Fence, Placement, Ring, RingPlace
from node.core.signal import Signal
from node.members.membership import MEET_S
from node.placement.normalize import normalize
from node.placement.place import Rules, place
from node.placement.search import CONTEXTS, SESSIONS
from node.placement.spread import Spread
from node.placement.unreachable import UnreachablePairs

log = logging.getLogger(__name__)

REPLAN_S = 1.0
"""Maximum interval of plans, as memory and preferences arrive without a signal; minimum one of a ring's successors."""
SLOW_PLAN_S = 0.01
PAUSE_SHARE = 4
"""A plan of more than SLOW_PLAN_S is followed by a pause of this many times its duration, as it blocks the event loop."""
LATE_S = 2.0
"""Maximum age of what this node was told of requests: a client that saw its answer's end may be quicker."""
_CACHED = 16
"""Number of cached placements: each plan tries several, and the same ones again if nothing has changed."""


class Head:
    """Runs on every node; plans only while its node is the head."""

    def __init__(
        self,
        agent: Agent,
        specs: ModelSpecs,
        *,
        context: int | None,
        max_sessions: int | None,
        max_rings: int | None = None,
    ) -> None:
        self._agent = agent
        self._wanted = WantedModels(agent, specs)
        self._context = context
        self._shorter: set[str] = set()
        """Models of which it was said that their context is shorter."""
        self._max_sessions = max_sessions
        self._max_rings = max_rings
        self._handover = Handover()
        self._spreading = Spreading()
        self._spreads: tuple[Spread, ...] = ()
        self._unreachable = UnreachablePairs()
        self._place_once = lru_cache(_CACHED)(place)
        """Cached, as it is called each second with the same arguments, and blocks the event loop up to 50 ms for 7 nodes."""
        self._successor_at: dict[RingPlace, float] = {}
        """Time of the last successor of a ring, by its model and stages."""
        self._beginning: Mapping[str, float] = {}
        """See WantedModels.beginning; as of the last plan."""
        self._planned = Signal()

    async def run(self) -> None:
        async with self._wanted.group:
            while True:
                began, due = now(), self._agent.head_due.count
                if self._agent.is_head:
                    self._plan()
                else:
                    self._wanted.forget_users()
                self._planned.notify()
                if (took := now() - began) > SLOW_PLAN_S:
                    await asyncio.sleep(min(PAUSE_SHARE * took, 0.25))  # the loss of a node waits for the next plan
                missed = self._agent.head_due.count != due
                await self._agent.head_due.wait(0 if missed else in_step(REPLAN_S))

    async def want(self, model: str) -> None:
        """Have a model loaded; returns when the placement has a ring for it, which may still be loading.

        Raises NotReady if this node is not the head, Overloaded if too many models are being looked for, NoCapacity, or
        the model's own error.
        """
        self._agent.check_head()
        try:
            await self._wanted.ask(model)
        except PippinError:
            self._agent.check_head()  # another head, if there is one by now, may know the model from its nodes
            raise
        self._agent.head_due.notify()
        await self._planned.wait()
        while refusal := next((each for each in self._agent.placement.refused if each.model == model), None):
            # More nodes may be about to join, and models to make room, if nobody comes for whom they were loaded.
            awaited = self._beginning.values() if refusal.code == NoCapacity.code else ()
            left = max([self._agent.last_joined_at + MEET_S, *awaited]) - now()
            if left <= 0:
                raise error_from(refusal.code, refusal.message, hint=refusal.hint)
            await self._agent.adopted.wait(min(left, REPLAN_S))
            self._agent.head_due.notify()
            await self._planned.wait()

    async def load(self, model: str, wish: Wish) -> None:
        """Have a model loaded for good, as a user wishes; returns and raises as `want` does. A failed wish is forgotten."""
        self._agent.check_head()
        crashes = [crash.at for node in self._agent.alive() for crash in node.crashed if crash.model == model]
        before = self._wanted.wish(model, replace(wish, despite=max(crashes, default=0)))
        try:
            await self.want(model)
        except PippinError:
            self._wanted.withdraw(model, before)
            self._agent.head_due.notify()  # the placement has told it to the next head
            raise

    def unload(self, model: str) -> None:
        """Take a model out of the placement. Its layers stay in memory until the nodes are told to release them.

        Raises NotReady if this node is not the head, or has just become it; ModelNotFound if the model is not wanted;
        ModelBusy.
        """
        self._agent.check_head()
        view, current = self._agent.view(), self._agent.placement
        if current.fence.term != self._agent.term or self._agent.reconciliation.is_pending(view, now()):
            raise NotReady("The head does not know all placed models yet.", hint="Try again in a moment.")
        if model not in self._wanted.models and all(ring.model != model for ring in current.rings):
            raise ModelNotFound(f"{model} is not loaded.", hint="See `cluster ps`.", param="model")
        if count := self._requests(model):
            requests = "1 request" if count == 1 else f"{count} requests"
            raise ModelBusy(f"{model} is answering {requests}.", hint="Try again when `cluster ps` shows none.")
        log.info("unloading %s", model)
        self._wanted.drop(model)
        others = Placement(
            self._next_fence(),
            self._agent.info.id,
            tuple(ring for ring in current.rings if ring.model != model),
            tuple(refusal for refusal in current.refused if refusal.model != model),
            tuple(spec for spec in current.specs if spec.id != model),
        )
        self._agent.adopt(others)

    async def answered(self, model: str) -> None:
        """Wait until the nodes report no request of a model, for LATE_S at most."""
        until = now() + LATE_S
        while self._requests(model) and await self._planned.wait(max(until - now(), 0)):
            pass

    def _requests(self, model: str) -> int:
        self._agent.renew()
        rings = {ring.id for ring in self._agent.placement.rings if ring.model == model}
        traffic = [each for node in self._agent.alive() for each in node.traffic if each.ring in rings]
        return sum(each.running + each.queued for each in traffic)

    def keep(self, model: str, keep_s: float) -> None:
        """Set how long a model may be idle. Raises NotReady if this node is not the head."""
        self._agent.check_head()
        self._wanted.keep(model, keep_s)
        self._agent.head_due.notify()

    def issues(self) -> tuple[Issue, ...]:
        """Of the wanted models; none unless this node is head."""
        return self._wanted.issues() if self._agent.is_head else ()

    def idle(self, after_s: float) -> list[str]:
        """Models to unload, as they had no request for so long, or for as long as a request said, and no user keeps them
        loaded; none unless this node is head.
        """
        if not self._agent.is_head:
            return []
        placed = {ring.model: self._wanted.models.get(ring.model) for ring in self._agent.placement.rings}
        return [model for model, wanted in placed.items() if wanted and wanted.is_idle(after_s)]

    def check_drain(self, node: str) -> None:
        """Raises NoCapacity if a model would have no place without the node, NotReady while that is unknown."""
        current, nodes = self._agent.placement, self._unreachable.mark(self._agent.alive(), now())
        if not self._agent.is_head or self._wanted.lacks_spec(current):
            raise NotReady("The head does not know all placed models yet.", hint="Try again in a moment.")
        marked = [replace(each, draining=each.draining or each.info.id == node) for each in nodes]
        plan = self._place(self._wanted.placeable(), marked, current)
        if all(ring.retiring or node not in ring.nodes for ring in plan.rings):
            return
        others = [each for each in marked if not each.draining]
        refused = self._place(self._wanted.placeable(), others, current).refused
        why = refused[0].message if refused else "The other nodes have room for each model, but not for all together."
        raise NoCapacity(f"The work of this node fits nowhere else. {why}", hint=refused[0].hint if refused else "")

    # --- planning -----------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Adopt a new placement if another one is better. A node that has failed is not among `alive()`, so its rings are
        placed anew on the others. A ring that ended on nodes that live gets a successor.
        """
        view, at, reconciliation = self._agent.view(), now(), self._agent.reconciliation
        current, nodes = view.placement, self._unreachable.mark(self._agent.alive(), at)
        if reconciliation.is_pending(view, at):
            return
        rings = (*current.rings, *reconciliation.working(view))
        existing = replace(current, rings=rings, specs=(*current.specs, *reconciliation.specs.values()))
        view = replace(view, placement=existing)
        self._wanted.update(nodes, existing)
        self._wanted.note_loading(view)
        for model in self._handover.note_use(view, at) | self._wanted.loading(view):  # those who wait will use it
            self._wanted.models[model].used_at = at
        self._wanted.loads.note(nodes, view)
        if self._wanted.lacks_spec(existing):
            return
        specs = self._wanted.specs(self._wanted.models)
        self._spreads = self._spreading.choose(existing, specs, nodes, at)
        existing = replace(existing, rings=self._with_successors(self._handover.remaining(view), nodes, at))
        with_successor = {model for model, _ in self._successor_at if not ready_rings(view, model)}
        self._beginning = self._wanted.beginning(view)
        awaited = self._wanted.loading(view) | self._beginning.keys() | with_successor
        plan = self._place_with_eviction(nodes, existing, awaited)
        if not plan.refused:
            better = self._place(self._wanted.placeable(), nodes, existing, unmoved=self._handover.warm(at))
            plan = better if self._handover.is_due(better, plan, at) else plan
        plan = replace(plan, refused=(*plan.refused, *self._wanted.refusals()), specs=specs)
        is_same = (plan.rings, plan.refused, _wishes(plan)) == (current.rings, current.refused, _wishes(current))
        if not is_same or current.fence.term != self._agent.term or current.head != self._agent.info.id:
            self._agent.adopt(plan)
            self._warn_of_context(plan)

    def _warn_of_context(self, plan: Placement) -> None:
        """Say once of each model that it takes less than --context. One that lacks memory for it has no ring."""
        for ring in plan.rings:
            if self._context and ring.context < self._context and ring.model not in self._shorter:
                self._shorter.add(ring.model)
                log.warning("--context %d: %s takes %d tokens at most", self._context, ring.model, ring.context)

    def _with_successors(self, rings: Sequence[Ring], nodes: Sequence[NodeReport], at: float) -> tuple[Ring, ...]:
        """Replace each ring that has ended by one of the same stages, which still have their weights and KV.

        The next successor waits REPLAN_S, as the cause may persist.
        """
        self._successor_at = {key: since for key, since in self._successor_at.items() if at - since < REPLAN_S}
        ended = {report.ring for node in nodes for report in node.stages if report.state is StageState.ENDED}
        found, fence = list(rings), self._next_fence()
        for index, ring in enumerate(rings):
            if ring.id in ended and ring.place not in self._successor_at:
                self._successor_at[ring.place] = at
                name = f"{ring.model}@{fence.term}.{fence.epoch}.{self._agent.info.id}-again-{index}"
                found[index] = replace(ring, id=name, fence=fence)
                log.debug("ring %s has ended: %s replaces it", ring.id, name)
        return tuple(found)

    def _next_fence(self) -> Fence:
        """Epochs count from 1 within a term, as each term has one head."""
        term, fence = self._agent.term, self._agent.placement.fence
        return Fence(term, fence.epoch + 1 if fence.term == term else 1)

    def _place_with_eviction(self, nodes: Sequence[NodeReport], current: Placement, awaited: set[str]) -> Placement:
        """Place all wanted models. If they do not fit, idle models make room, first those that were not used for longest, provided
        that this suffices. Not those that are `awaited`: they would be asked for again, without end.
        """
        placeable, models = self._wanted.placeable(), self._wanted.models
        plan = self._place(placeable, nodes, current)
        if not plan.refused:
            return plan
        newest = max((refusal.model for refusal in plan.refused), key=lambda model: models[model].asked_at)
        # Not in each plan: beside the older reports of others, a stream that has come here from their ring would count as two.
        self._agent.renew()
        busy = {each.ring for node in self._agent.alive() for each in node.traffic if each.running or each.queued}
        fixed = {ring.model for ring in current.rings if ring.id in busy} | {newest} | awaited
        idle = [model for model in placeable if model not in fixed and not models[model].is_named]
        idle.sort(key=lambda model: -models[model].wanted_at)
        kept = [model for model in placeable if model not in idle]
        if not idle or newest in {refusal.model for refusal in self._place(kept, nodes, current).refused}:
            return plan

        def fits(evicted: int) -> bool:
            return not self._place(kept + idle[:-evicted], nodes, current).refused

        # A search, as each placement of many models blocks the event loop for some 20 ms.
        evicted = 1 + bisect_left(range(1, len(idle)), True, key=fits)
        for model in reversed(idle[-evicted:]):
            log.info("%s makes room for %s", model, newest)
            del models[model]
        return self._place(kept + idle[:-evicted], nodes, current)

    def _place(
        self,
        models: Sequence[str],
        nodes: Sequence[NodeReport],
        current: Placement,
        *,
        unmoved: Collection[RingPlace] | None = None,
    ) -> Placement:
        specs = self._wanted.specs(models)
        rules = Rules(
            min_stages=max((node.min_stages for node in nodes), default=1),
            max_rings=self._max_rings,
            unmoved=unmoved,
            barred=self._wanted.loads.barred(),
            contexts=(self._context,) if self._context else CONTEXTS,
            max_sessions=tuple(range(self._max_sessions, 0, -1)) if self._max_sessions else SESSIONS,
            spreads=self._spreads,
            idle=self._spreading.idle,
        )
        existing = Placement(rings=current.rings)
        head, seen, fence = self._agent.info.id, normalize(nodes), self._next_fence()
        return self._place_once(specs, seen, rules, fence=fence, head=head, current=existing)


def _wishes(placement: Placement) -> dict[str, Wish]:
    """What users wish of models, by id: the next head has it from the placement alone."""
    return {spec.id: spec.wish for spec in placement.specs if spec.wish != Wish()}
