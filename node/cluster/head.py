"""What the head does: keeps the list of models that are wanted, and a placement that serves them on the nodes there are."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from node.cluster.agent import Agent
from node.cluster.handover import HandOver
from node.cluster.readiness import ready_rings
from node.cluster.reunion import MEET_S
from node.cluster.specs import Specs
from node.core.clock import now
from node.core.errors import ModelChanged, NoCapacity, NotReady, Overloaded, PippinError, as_pippin_error, error_from
from node.core.signal import Signal
from node.core.types import (
    LONGEST_TEXT,
    ClusterView,
    Fence,
    LoadState,
    ModelSpec,
    NodeReport,
    Placement,
    Refusal,
    Ring,
    StageSpec,
)
from node.placement.place import Rules, place
from node.placement.search import CONTEXTS, SESSIONS
from node.placement.steady import Steady
from node.placement.unreachable import Cuts

log = logging.getLogger(__name__)

REPLAN_S = 1.0
"""The head looks again this often even if nothing told it to: memory and preferences arrive with heartbeats."""
FRESH_S = 3.0
"""How long what went wrong with a model is told to who asks for it; who asks later has it tried again."""
RETRY_S = 15.0
"""When a model that could not be described or loaded is tried again without being asked for."""

AGAIN_S = 1.0
"""A ring of the same stages is made again at most this often."""

_REMEMBERED = 16
"""Placements that were worked out last: a plan tries some, and tries the same again if nothing has changed."""

LOADS_S = 60.0
"""How long a model that is being loaded for somebody makes no room for another one: a first request waits as long for it."""
FORGET_S = 60.0
"""How long a model that somebody asked for stays wanted when it can't be served, or not any more: its nodes may be back."""
MOST_ASKED = 64
"""Models that were asked for and are not served, at most: the head looks for them, plans for them, and tells of them."""


@dataclass(slots=True)
class _Wanted:
    """A model that shall be served: preloaded ones for good, the others until their memory is needed."""

    asked_at: float
    served_at: float = 0.0
    """When it last had a ring."""
    placed_at: float = 0.0
    """When it got its ring, or now, if it has none."""
    preload: bool = False
    spec: ModelSpec | None = None
    failure: Refusal | None = None
    retry_at: float = 0.0


