"""What this node is in a ring: the driver that begins its steps, or a worker."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from node.cluster.agent import Agent
from node.core.errors import PeerUnavailable, PippinError
from node.core.guesses import PassageMemory
from node.core.models import Shard
from node.core.reports import StageReport
from node.core.rings import Ring
from node.core.row_family import RowFamily
from node.engine.compute import Compute
from node.engine.draft import DraftModel
from node.engine.mtp_guesser import MtpGuesser
from node.engine.runner import Runner
from node.placement.frame_rows import family_of_ring
from node.placement.speed import is_slow_wire
from node.ring.driver import Driver
from node.ring.guessing import Guessing
from node.ring.lane import sequence_numbers
from node.ring.limits import RingOptions, limits_of
from node.ring.loaded_shards import LoadedShard, LoadedShards
from node.ring.scheduler import Scheduler
from node.ring.speeds import slowest_token_s
from node.ring.stored_kv import StoredKv
from node.ring.worker import Worker
from node.rpc.client import RpcClient
from node.rpc.link import FrameLink

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RingPart:
    ring: Ring
    draft: Shard | None
    """The draft model or MTP layer, if this node drives the ring; None also if it could not be loaded."""
    report: StageReport
    role: Driver | Worker | None = None
    """None until its layers are loaded, and once the ring is left."""
    lacks: str = ""
    """Why the draft model or MTP layer could not be loaded."""

    @property
    def shard(self) -> Shard:
        return self.report.shard


class Roles:
    """Makes drivers and workers of loaded layers."""

    def __init__(
        self,
        agent: Agent,
        compute: Compute,
        client: RpcClient,
        shards: LoadedShards,
        options: RingOptions,
        stored: StoredKv | None,
    ) -> None:
        self._stored = stored
        self._agent = agent
        self._compute = compute
        self._client = client
        self._shards = shards
        self._options = options
        self._numbers = sequence_numbers(agent.info)
        self._memory = PassageMemory()

    def new(
        self,
        part: RingPart,
        loaded: LoadedShard,
        draft: LoadedShard | None,
        on_ended: Callable[[PippinError, int], None],
    ) -> Driver | Worker:
        """`on_ended`: see Driver. `draft`: the draft model or MTP layer."""
        ring, me = part.ring, self._agent.info.id
        open_link = partial(self._open_link, ring.after(me))
        # Another ring may use the same layers at the same time, so this one has caches of its own.
        runner = Runner(loaded.stage.sibling(), loaded.directory, self._compute.faults)
        if ring.driver != me:
            is_last = ring.after(me) == ring.driver
            return Worker(ring, self._compute, runner, open_link, on_ended, is_last=is_last, stored=self._stored)
        is_wire_slow = partial(self._is_wire_slow, part, loaded.stage.weight_bytes)
        guessing = Guessing(None, is_wire_slow, partial(self._family, part), self._has_others, self._memory, part.lacks)
        if draft and self._options.guesses:
            try:
                stage, vocabulary = draft.stage.sibling(), runner.plan.vocabulary
                guessing.source = MtpGuesser(stage, loaded.stage) if draft.is_mtp else DraftModel(stage, vocabulary)
            except PippinError as error:  # an MTP layer of another family
                guessing.failure = str(error)
        limits = limits_of(ring, self._options, part.shard, loaded)
        limits = replace(limits, token_s=self._token_s(part), stored=ring.version if self._stored else None)
        driver = Driver(
            ring,
            Scheduler(limits, runner.plan, self._numbers, len(ring.nodes), guesses=self._options.guesses),
            self._compute,
            runner,
            open_link if len(ring.nodes) > 1 else None,
            on_ended,
            leftover=loaded.leftover_tokens,
            guessing=guessing,
            stored=self._stored,
        )
        loaded.leftover_tokens = {}
        return driver

    def _family(self, part: RingPart, kept: RowFamily | None) -> RowFamily:
        """What the stages of a ring that this node drives have proven. One of which nothing is heard has proven nothing."""
        ring, reports = part.ring, self._agent.alive()
        told = {each.info.id: stage.families for each in reports for stage in each.stages if stage.ring == ring.id}
        stages = [self._shards.speeds.families(part.shard), *(told.get(node, ()) for node in ring.nodes[1:])]
        # Without guesses, further tokens would only take time.
        family = family_of_ring(stages, kept) if self._options.guesses else RowFamily()
        if not kept:
            counts = " or ".join(str(count) for count, _ in family.costs)
            log.debug("ring %s: steps of a single session have %s tokens", ring.id, counts)
        return family

    def _has_others(self) -> bool:
        """Whether there is another node, which a ring might have a stage on."""
        return len(self._agent.alive()) > 1

    def _token_s(self, part: RingPart) -> float:
        """See RingLimits."""
        files = part.ring.version.files
        told = ((report.info.id, speed) for report in self._agent.alive() for speed in report.speeds)
        known = {node: speed for node, speed in told if speed.shard.version.files == files}
        if own := self._shards.speeds.best(part.shard):  # not told before another measurement agrees
            known[self._agent.info.id] = own
        return slowest_token_s(part.ring.stages, known)

    def _open_link(self, node: str, on_broken: Callable[[PippinError], None]) -> FrameLink:
        """A link to the next stage. Raises PeerUnavailable when no address of its node is known."""
        address = self._agent.book.address_of(node)  # it may have changed since the ring began
        if address is None:
            raise PeerUnavailable(f"No address of node {node} is known.")
        return self._client.link(address, on_broken)

    def _is_wire_slow(self, part: RingPart, weight_bytes: int) -> bool:
        alive = {report.info.id: report for report in self._agent.alive()}
        nodes = [alive[node] for node in part.ring.nodes if node in alive]
        speed = self._shards.speeds.best(part.shard)
        if not speed or len(nodes) < len(part.ring.nodes):
            return False
        return is_slow_wire(nodes, 1e3 * weight_bytes / speed.bytes_per_s)
