import asyncio
import gc
import threading
import weakref

import mlx.core as mx
import pytest

from node.core.errors import NotReady
from node.engine.compute import Compute
from node.engine.device import (
    DeviceUnavailable,
    choose_device,
    device_memory,
    limit_memory,
    prefill_chunk,
    probe_tokens,
)


@pytest.fixture
def compute():
    compute = Compute()
    compute.start()
    yield compute
    compute.stop()


async def test_jobs_run_in_order_in_one_thread(compute):
    order = []

    def job(number):
        order.append(number)
        return number, threading.current_thread().name

    results = await asyncio.gather(*(compute.run(job, k) for k in range(50)))
    assert order == list(range(50))
    assert [number for number, _ in results] == list(range(50))
    (thread,) = {name for _, name in results}
    assert thread.startswith("compute")
    assert thread != threading.current_thread().name


async def test_what_pieces_return_is_freed_once_nobody_has_it(compute):
    class Large:
        pass

    def pieces():
        yield
        return Large()

    gc.collect()
    gc.disable()
    try:
        held = weakref.ref(await compute.run_pieces(pieces()))
        await compute.run(lambda: None)  # the thread has no job of the pieces any more
        assert held() is None, "it waits for Python to look for cycles"
    finally:
        gc.enable()


async def test_exceptions_come_back(compute):
    def fail():
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await compute.run(fail)
    assert await compute.run(lambda: 1) == 1


class Panic(BaseException):
    """Like the exception of pyo3 when Rust code panics."""


@pytest.mark.parametrize(
    "error", [StopIteration(3), StopAsyncIteration(), GeneratorExit(), SystemExit(1), Panic("index")]
)
async def test_no_exception_leaves_who_waits_for_a_job_waiting_or_passes_by_its_handlers(compute, error):
    def fail():
        raise error

    def pieces():
        yield 1
        raise error

    for job in (compute.run(fail), compute.run_pieces(pieces())):
        with pytest.raises((RuntimeError, StopAsyncIteration)) as caught:
            await asyncio.wait_for(job, 60)
        assert type(error).__name__ in repr(caught.value)
    assert await compute.run(lambda: 1) == 1