class Head:
    """Runs on every node; plans only while its node is head."""

    def __init__(
        self,
        agent: Agent,
        specs: Specs,
        *,
        context: int | None,
        max_sessions: int | None,
        max_rings: int | None = None,
    ) -> None:
        self._agent = agent
        self._specs = specs
        self._context = context
        self._max_sessions = max_sessions
        self._max_rings = max_rings
        self._hand_over = HandOver()
        self._cuts = Cuts()
        self._steady = Steady()
        self._place_once = lru_cache(_REMEMBERED)(place)
        """Placing takes up to 50 ms of the event loop for seven nodes, and is asked each second with the same."""
        self._succeeded_at: dict[tuple[str, tuple[StageSpec, ...]], float] = {}
        """When a ring of this model and these stages was last made because one of them had ended."""
        self._barred: dict[tuple[str, str], float] = {}
        """Models and nodes that could not load a replica, until when they are not tried again."""
        self._wanted: dict[str, _Wanted] = {}
        self._describing: dict[str, asyncio.Task[Refusal | None]] = {}
        self._group = asyncio.TaskGroup()
        self._planned = Signal()

    async def run(self) -> None:
        async with self._group:
            while True:
                if self._agent.is_head:
                    self._plan()
                self._planned.notify()
                await self._agent.head_due.wait(REPLAN_S)

    async def want(self, model: str) -> None:
        """Have a model loaded; returns when the placement has a ring for it (which may still be loading).

        Raises NotReady when this node is not the head, Overloaded when too many models are being looked for,
        NoCapacity, or whatever is wrong with the model.
        """
        if not self._agent.is_head:
            raise NotReady("This node is not the head of the cluster.", hint="A moment later it is known who is.")
        self._limit_asked(model)
        wanted = self._wanted.setdefault(model, _Wanted(0.0))
        wanted.asked_at = now()
        told_now = wanted.failure if now() < wanted.retry_at - RETRY_S + FRESH_S else None
        if told_now:  # to all who wait, rather than have it tried again for each
            raise error_from(told_now.code, told_now.message, hint=told_now.hint)
        wanted.failure = None
        if wanted.spec is None:
            # The caller may go away; what was found out serves the next one.
            failure = await asyncio.shield(self._described(model, wanted))
            if failure:
                raise error_from(failure.code, failure.message, hint=failure.hint)
        self._agent.head_due.notify()
        await self._planned.wait()
        while refusal := self._refusal(model):
            left = self._agent.joined_at + MEET_S - now()  # more nodes may be about to come
            if left <= 0:
                raise error_from(refusal.code, refusal.message, hint=refusal.hint)
            await self._agent.adopted.wait(left)

    def _refusal(self, model: str) -> Refusal | None:
        return next((refusal for refusal in self._agent.placement.refused if refusal.model == model), None)

    def check_drain(self, node: str) -> None:
        """Raises NoCapacity when a model would have no place without this node, and NotReady when that is not known."""
        current, nodes = self._agent.placement, self._cuts.marked(self._agent.alive(), now())
        if not self._agent.is_head or self._lacks_spec(current):
            raise NotReady(
                "The head of the cluster is still finding out what is placed.", hint="Try again in a moment."
            )
        fence = self._next_fence(current)
        marked = [replace(each, draining=each.draining or each.info.id == node) for each in nodes]
        plan = self._try(self._ready(), marked, fence, current)
        if all(ring.retiring or node not in [stage.node for stage in ring.stages] for ring in plan.rings):
            return
        others = [each for each in marked if not each.draining]
        refused = self._try(self._ready(), others, fence, current).refused
        why = refused[0].message if refused else "The other nodes have room for each model, but not for all."
        raise NoCapacity(f"The work of this node fits nowhere else. {why}", hint=refused[0].hint if refused else "")

    # --- planning -----------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        view, at = self._agent.view(), now()
        nodes = self._cuts.marked(self._agent.alive(), at)
        if self._agent.reunion.is_under_way(view, at):
            return
        current = view.placement
        reunion = self._agent.reunion
        rings = (*current.rings, *reunion.found(view))
        standing = replace(current, rings=rings, specs=(*current.specs, *reunion.specs.values()))
        view = replace(view, placement=standing)
        self._update_wanted(nodes, standing)
        self._note_failed_loads(nodes, view)
        if self._lacks_spec(standing):
            return
        fence = self._next_fence(current)
        rings = self._hand_over.remaining(view, at)
        standing = replace(standing, rings=self._with_successors(rings, nodes, fence, at))
        plan = self._place(nodes, fence, standing, self._loading(view, at))
        if not plan.refused:
            better = self._try(self._ready(), nodes, fence, standing, move=True)
            plan = better if self._hand_over.is_due(better, plan, at) else plan
        specs = tuple(wanted.spec for wanted in self._wanted.values() if wanted.spec)
        plan = replace(plan, refused=(*plan.refused, *self._failures()), specs=specs)
        settled = (plan.rings, plan.refused) == (current.rings, current.refused)
        if not settled or current.fence.term != self._agent.term or current.head != self._agent.info.id:
            self._agent.adopt(plan)

    def _with_successors(
        self, rings: Sequence[Ring], nodes: Sequence[NodeReport], fence: Fence, at: float
    ) -> tuple[Ring, ...]:
        """The rings, and in place of each that has ended another of the same stages: those that live have their weights and
        KV. At once, but again only after a while: what ends it may be there still.
        """
        self._succeeded_at = {key: since for key, since in self._succeeded_at.items() if at - since < AGAIN_S}
        ended = {load.ring for node in nodes for load in node.loads if load.state is LoadState.ENDED}
        found = list(rings)
        for index, ring in enumerate(rings):
            key = (ring.model, ring.stages)
            if ring.id in ended and key not in self._succeeded_at:
                self._succeeded_at[key] = at
                name = f"{ring.model}@{fence.term}.{fence.epoch}.{self._agent.info.id}-again-{index}"
                found[index] = replace(ring, id=name, fence=fence)
                log.info("ring %s has ended: %s takes its place", ring.id, name)
        return tuple(found)

    def _next_fence(self, current: Placement) -> Fence:
        """Epochs count within a term, of which this node is the only head: no other one says where they begin."""
        term = self._agent.term
        return Fence(term, current.fence.epoch + 1 if current.fence.term == term else 1)

    def _update_wanted(self, nodes: Sequence[NodeReport], current: Placement) -> None:
        self._forget_unserved(current)
        preload = {model for node in nodes for model in node.preload}
        served = {ring.model for ring in current.rings}
        for model in preload | served:
            self._wanted.setdefault(model, _Wanted(0.0))
        for model in served:
            self._wanted[model].served_at = now()
        for model in self._wanted.keys() - served:
            self._wanted[model].placed_at = now()
        self._learn(current.specs)
        for model, wanted in self._wanted.items():
            wanted.preload = model in preload
            # A node that came since may have the model's files.
            is_new = wanted.spec is None and self._agent.joined_at > wanted.retry_at - RETRY_S
            if wanted.failure and (is_new or wanted.retry_at < now()):
                wanted.failure = None
            if not wanted.spec and not wanted.failure:
                self._described(model, wanted)

    def _learn(self, specs: Sequence[ModelSpec]) -> None:
        """What heads before this one knew: their models may be on no node whole, and the hub away."""
        for spec in specs:
            wanted = self._wanted.get(spec.id)
            if wanted and wanted.spec is None:
                wanted.spec, wanted.failure = spec, None

    def _lacks_spec(self, current: Placement) -> bool:
        """A head may not know the models yet that are placed: until it does, all stays as it is."""
        placed = [self._wanted.get(ring.model) for ring in current.rings]
        return any(wanted is None or (wanted.spec is None and wanted.failure is None) for wanted in placed)

    def _forget_unserved(self, current: Placement) -> None:
        old = now() - FORGET_S
        for model in self._only_asked(current):
            wanted = self._wanted[model]
            if max(wanted.asked_at, wanted.served_at) < old and model not in self._describing:
                del self._wanted[model]

    def _only_asked(self, current: Placement) -> list[str]:
        """Models that are wanted only because somebody asked for them: no node preloads them, and no ring serves them."""
        served = {ring.model for ring in current.rings}
        return [model for model, wanted in self._wanted.items() if not wanted.preload and model not in served]

    def _limit_asked(self, model: str) -> None:
        """Make room for one more model to look for. Raises Overloaded."""
        asked = self._only_asked(self._agent.placement)
        if model in self._wanted or len(asked) < MOST_ASKED:
            return
        idle = [each for each in asked if each not in self._describing]
        if not idle:
            raise Overloaded(
                f"The head is looking for {len(asked)} other models already.", hint="Try again in a few seconds."
            )
        del self._wanted[min(idle, key=lambda each: self._wanted[each].asked_at)]

    def _described(self, model: str, wanted: _Wanted) -> asyncio.Task[Refusal | None]:
        """The task that finds out about a model, or why it can't; there is one at a time."""
        if model not in self._describing:
            task = self._group.create_task(self._describe(model, wanted), name=f"describe {model}")
            self._describing[model] = task
        return self._describing[model]

    async def _describe(self, model: str, wanted: _Wanted) -> Refusal | None:
        """A task's root: whatever goes wrong is told as the reason why the model is refused."""
        try:
            wanted.spec = await self._specs.find(model)
        except Exception as error:
            if not isinstance(error, PippinError):
                log.exception("describing failed")
            failed = as_pippin_error(error)
            log.error("%s: %s", model, failed)
            if wanted.spec is None:  # else the head before told meanwhile
                wanted.failure = _refusal(model, failed)
                wanted.retry_at = now() + RETRY_S
        finally:
            del self._describing[model]
            if wanted.failure and model in self._only_asked(self._agent.placement):
                del self._wanted[model]  # those who wait are told, and whoever asks later has it tried again
            self._agent.head_due.notify()
        return wanted.failure

    def _note_failed_loads(self, nodes: Sequence[NodeReport], view: ClusterView) -> None:
        rings, at = {ring.id for ring in view.placement.rings}, now()
        self._barred = {pair: until for pair, until in self._barred.items() if until > at}
        for node in nodes:
            if node.draining:
                continue  # it is left out anyway, and others may be able to
            for load in node.loads:
                model = load.shard.model
                wanted = self._wanted.get(model)
                if not (wanted and load.state is LoadState.FAILED and load.ring in rings):
                    continue
                retry_s = RETRY_S
                if ready_rings(view, model):  # another ring serves it
                    self._barred[model, node.info.id] = at + RETRY_S
                    continue
                code, _, text = load.error.partition(": ")
                if code == ModelChanged.code:  # what is known of it is of files that are gone
                    wanted.spec, retry_s = None, 0.0
                wanted.failure = _refusal(model, error_from(code, f"{node.info.name} could not load it: {text}"))
                wanted.retry_at = at + retry_s

    def _loading(self, view: ClusterView, at: float) -> set[str]:
        """Models that somebody may wait for. Would they make room, those who wait would ask for them again, and so on."""
        placed = {ring.model for ring in view.placement.rings}
        fresh = {model for model in placed if at - self._wanted[model].placed_at < LOADS_S}
        fresh |= {model for model, _ in self._succeeded_at}
        return {model for model in fresh if not ready_rings(view, model)}

    def _failures(self) -> tuple[Refusal, ...]:
        """Of models that have a place but something wrong with them; forgotten when they are no longer wanted."""
        return tuple(wanted.failure for wanted in self._wanted.values() if wanted.failure)

    def _place(self, nodes: Sequence[NodeReport], fence: Fence, current: Placement, loading: set[str]) -> Placement:
        """Places all that is wanted. If it does not fit, and would without them, idle models make room, oldest first."""
        plan = self._try(list(self._ready()), nodes, fence, current)
        refused = [refusal.model for refusal in plan.refused]
        if not refused:
            return plan
        newest = max(refused, key=lambda model: self._wanted[model].asked_at)
        busy = {load.ring for node in nodes for load in node.rings if load.running or load.queued}
        fixed = {ring.model for ring in current.rings if ring.id in busy} | {newest} | loading
        idle = [model for model in self._ready() if model not in fixed and not self._wanted[model].preload]
        kept = [model for model in self._ready() if model not in idle]
        if newest in {refusal.model for refusal in self._try(kept, nodes, fence, current).refused}:
            return plan
        while plan.refused and idle:
            log.info("%s makes room for %s", idle[-1], newest)
            del self._wanted[idle.pop()]
            plan = self._try(kept + idle, nodes, fence, current)
        return plan

    def _ready(self) -> list[str]:
        """Models that could be placed: preloaded ones first, then those that were asked for last."""
        ready = [model for model, wanted in self._wanted.items() if wanted.spec and not wanted.failure]
        return sorted(ready, key=lambda model: (not self._wanted[model].preload, -self._wanted[model].asked_at))

    def _try(
        self,
        models: Sequence[str],
        nodes: Sequence[NodeReport],
        fence: Fence,
        current: Placement,
        *,
        move: bool = False,
    ) -> Placement:
        specs = tuple(spec for model in models if (spec := self._wanted[model].spec))
        rules = Rules(
            min_stages=max((node.min_stages for node in nodes), default=1),
            max_rings=self._max_rings,
            move=move,
            barred=tuple(self._barred),
            contexts=(self._context,) if self._context else CONTEXTS,
            max_sessions=tuple(range(self._max_sessions, 0, -1)) if self._max_sessions else SESSIONS,
        )
        stands = Placement(rings=current.rings)
        head, seen = self._agent.info.id, self._steady.reports(nodes)
        return self._place_once(specs, seen, rules, fence=fence, head=head, current=stands)


def _refusal(model: str, error: PippinError) -> Refusal:
    """Of a length that peers take: else they would refuse all that this node says."""
    return Refusal(model, error.code, error.message[: LONGEST_TEXT // 2], error.hint[: LONGEST_TEXT // 2])
