"""A device that fails: the error surfaces in whichever job comes next, and no KV is trusted afterwards."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import mlx.core as mx
import pytest

from node.core.errors import DeviceFailed, DeviceTimeout
from node.core.frames import Frame, Held, Open
from node.core.generation import Sampling
from node.core.mlx_errors import Fault, fault_of
from node.core.rings import Fence
from node.engine.compute import Compute
from node.engine.faults import MAX_IN_ROW, TRUSTED_STEPS, Faults
from node.engine.runner import Runner
from node.engine.sampling import Draw, History, Sampled
from node.engine.stage import Stage
from node.engine.verdict import StepFailed
from node.engine.watchdog import Watchdog
from node.kv.blocks import BLOCK
from tests.engine.configurations import CONFIGURATIONS
from tests.engine.models import load, shared_model

FAILED = "[METAL] Command buffer execution failed: {}."
HANG = FAILED.format("Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)")
TIMEOUT = FAILED.format("Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)")
INTERACTIVITY = FAILED.format(
    "Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
)
MEMORY = FAILED.format("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)")
IGNORED = FAILED.format(
    "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)"
)
CUDA = "cudaStreamSynchronize(stream_) failed: an illegal memory access was encountered"
PROMPT = [5, 6, 7, 8]


@pytest.fixture
async def compute() -> AsyncIterator[Compute]:
    found = Compute()
    found.start()
    yield found
    found.stop()


class Device:
    """Like Metal: the error of work that has begun is kept, and raised and forgotten where MLX is used next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        """Whether the work that fails has ended: only then the error surfaces."""
        self._error: Exception | None = None
        self.fails: list[Any] | None = None
        """Caches whose next evaluation fails: they hold garbage afterwards."""
        self.is_lost = False
        """Whether each evaluation of KV fails."""
        for name in ("eval", "async_eval"):
            monkeypatch.setattr(mx, name, self._checked(getattr(mx, name)))
        monkeypatch.setattr(mx, "synchronize", self._synchronize)

    def _synchronize(self) -> None:
        if self._error:
            error, self._error = self._error, None
            raise error

    def _checked(self, evaluate: Any) -> Any:
        def evaluate_or_raise(*arrays: Any) -> None:
            if self._error and self.is_over:
                error, self._error = self._error, None
                raise error
            evaluate(*arrays)
            if self.fails and any(array is self.fails[0].keys for each in arrays for array in _flat(each)):
                for cache in self.fails:
                    cache.keys = mx.full(cache.keys.shape, 1e4, cache.keys.dtype)
                self.fails, self._error = None, RuntimeError(HANG)
            if self.is_lost and any(array.ndim == 4 for array in _flat(arrays)):
                for array in _flat(arrays):
                    array[...] = 1000 * array
                self._error = RuntimeError(HANG)

        return evaluate_or_raise


def _flat(tree: Any) -> Generator[Any, None, None]:
    if isinstance(tree, list | tuple):
        for each in tree:
            yield from _flat(each)
    elif isinstance(tree, mx.array):
        yield tree


def step(runner: Runner, lane: int, tokens: list[int], *, opens: bool = False) -> int:
    frame = Frame("r", Fence(1, 1), 0, ops=(Open(lane),) if opens else (), lane=lane)
    draw = Draw(Sampling(temperature=0), 0, History(), lambda _: False)
    (verdict,) = runner.run(frame, [tokens], [draw])
    (result,) = verdict.results
    assert isinstance(result, Sampled)
    return result.token


