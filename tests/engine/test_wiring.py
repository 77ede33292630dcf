"""Only weights are wired, and only with --wire: on an allocator that follows MLX's own (resident.cpp, allocator.cpp)."""

from pathlib import Path

import mlx.core as mx
import pytest

from node.engine.load import load_stage
from node.engine.stage import Stage
from node.engine.wiring import Wiring
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


def read(metal: Metal, wiring: Wiring, name: str, layers: int) -> bool:
    """Read layers of 250 MB and a bit, with what is needed to convert each."""
    is_wired = wiring.begin(layers * (250 * 2**20 + 5))
    for layer in range(layers):
        metal.make("conversion", 60 * 2**20)
        metal.make(f"{name}-{layer}", 250 * 2**20 + 5)
        metal.free("conversion")
        mx.clear_cache()
    if is_wired:
        wiring.end()
    return is_wired


def test_weights_are_wired_and_kv_never(metal: Metal) -> None:
    wiring = Wiring()
    assert metal.limits == []
    assert read(metal, wiring, "a", 8)
    assert read(metal, wiring, "b", 4)
    weights = {name for name in metal.sizes if name[0] in "ab"}
    for step in range(300):
        metal.make(f"kv-{step}", 32 * 2**20)
        metal.make("result", 100 * 2**20)
        metal.free("result", *([f"kv-{step - 40}"] if step >= 40 else []))
        mx.clear_cache()
        assert metal.wired == weights
    assert metal.limit < sum(metal.sizes[name] for name in weights) + 250 * 2**20

    metal.free(*(f"a-{layer}" for layer in range(8)))
    mx.clear_cache()
    wiring.release(8 * (250 * 2**20 + 5))
    for step in range(40):
        metal.make(f"later-{step}", 32 * 2**20)
    assert metal.wired == {f"b-{layer}" for layer in range(4)}, "the room of weights that are gone is not for KV"
    assert metal.dropped == set()


def test_weights_that_come_beside_kv_are_not_wired(metal: Metal) -> None:
    wiring = Wiring()
    assert read(metal, wiring, "a", 8)
    metal.make("kv", GIB)
    limits = list(metal.limits)
    assert not read(metal, wiring, "b", 4)
    assert metal.limits == limits
    assert metal.wired == {f"a-{layer}" for layer in range(8)}
    metal.free("kv")
    metal.free(*(f"b-{layer}" for layer in range(4)))
    assert read(metal, wiring, "c", 4)
    assert metal.wired == {f"{name}-{layer}" for name, layers in (("a", 8), ("c", 4)) for layer in range(layers)}


def test_two_loads_at_a_time(metal: Metal) -> None:
    wiring = Wiring()
    size = 250 * 2**20
    assert wiring.begin(4 * size)
    metal.make("a-0", size)
    assert wiring.begin(2 * size)
    metal.make("b-0", size)
    for layer in (1, 2, 3):
        metal.make(f"a-{layer}", size)
    wiring.end()
    metal.make("b-1", size)
    wiring.end()
    metal.make("kv", size)
    assert metal.wired == {*(f"a-{layer}" for layer in range(4)), "b-0", "b-1"}
    assert metal.dropped == set()


def test_a_model_that_is_larger_than_the_device(metal: Metal) -> None:
    wiring = Wiring()
    assert read(metal, wiring, "a", 60)
    assert metal.limit <= MEMORY
    assert metal.dropped == set()


def test_the_limit_is_up_while_weights_are_read_and_down_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for name in ("begin", "end", "release"):
        monkeypatch.setattr(Wiring, name, lambda _, *__, name=name: seen.append(name) or True)
    step = Stage.begin
    monkeypatch.setattr(Stage, "begin", lambda *given, **more: seen.append("step") or step(*given, **more))
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *trees: seen.append("eval") or evaluate(*trees))
    directory = write_model(tmp_path, CONFIGURATIONS["llama"])
    tensors = Layouts().of(directory).weights.tensors

    def load() -> Stage:
        pieces = load_stage(directory, 0, 4, tensors, wiring=Wiring())
        while True:
            try:
                next(pieces)
            except StopIteration as end:
                return end.value

    stage = load()
    assert stage.wired_bytes == stage.weight_bytes == stage.sibling().wired_bytes > 0
    assert seen.count("begin") == seen.count("end") == 1
    assert seen.index("begin") < seen.index("eval") < seen.index("end") < seen.index("step")
    assert "release" not in seen

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    seen.clear()
    monkeypatch.setattr(Stage, "begin", fail)
    with pytest.raises(RuntimeError):
        load()
    assert seen[-1] == "release"
