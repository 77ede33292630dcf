"""Only weights are wired, and only with --wire: on an allocator that follows MLX's own (resident.cpp, allocator.cpp)."""

import gc
from collections.abc import Callable, Iterable
from pathlib import Path

import mlx.core as mx
import pytest

from node.engine.load import load_stage
from node.engine.stage import Stage
from node.engine.wiring import HEAP, Wiring
from node.model.layouts import Layouts
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import write_model

GIB = 2**30
MEMORY = 12 * GIB
PAGE = 2**14


class Metal:
    """Buffers, of which those are wired that fit below the limit when they are made, or when the limit changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[str, int] = {}
        self.wired: set[str] = set()
        self.limit = 0
        self.limits: list[int] = []
        self.dropped: set[str] = set()
        """Unwired by a lower limit."""
        self._free: set[str] = set()
        """Kept for reuse."""
        monkeypatch.setattr(mx, "set_wired_limit", self._resize)
        monkeypatch.setattr(mx, "get_active_memory", lambda: sum(map(self.sizes.get, self.sizes.keys() - self._free)))
        monkeypatch.setattr(mx, "clear_cache", self._clear)
        monkeypatch.setattr("node.engine.wiring.device_memory", lambda: MEMORY)

    def make(self, name: str, size: int) -> None:
        self.sizes[name] = -(-size // PAGE) * PAGE
        if self._wired + self.sizes[name] <= self.limit:
            self.wired.add(name)

    def free(self, *names: str) -> None:
        self._free |= set(names)

    @property
    def _wired(self) -> int:
        return sum(self.sizes[name] for name in self.wired)

    def _clear(self) -> None:
        for name in self._free:
            del self.sizes[name]
            self.wired.discard(name)
        self._free = set()

    def _resize(self, limit: int) -> None:
        assert limit <= MEMORY, "MLX refuses it"
        if limit == self.limit:
            return
        self.limit = limit
        self.limits.append(limit)
        for name in self.sizes:
            if self._wired < limit and self._wired + self.sizes[name] <= limit:
                self.wired.add(name)
        while self._wired > limit:
            self.dropped.add(self.wired.pop())


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> Metal:
    return Metal(monkeypatch)


SIZE = 250 * 2**20 + 5


def read(metal: Metal, wiring: Wiring, name: str, layers: Iterable[int]) -> int:
    """Read layers of 250 MB and a bit, with what is needed to convert each. Returns the bytes wired."""
    wired = 0
    for layer in layers:
        before = mx.get_active_memory()
        metal.make("conversion", 60 * 2**20)
        metal.make(f"{name}-{layer}", SIZE)
        metal.free("conversion")
        mx.clear_cache()
        wired += wiring.wire(before)
    return wired


def names(name: str, layers: Iterable[int]) -> set[str]:
    return {f"{name}-{layer}" for layer in layers}


def test_weights_are_wired_and_kv_never(metal: Metal) -> None:
    wiring = Wiring()
    assert metal.limits == []
    wired = read(metal, wiring, "a", range(8))
    assert wired > 8 * SIZE
    assert read(metal, wiring, "b", range(4)) > 4 * SIZE
    weights = names("a", range(8)) | names("b", range(4))
    for step in range(300):
        metal.make(f"kv-{step}", 2 * 2**20)
        metal.make("result", 100 * 2**20)
        metal.free("result", *([f"kv-{step - 40}"] if step >= 40 else []))
        mx.clear_cache()
        assert metal.wired == weights
    assert metal.limit == sum(metal.sizes[name] for name in weights) + HEAP

    metal.free(*names("a", range(8)))
    mx.clear_cache()
    wiring.release(wired)
    for step in range(40):
        metal.make(f"later-{step}", 2 * 2**20)
    assert metal.wired == names("b", range(4)), "the room of weights that are gone is not for KV"
    assert metal.dropped == set()


def test_weights_that_come_beside_kv_are_not_wired(metal: Metal) -> None:
    wiring = Wiring()
    assert read(metal, wiring, "a", range(8))
    metal.make("kv", 32 * 2**20)
    limits = list(metal.limits)
    assert not read(metal, wiring, "b", range(4))
    assert metal.limits == limits
    assert metal.wired == names("a", range(8))
    metal.free("kv", *names("b", range(4)))
    mx.clear_cache()
    assert read(metal, wiring, "c", range(4))
    assert metal.wired == names("a", range(8)) | names("c", range(4))


def test_kv_that_comes_between_two_pieces_of_a_load_is_not_wired(metal: Metal) -> None:
    """Another ring computes there, and its KV goes on to come and go."""
    wiring = Wiring()
    first = read(metal, wiring, "a", range(2))
    metal.make("kv-0", 32 * 2**20)
    assert not read(metal, wiring, "a", (2, 3))
    metal.free("kv-0")
    for step in range(1, 20):
        metal.make(f"kv-{step}", 32 * 2**20)
    assert metal.wired == names("a", (0, 1))
    metal.free(*names("a", range(4)), *(f"kv-{step}" for step in range(1, 20)))
    mx.clear_cache()
    wiring.release(first)
    assert metal.limit == 0


def test_two_loads_at_a_time(metal: Metal) -> None:
    wiring = Wiring()
    for name, layer in (("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)):
        assert read(metal, wiring, name, [layer])
    metal.make("kv", SIZE)
    assert metal.wired == names("a", range(3)) | names("b", range(2))
    assert metal.dropped == set()


def test_a_model_that_is_larger_than_the_device(metal: Metal) -> None:
    assert read(metal, Wiring(), "a", range(60))
    assert metal.limit == MEMORY
    assert metal.dropped == set()


def load(directory: Path, between: Callable[[], object] = lambda: None) -> Stage:
    """Load a model with --wire, and call `between` after each piece."""
    tensors = Layouts().of(directory).weights.tensors
    pieces = load_stage(directory, 0, 4, tensors, wiring=Wiring())
    while True:
        try:
            next(pieces)
            between()
        except StopIteration as end:
            return end.value


def test_the_limit_is_never_above_what_is_read_when_a_piece_of_a_load_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a ring that computes between two pieces has no KV wired, and once there is KV the limit rises no more."""
    monkeypatch.setattr("node.engine.load._MAX_GROUP", 64)
    gc.collect()  # what other tests left
    limits, begun, kv = [0], mx.get_active_memory(), []
    monkeypatch.setattr("node.engine.wiring.device_memory", lambda: MEMORY)
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)
    active = mx.get_active_memory
    monkeypatch.setattr(mx, "get_active_memory", lambda: active() - begun + sum(kv))
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])

    def between() -> None:
        assert limits[-1] <= mx.get_active_memory() - sum(kv) + HEAP
        if len(limits) == 3:
            kv.append(GIB)

    stage = load(directory, between)
    assert len(limits) == 3
    assert 0 < sum(weight.wired for weight in stage.weights.values()) == limits[-1] - HEAP < stage.weight_bytes


def test_a_load_that_fails_takes_its_weights_out_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [0]
    monkeypatch.setattr("node.engine.wiring.device_memory", lambda: MEMORY)
    monkeypatch.setattr(mx, "set_wired_limit", limits.append)

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Stage, "run", fail)
    monkeypatch.setattr("node.engine.wiring.CONSTANTS", mx.get_active_memory() + GIB)  # what other tests left
    with pytest.raises(RuntimeError):
        load(write_model(tmp_path, CONFIGURATIONS["llama"]))
    assert max(limits) > 0
    assert limits[-1] == 0