async def test_kv_of_a_lane_whose_failure_surfaced_in_another_is_never_used(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    stage: Stage = await compute.run(load, directory, 0, 4)
    runner = Runner(stage.sibling(), directory, compute.faults)
    other = Runner(stage.sibling(), directory, compute.faults)
    await compute.run(step, other, 1, PROMPT, opens=True)
    first = await compute.run(step, runner, 1, PROMPT, opens=True)
    second = await compute.run(step, runner, 1, [first])
    await compute.run(step, runner, 2, PROMPT, opens=True)

    device = Device(monkeypatch)
    device.fails = runner._stage.lanes.lane(1).caches
    failures = compute.failures()
    listening = asyncio.ensure_future(anext(failures))
    await compute.run(step, runner, 1, [second])  # its token is right, its KV is not
    device.is_over = True
    with pytest.raises(DeviceFailed, match="Hang"):
        await compute.run(step, runner, 2, [first])
    assert "Hang" in (await listening).message
    for ring, lane in ((runner, 1), (other, 1), (runner, 2)):
        with pytest.raises(DeviceFailed, match="void"):
            await compute.run(step, ring, lane, [second])
    assert (compute.faults.count, compute.faults.lost) == (1, None), "what is refused for it is no further failure"

    for ring in (runner, other):
        await compute.run(ring.kv.leave)
    successor = Runner(stage.sibling(), directory, compute.faults)
    assert await compute.run(successor.kv.inherit, [Held(1, 5), Held(2, 4)]) == ()
    assert stage.leftover.nbytes == successor.kv.nbytes == 0
    assert await compute.run(step, successor, 3, PROMPT, opens=True) == first
    assert await compute.run(step, successor, 3, [first]) == second


async def test_kv_that_was_left_before_the_failure_is_void(compute: Compute) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    stage: Stage = await compute.run(load, directory, 0, 4)
    runner = Runner(stage.sibling(), directory, compute.faults)
    await compute.run(step, runner, 1, PROMPT, opens=True)
    await compute.run(runner.kv.leave)
    assert stage.leftover.nbytes
    with pytest.raises(DeviceFailed):
        await compute.run(raising(RuntimeError(HANG)))
    successor = Runner(stage.sibling(), directory, compute.faults)
    assert await compute.run(successor.kv.inherit, [Held(1, 4)]) == ()
    assert stage.leftover.nbytes == 0
    await compute.run(step, successor, 2, PROMPT, opens=True)
    await compute.run(successor.kv.leave)
    third = Runner(stage.sibling(), directory, compute.faults)
    assert await compute.run(third.kv.inherit, [Held(2, 4)]) == (Held(2, 4),), "what is newer than the failure is kept"


def raising(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


def chained(text: str) -> Exception:
    """As the runner raises it."""
    try:
        raise StepFailed("The step could not be computed") from RuntimeError(text)
    except StepFailed as error:
        return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError(HANG), Fault.OTHER),
        (chained(TIMEOUT), Fault.TIMEOUT),
        (RuntimeError(INTERACTIVITY), Fault.TIMEOUT),
        (RuntimeError(MEMORY), Fault.MEMORY),
        (chained(IGNORED), Fault.REFUSED),
        (RuntimeError(CUDA), Fault.OTHER),
        (RuntimeError("cuLaunchKernel(f) failed: unspecified launch failure"), Fault.OTHER),
        (RuntimeError("cudaMalloc(&p, n) failed: out of memory"), None),
        (RuntimeError("[metal::malloc] Attempting to allocate 9 bytes"), None),
        (ValueError(HANG), None),
        (StepFailed(f"a prompt that says {HANG}"), None),
    ],
)
def test_which_errors_are_of_the_device(error: Exception, fault: Fault | None) -> None:
    found = fault_of(error)
    assert (found and found[0]) == fault


async def test_a_job_in_which_a_failure_surfaces_raises_it(compute: Compute) -> None:
    with pytest.raises(DeviceTimeout, match="Caused GPU Timeout"):
        await compute.run(raising(chained(TIMEOUT)))
    with pytest.raises(StepFailed):
        await compute.run(raising(chained("Wrong shape")))

    def pieces() -> Generator[int, None, None]:
        yield 1
        raise RuntimeError(HANG)

    with pytest.raises(DeviceFailed):
        await compute.run_pieces(pieces())
    with pytest.raises(DeviceFailed):
        assert [each async for each in compute.iterate(pieces())] == [1]
    assert compute.faults.count == 3


def test_the_third_failure_with_few_good_steps_between_is_the_last() -> None:
    faults = Faults()
    assert not faults.is_suspect
    for _ in range(5):
        for _ in range(MAX_IN_ROW - 1):
            faults.note(RuntimeError(HANG))
        for _ in range(TRUSTED_STEPS):
            assert faults.is_suspect
            faults.good_step()
        assert not faults.is_suspect
    assert faults.lost is None
    for _ in range(5):
        faults.note(RuntimeError(TIMEOUT))
        faults.note(RuntimeError(MEMORY))
    assert faults.lost is None, "others end these: smaller chunks, and rings that give up their memory"
    assert faults.is_suspect
    for _ in range(MAX_IN_ROW):
        assert faults.lost is None
        for _ in range(TRUSTED_STEPS - 1):
            faults.good_step()
        faults.note(RuntimeError(CUDA))
    assert faults.lost
    assert faults.count == 5 * (MAX_IN_ROW - 1) + 10 + MAX_IN_ROW


async def test_a_device_that_takes_no_more_work_is_lost_at_once(compute: Compute) -> None:
    with pytest.raises(DeviceFailed):
        await compute.run(raising(RuntimeError(IGNORED)))
    lost = await asyncio.wait_for(Watchdog(compute, 60).lost(), 30)
    assert "prior/excessive GPU errors" in lost.message


