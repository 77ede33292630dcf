"""The layers that this node has in memory, each once. Idle ones stay for the next ring: some minutes, unless their memory is
needed.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Container, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol

from node.core.clock import now
from node.core.errors import DeviceFailed, PippinError
from node.core.mlx_errors import MLX_ERRORS
from node.core.models import HeldModel, Shard
from node.core.reports import Download, Speed, StageState
from node.core.rings import Ring, StageSpec
from node.core.units import format_bytes
from node.engine.compute import Compute
from node.engine.device import release_memory
from node.engine.load import load_stage
from node.engine.speed import Measured, measure
from node.engine.stage import Stage, Weight
from node.model.weights import Weights
from node.ring.speeds import Speeds

log = logging.getLogger(__name__)

IDLE_S = 300.0
"""How long layers stay that no ring uses: a node that was away for a while finds them again."""

Shape = tuple[str, tuple[StageSpec, ...], int, int]


def shape_of(ring: Ring) -> Shape:
    """Equal for two rings if one can inherit the KV of the other."""
    return ring.model, ring.stages, ring.context, ring.max_sessions


@dataclass(slots=True)
class LoadedShard:
    """Layers in memory, and what the last ring left of its KV."""

    stage: Stage
    directory: Path
    """Of the model's files."""
    leftover_tokens: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """At a driver: the tokens whose KV the ring left, by sequence number."""
    shape: Shape | None = None
    """Of the ring that left the KV."""
    chunk: int = 0
    """At a driver: most tokens of a prompt in one step, since larger ones took the device too long; 0 before."""

    idle_since: float = inf
    """When it was first seen that no ring uses it; infinite while one does."""

    @property
    def is_mtp(self) -> bool:
        """Whether it is an MTP layer, of which the stage is a model of its own."""
        return hasattr(self.stage.model, "ends")


Fetch = Callable[[Shard, bool, Callable[[Download], None]], Awaitable[tuple[Path, Weights]]]
"""Makes sure that a shard's files are on this node's disk, with those of embedding and head if the flag says so; calls
back while they are fetched. Returns their directory and a description of all weights of the model. Cancelled, it keeps the
bytes that have come."""


Marked = Callable[[HeldModel], AbstractContextManager[object]]
"""Makes the context in which the files of a model are loaded, so that a crash is known to be of that."""


class Progress(Protocol):
    def __call__(self, state: StageState, share: float, download: Download | None = None) -> None:
        """`share`: how much of the files is fetched, or of the layers loaded."""