async def test_a_cancelled_job_that_has_not_begun_is_skipped(compute):
    hold, ran = threading.Event(), []
    running = asyncio.ensure_future(compute.run(hold.wait))
    waiting = asyncio.ensure_future(compute.run(ran.append, "skipped"))
    after = asyncio.ensure_future(compute.run(ran.append, "run"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0)
    hold.set()
    await running
    await after
    assert ran == ["run"]
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_cancelled_job_that_runs_is_finished_unheard(compute):
    begun, hold, ran = threading.Event(), threading.Event(), []

    def job():
        begun.set()
        hold.wait()
        ran.append(True)

    task = asyncio.ensure_future(compute.run(job))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hold.set()
    await compute.run(int)
    assert ran == [True]


async def test_others_get_their_turn_between_the_pieces_of_a_long_job(compute):
    begun, hold, order, heard = threading.Semaphore(0), threading.Semaphore(0), [], []

    def pieces():
        for number in range(3):
            begun.release()
            hold.acquire()
            order.append(number)
            yield number
        return "done"

    task = asyncio.ensure_future(compute.run_pieces(pieces(), heard.append))
    others = []
    for name in "abc":
        await asyncio.to_thread(begun.acquire)
        others.append(compute.submit(order.append, name))  # submitted while a piece runs
        hold.release()
    assert await task == "done"
    assert order == [0, "a", 1, "b", 2, "c"]
    assert heard == [0, 1, 2]


async def test_a_piece_that_fails_is_heard_of(compute):
    def pieces():
        yield 1
        raise KeyError("gone")

    heard = []
    with pytest.raises(KeyError, match="gone"):
        await compute.run_pieces(pieces(), heard.append)
    assert heard == [1]


async def test_a_long_job_that_is_cancelled_is_closed_in_the_thread_after_its_piece(compute):
    begun, hold, ran = threading.Event(), threading.Event(), []

    def pieces():
        try:
            begun.set()
            hold.wait()
            ran.append("piece")
            yield
            ran.append("another")
        finally:
            ran.append(threading.current_thread().name)

    task = asyncio.ensure_future(compute.run_pieces(pieces(), ran.append))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hold.set()
    thread = await compute.run(lambda: threading.current_thread().name)
    assert ran == ["piece", thread]


async def test_unevaluated_arrays_stay_usable_in_the_thread(compute):
    """In another thread they would not be, because a stream belongs to its thread."""
    half = await compute.run(lambda: mx.ones((4,)) * 2)
    assert await compute.run(_one_more, half) == [3.0] * 4


def _one_more(array):
    return (array + 1).tolist()


async def test_submit_from_another_thread(compute):
    assert await asyncio.to_thread(lambda: compute.submit(pow, 2, 5).result(timeout=60)) == 32


async def test_stop_finishes_what_waits(compute):
    hold, ran = threading.Event(), []
    compute.submit(hold.wait)
    waiting = [compute.submit(ran.append, number) for number in range(3)]
    stopping = asyncio.ensure_future(asyncio.to_thread(compute.stop))
    hold.set()
    await stopping
    assert all(job.done() for job in waiting)
    assert ran == [0, 1, 2]
    with pytest.raises(NotReady):
        compute.submit(int)
    compute.stop()
    compute.start()
    assert await compute.run(lambda: 3) == 3


def test_before_the_start():
    with pytest.raises(NotReady):
        Compute().submit(int)


def test_device():
    memory = device_memory()
    assert memory is None or memory > 1_000_000_000


def test_the_device_may_be_chosen():
    before = mx.default_device()
    try:
        choose_device("cpu")
        assert mx.default_device() == mx.Device(mx.cpu)
        choose_device("")
        assert mx.default_device() == mx.Device(mx.cpu)
        if mx.is_available(mx.gpu):
            choose_device("gpu")
            assert mx.default_device() == mx.Device(mx.gpu)
        else:
            with pytest.raises(DeviceUnavailable, match=r"no GPU.* PIPPIN_DEVICE"):
                choose_device("gpu")
    finally:
        mx.set_default_device(before)


async def test_the_chosen_device_is_that_of_the_compute_thread(compute, monkeypatch):
    before = mx.default_device()
    try:
        mx.set_default_device(mx.Device(mx.cpu, 1))  # where there is no GPU, the only other device
        assert await compute.run(mx.default_device) == mx.Device(mx.cpu, 1)
    finally:
        mx.set_default_device(before)


GIB = 2**30


@pytest.mark.parametrize(("memory", "buffers"), [(12 * GIB, int(0.6 * GIB)), (96 * GIB, 2 * GIB)])
def test_free_buffers_take_little_of_a_device_and_nothing_is_wired(memory, buffers, monkeypatch):
    limits = {}
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": memory, "memory_size": 1})
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "set_cache_limit", lambda limit: limits.update(buffers=limit))
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: pytest.fail("wired"))
    limit_memory()
    assert limits == {"buffers": buffers}
    assert Compute().wiring is None
    assert Compute(wire=True).wiring


def test_a_cpu_keeps_mlx_s_own_limits(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    monkeypatch.setattr(mx, "set_cache_limit", lambda limit: pytest.fail("limited"))
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: pytest.fail("wired"))
    limit_memory()


def test_chunks_of_a_gpu(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert (prefill_chunk(1), prefill_chunk(2), prefill_chunk(3)) == (2048, 512, 512)
    assert (prefill_chunk(1, 256), prefill_chunk(2, 256)) == (256, 256)
    assert probe_tokens() == 64


def test_chunks_of_a_cpu(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    assert {prefill_chunk(stages, unfused) for stages in (1, 2) for unfused in (0, 256)} == {128}
    assert probe_tokens() < 64