LONG = [*range(5, 25)]
"""More tokens than a step of them that begins before the last one has ended."""


@pytest.mark.parametrize("prompt", [PROMPT, LONG], ids=["short", "long"])
async def test_nothing_of_a_device_that_fails_for_good_is_used(
    compute: Compute, monkeypatch: pytest.MonkeyPatch, prompt: list[int]
) -> None:
    """Rings are made anew with it, and each begins with all tokens so far, until it counts as lost."""
    directory = shared_model(CONFIGURATIONS["llama"])
    stage: Stage = await compute.run(load, directory, 0, 4)
    runner = Runner(stage.sibling(), directory, compute.faults)
    tokens = [*prompt, await compute.run(step, runner, 1, prompt, opens=True)]
    device = Device(monkeypatch)
    device.is_lost = True
    tokens.append(await compute.run(step, runner, 1, tokens[-1:]))  # its token is right, its KV is not
    device.is_over = True
    with pytest.raises(DeviceFailed):
        await compute.run(step, runner, 1, tokens[-1:])
    device.is_over = False
    for number in range(2, MAX_IN_ROW + 1):
        assert compute.faults.lost is None
        successor = Runner(stage.sibling(), directory, compute.faults)
        with pytest.raises(DeviceFailed):
            await compute.run(step, successor, number, tokens, opens=True)
    assert compute.faults.lost


async def test_a_stage_hands_on_nothing_of_a_suspect_device(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    first, second = [await compute.run(load, directory, *layers) for layers in ((0, 2), (2, 4))]
    compute.faults.note(RuntimeError(HANG))
    driver, worker = (Runner(stage, directory, compute.faults) for stage in (first, second))
    frame = Frame("r", Fence(1, 1), 0, ops=(Open(1),), lane=1)
    frame = await compute.run(driver.begin, frame, [PROMPT])
    device = Device(monkeypatch)
    device.is_lost = True
    with pytest.raises(DeviceFailed):
        await compute.run(partial(worker.relay, frame, last=True))


async def test_a_chunk_of_a_prompt_that_fails_is_known_at_once(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device that has never failed, too: the token behind it might be read before the failure is known."""
    directory = shared_model(CONFIGURATIONS["llama"])
    runner = Runner(await compute.run(load, directory, 0, 4), directory, compute.faults)
    device = Device(monkeypatch)
    device.is_lost = True
    with pytest.raises(DeviceFailed):
        await compute.run(step, runner, 1, LONG, opens=True)


async def test_a_failure_that_is_remembered_holds_no_kv(compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    runner = Runner(await compute.run(load, directory, 0, 4), directory, compute.faults)
    await compute.run(step, runner, 1, PROMPT, opens=True)
    cache = weakref.ref(runner._stage.lanes.lane(1).caches[0])
    device = Device(monkeypatch)
    device.is_lost = True
    with suppress(DeviceFailed):
        await compute.run(step, runner, 1, LONG)
    assert compute.faults.last
    await compute.run(runner.kv.free)
    gc.collect()
    assert cache() is None


async def test_no_kv_is_kept_on_disk_before_it_is_known_to_be_right(
    compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    runner = Runner(await compute.run(load, directory, 0, 4), directory, compute.faults)
    await compute.run(step, runner, 1, [7] * (BLOCK - 1), opens=True)
    device = Device(monkeypatch)
    device.is_lost = True
    await compute.run(step, runner, 1, [7])
    with pytest.raises(DeviceFailed):
        await compute.run(runner.kv.block, 1, 0)
    assert await compute.run(runner.kv.block, 1, 0) is None


async def test_steps_ahead_of_a_suspect_device_are_the_same(compute: Compute) -> None:
    directory = shared_model(CONFIGURATIONS["llama"])
    stage: Stage = await compute.run(load, directory, 0, 4)

    def ahead() -> list[int]:
        runner = Runner(stage.sibling(), directory, compute.faults)
        token = step(runner, 1, PROMPT, opens=True)
        draw = Draw(Sampling(temperature=0), 0, History(), lambda _: False)
        found = runner.run(Frame("r", Fence(1, 1), 0, lane=1), [[token]], [draw], ahead=3)
        results = [result for verdict in found for result in verdict.results]
        assert all(isinstance(result, Sampled) for result in results)
        return [result.token for result in results if isinstance(result, Sampled)]

    trusted = await compute.run(ahead)
    assert len(trusted) == 3
    compute.faults.note(RuntimeError(HANG))
    assert await compute.run(ahead) == trusted