class LoadedShards:
    """All layers in memory, by shard."""

    def __init__(self, compute: Compute, fetch: Fetch, marked: Marked) -> None:
        self._compute = compute
        self._fetch = fetch
        self._marked = marked
        self._loaded: dict[Shard, LoadedShard] = {}
        """Idle ones first, from the least recently used one."""
        self._taken: dict[Shard, set[Weight]] = {}
        """Weights of others that a shard which is being loaded may share."""
        self._wired: set[Weight] = set()
        """All that are wired, and some that are not there any more."""
        self.speeds = Speeds()

    def get(self, shard: Shard) -> LoadedShard | None:
        return self._loaded.get(shard)

    @property
    def weight_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._weights(self._loaded))

    @property
    def leftover_bytes(self) -> int:
        """KV that rings left."""
        return sum(loaded.stage.leftover.nbytes for loaded in self._loaded.values())

    def idle(self, used: Container[Shard]) -> tuple[Shard, ...]:
        """The loaded shards that are not `used`."""
        return tuple(shard for shard in self._loaded if shard not in used)

    def kept_bytes(self, used: Collection[Shard]) -> int:
        """Weights and KV of idle shards, without the weights that `used` ones have, too, or will take when they are loaded."""
        if not (idle := self.idle(used)):
            return 0
        kept = self._weights(idle) - self._weights(shard for shard in used if shard in self._loaded)
        coming = [shard for shard in used if shard not in self._loaded]
        taken = {weight for shard in coming for lender in idle for weight in self._lent(lender, shard)}
        leftover = sum(self._loaded[shard].stage.leftover.nbytes for shard in idle)
        return sum(weight.nbytes for weight in kept - taken) + leftover

    def _weights(self, shards: Iterable[Shard]) -> set[Weight]:
        found = {weight for shard in shards for weight in self._loaded[shard].stage.weights.values()}
        return found.union(*self._taken.values())

    def _lent(self, lender: Shard, shard: Shard) -> set[Weight]:
        """The weights that a shard shares with one that is in memory."""
        if not self._may_lend(lender, shard):
            return set()
        return {
            weight
            for weight in self._loaded[lender].stage.weights.values()
            if (shard.start == 0 if weight.layer is None else shard.start <= weight.layer < shard.end)
        }

    def _may_lend(self, lender: Shard, shard: Shard) -> bool:
        return lender.version.files == shard.version.files and not self._loaded[lender].is_mtp

    async def load(self, shard: Shard, ends: bool, progress: Progress, *, at_once: bool = False) -> bool:
        """Fetch and load a shard, and measure its speed, unless the model's is known or it is needed `at_once`. If the device fails,
        maybe at the work of a ring, it is loaded once more. Returns False if it was loaded before. `ends`: see Fetch.
        """
        if shard in self._loaded:
            return False
        try:
            await self._load(shard, ends, progress, at_once=at_once)
        except DeviceFailed:
            await self._load(shard, ends, progress, at_once=at_once)
        return True

    async def _load(self, shard: Shard, ends: bool, progress: Progress, *, at_once: bool) -> None:
        log.info("loading %s layers %d-%d", shard.model, shard.start, shard.end - 1)
        directory, weights = await self._fetch(
            shard, ends, lambda download: progress(StageState.FETCHING, download.share, download)
        )
        progress(StageState.LOADING, 0.0)
        compute, kv_bits = self._compute, shard.version.kv_bits
        args = directory, shard.start, shard.end, weights.tensors, kv_bits, compute.wiring
        lenders = [lender for lender in self._loaded if self._may_lend(lender, shard)]
        stages = [self._loaded[lender].stage for lender in lenders]
        pieces = load_stage(*args, unproven=compute.unproven, loaded=stages)
        del stages  # it may be unloaded meanwhile
        with self._marked(shard.version.files):
            self._taken[shard] = self._weights(lenders)
            try:
                stage = await self._compute.run_pieces(pieces, partial(progress, StageState.LOADING))
            finally:
                taken = self._taken.pop(shard)
            self._wired.update(weight for weight in stage.weights.values() if weight.wired)
            size = format_bytes(stage.weight_bytes)
            shared = sum(weight.nbytes for weight in taken.intersection(stage.weights.values()))
            size += f", of which {format_bytes(shared)} were in memory" if shared else ""
            self._loaded[shard] = LoadedShard(stage, directory)
            if not self._loaded[shard].is_mtp:
                self.speeds.derive_rows(shard, frozenset(stage.kinds), ahead=stage.begins_ahead)
                if self.speeds.is_stale(shard, now()) and not at_once:
                    await self.measure(shard, level=logging.INFO)
            log.info("loaded %s layers %d-%d: %s", shard.model, shard.start, shard.end - 1, size)

    async def measure(
        self, shard: Shard, is_held_up: Callable[[], bool] = lambda: False, *, level: int = logging.DEBUG
    ) -> bool:
        """Measure the speed of a shard, if it is still in memory. Returns False if `is_held_up` was true meanwhile, asked in any
        thread. `level`: of the log's line.
        """
        if not (loaded := self._loaded.get(shard)):
            return True
        try:
            found = await self._compute.run_pieces(self._measuring(shard, loaded, is_held_up))
        except (*MLX_ERRORS, PippinError) as error:  # the layers may be of use all the same
            log.warning("could not measure the speed of %s: %s", shard.model, error)
            return True
        if found:
            rate, tokens = format_bytes(round(found.bytes_per_s)), found.tokens_per_s
            said = "layers %d-%d of %s compute %.0f tokens/s of a prompt, and read %s/s of weights"
            log.log(level, said, shard.start, shard.end - 1, shard.model, tokens, rate)
            self.speeds.note(Speed(shard, found.bytes_per_s, found.tokens_per_s, found.head_s), now())
            kinds, ahead = frozenset(loaded.stage.kinds), loaded.stage.begins_ahead
            self.speeds.note_rows(shard, kinds, found.groups, found.seconds, ahead=ahead)
            for family in self.speeds.families(shard):
                costs = ", ".join(f"{cost:.2f} for {count}" for count, cost in family.costs)
                said = "%s: equal bits with these tokens of a session in a step, at the cost of %s"
                log.debug(said, shard.model, costs)
        return found is not None or self._loaded.get(shard) is not loaded

    def _measuring(
        self, shard: Shard, loaded: LoadedShard, is_held_up: Callable[[], bool]
    ) -> Generator[float, None, Measured | None]:
        """Ends without a result when the shard is unloaded, as its weights may be freed between two pieces, or when it is held up."""
        pieces = measure(loaded.stage, self.speeds.groups(shard))
        while self._loaded.get(shard) is loaded and not is_held_up():
            try:
                yield next(pieces)
            except StopIteration as end:
                measured: Measured = end.value
                return measured
        pieces.close()
        return None

    async def clear_leftover(self, loaded: LoadedShard) -> None:
        """Free the KV that a ring left."""
        loaded.leftover_tokens, loaded.shape = {}, None
        await self._compute.run(loaded.stage.leftover.clear)

    async def unload(
        self, used: Collection[Shard], spare: int, released: Container[str] = (), *, collect: bool
    ) -> None:
        """Unload idle shards of `released` models and those that were idle for long, then others until the rest has at most
        `spare` bytes: first the KV that rings left, then the least recently used, at last those that one to come shares.

        `collect`: free memory also if nothing is unloaded.
        """
        self._loaded = dict(sorted(self._loaded.items(), key=lambda item: item[0] in used))
        idle = self.idle(used)
        # No local may have a shard or a part of it here: its weights are to be freed one by one.
        for shard in self._loaded:
            self._loaded[shard].idle_since = inf if shard in used else min(self._loaded[shard].idle_since, now())
        faults = self._compute.faults.count
        for shard in [shard for shard, each in self._loaded.items() if each.stage.leftover.nbytes]:
            # No ring may inherit KV from before a failure of the device.
            if self._loaded[shard].stage.leftover.faults != faults:
                await self.clear_leftover(self._loaded[shard])
        if self.kept_bytes(used) > spare:
            for shard in idle:
                await self.clear_leftover(self._loaded[shard])
        models = []
        lends = {idler for idler in idle for shard in used if shard not in self._loaded and self._lent(idler, shard)}
        # A stable order: the least recently used first.
        for shard in sorted(idle, key=lambda shard: (shard.model not in released, shard in lends)):
            is_old = now() >= self._loaded[shard].idle_since + IDLE_S and shard not in lends
            if shard.model in released or is_old or self.kept_bytes(used) > spare:
                log.info("unloading %s layers %d-%d", shard.model, shard.start, shard.end - 1)
                models.append(self._loaded.pop(shard).stage.model)
        if collect or models:
            await self._compute.run_pieces(release_memory(models))
        gone = self._wired - self._weights(self._loaded)
        self._wired -= gone
        if gone and (wiring := self._compute.wiring):
            await self._compute.run(wiring.release, sum(weight.wired for weight in gone))
