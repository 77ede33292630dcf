"""Whatever a sandbox's job does, the node continues, knows the reason for a missing answer, and has another process."""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import node
from node.core.errors import BadRequest, ModelBroken, NotReady, Overloaded
from node.core.fair_turns import FairTurns
from node.host import memory
from node.text.sandbox import Bounds, Sandbox, Sandboxes, SandboxFailed, SandboxServer, _refusal
from node.text.sandbox_server import ANSWERED, REPLY_HEADER, START, START_REPLY
from node.text.seatbelt import EXECUTABLE
from node.text.tokenizer_files import PREFIX

MB = 2**20
JOB = "tests.text.sandbox_jobs:make_harmful"
REFUSING = "tests.text.sandbox_jobs:make_refusing"
CURIOUS = "tests.text.sandbox_jobs:make_curious"
BOUNDS = Bounds(seconds=30, memory=64 * MB, reply=MB, kept=16 * MB)


def has_landlock():
    return sys.platform == "linux" and ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0


QUICK = Bounds(seconds=0.3, memory=64 * MB, reply=MB)


@pytest.fixture
async def start(sandbox_server):
    """Start a sandbox; all are ended with the test."""
    started = []

    async def start(bounds=BOUNDS, job=JOB, folder=None):
        started.append(await Sandbox.start(sandbox_server, job, bounds, folder))
        return started[-1]

    yield start
    for sandbox in started:
        sandbox.end()
    await asyncio.sleep(0)


@pytest.fixture
async def make(sandbox_server):
    """Make sandboxes for a job; all are ended with the test."""
    made = []

    def make(bounds=BOUNDS, most=2, max_waiting=10, job=JOB):
        start = partial(Sandbox.start, sandbox_server, job, bounds)
        made.append(Sandboxes(start, FairTurns("work", most, max_waiting)))
        return made[-1]

    yield make
    for sandboxes in made:
        await sandboxes.close()


def is_running(process):
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


async def gone(process):
    for _ in range(2000):
        if not is_running(process):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{process} is there still")


async def test_one_process_answers_one_request_after_the_other(start):
    sandbox = await start()
    assert await sandbox.ask(b"hello") == b"hello"
    assert await sandbox.ask(b"") == b""
    large = os.urandom(MB - 1)
    assert await sandbox.ask(large) == large
    assert int(await sandbox.ask(b"pid")) != os.getpid()
    assert sandbox.alive


@pytest.mark.parametrize(
    ("harm", "bounds", "reason"),
    [
        (b"loop", QUICK, "it took more than 0.3 s"),
        (b"crash", BOUNDS, "its process crashed, or needed more than 64.0 MB of memory"),
        (b"exit", BOUNDS, "its process crashed"),
        (b"raise PanicException", BOUNDS, "it failed with Panic: PanicException"),
        (b"keep 200000000", BOUNDS, "MemoryError|more than 64.0 MB"),
        (b"make 2000000", BOUNDS, "what it made is larger than 1.0 MB"),
    ],
)
async def test_harm_ends_the_process_and_is_named(start, harm, bounds, reason):
    sandbox = await start(bounds)
    process = int(await sandbox.ask(b"pid"))
    with pytest.raises(SandboxFailed, match=reason):
        await sandbox.ask(harm)
    assert not sandbox.alive
    await gone(process)
    with pytest.raises(SandboxFailed):
        await sandbox.ask(b"more")


async def test_time_that_other_programs_take_does_not_count(start):
    """As on a busy machine, where a large tokenizer was refused for good."""
    sandbox = await start(Bounds(seconds=0.3, memory=64 * MB, reply=MB, patience=1000.0))
    process = psutil.Process(sandbox._process)
    process.suspend()
    asking = asyncio.create_task(sandbox.ask(b"hello"))
    await asyncio.wait([asking], timeout=1.0)
    process.resume()
    assert await asking == b"hello"


async def test_a_request_that_computes_nothing_ends_too(start):
    sandbox = await start(Bounds(seconds=0.1, memory=64 * MB, reply=MB, patience=2.0))
    psutil.Process(sandbox._process).suspend()
    with pytest.raises(SandboxFailed, match=r"it took more than 0.1 s"):
        await sandbox.ask(b"hello")


async def test_the_kernel_ends_a_process_whose_node_hangs(start, monkeypatch):
    monkeypatch.setattr("node.text.sandbox._GRACE_S", 0.0)
    sandbox = await start(QUICK)
    asking = asyncio.create_task(sandbox.ask(b"loop"))
    await asyncio.sleep(0)
    while is_running(sandbox._process):
        time.sleep(0.01)  # noqa: ASYNC251 - it blocks the event loop, as a node that hangs
    with pytest.raises(SandboxFailed):
        await asking


async def test_a_long_request_may_take_longer(start):
    sandbox = await start(QUICK)
    with pytest.raises(SandboxFailed, match=r"it took more than 0.6 s"):
        await sandbox.ask(b"loop " + b"x" * (2 * MB - 5))


async def test_where_a_long_request_asks_for_no_more_it_may_take_no_longer(start):
    sandbox = await start(replace(QUICK, longer=False))
    with pytest.raises(SandboxFailed, match=r"it took more than 0.3 s"):
        await sandbox.ask(b"loop " + b"x" * (2 * MB - 5))


async def test_memory_is_looked_at_where_the_system_does_not_limit_it(start, monkeypatch):
    sandbox = await start(BOUNDS)
    used = memory.used_by(sandbox._process)
    monkeypatch.setattr("node.text.sandbox.used_by", lambda process: used + 65 * MB)
    with pytest.raises(SandboxFailed, match="it took more than 64.0 MB of memory"):
        await sandbox.ask(b"loop")


async def test_who_hangs_up_ends_the_process(start):
    sandbox = await start()
    process = int(await sandbox.ask(b"pid"))
    asking = asyncio.create_task(sandbox.ask(b"loop"))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])
    await gone(process)


async def test_a_process_that_has_ended_unseen(start, sandbox_server):
    sandbox = await start()
    asking = asyncio.create_task(sandbox.ask(b"loop"))
    await asyncio.sleep(0)
    os.kill(sandbox._process, signal.SIGKILL)
    while psutil.pid_exists(sandbox._process):  # blocks the event loop, while the server releases the process
        sandbox_server.fork(JOB, MB)[1].close()
    with pytest.raises(SandboxFailed, match="its process crashed"):
        await asyncio.wait_for(asking, BOUNDS.seconds / 2)


async def test_a_start_that_fails_is_no_fault_of_who_asks(make):
    sandboxes = make(job="tests.text.sandbox_jobs:make_nothing")
    with pytest.raises(NotReady, match="could not be started"):
        await sandboxes.ask(b"hello", "a")


async def test_signals_for_all_processes_are_for_the_node(start, sandbox_server):
    sandbox = await start()
    for process in (sandbox._process, sandbox_server._process.pid):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process, number)
    assert await sandbox.ask(b"hello") == b"hello"
    assert await (await start()).ask(b"hello") == b"hello"


async def test_a_sandbox_sees_nothing_of_the_nodes_environment(monkeypatch):
    monkeypatch.setenv("PIPPIN_SECRET", "hush-hush")
    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    server = SandboxServer()
    sandbox = await Sandbox.start(server, JOB, BOUNDS)
    assert b"hush" not in await sandbox.ask(b"environment")
    sandbox.end()
    await asyncio.sleep(0)
    server.close()


async def test_a_job_that_can_not_be_made_is_no_hang(start):
    with pytest.raises(NotReady):
        await start(job="tests.text.sandbox_jobs:make_nothing")


async def test_a_server_that_has_ended_is_not_started_again():
    server = SandboxServer()
    psutil.Process(server._process.pid).kill()
    server._process.wait()
    for _ in range(2):
        with pytest.raises(NotReady, match="has ended") as refused:
            await Sandbox.start(server, JOB, BOUNDS)
        assert refused.value.hint == "Restart the node."
    server.close()


async def test_the_next_one_stands_by_when_one_is_killed(make):
    sandboxes = make(QUICK)
    await sandboxes.start()
    for _ in range(3):
        with pytest.raises(SandboxFailed):
            await sandboxes.ask(b"loop", "a")
        async with asyncio.timeout(60):  # it starts while the other one is busy, for 0.3 s
            while not any(each.alive and each.is_idle for each in sandboxes._alive):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        assert await sandboxes.ask(b"hello", "a") == b"hello"


async def test_no_more_work_at_once_than_is_said_and_who_hangs_up_makes_room(make):
    sandboxes = make(most=2, max_waiting=3)
    busy = [asyncio.create_task(sandboxes.ask(b"loop", "a")) for _ in range(2)]
    waiting = [asyncio.create_task(sandboxes.ask(b"hello", "a")) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await sandboxes.ask(b"hello", "a")
    waiting.pop().cancel()
    await asyncio.sleep(0.05)
    waiting.append(asyncio.create_task(sandboxes.ask(b"hello", "a")))
    await asyncio.sleep(0)
    for task in busy:
        task.cancel()
    assert await asyncio.gather(*waiting) == [b"hello"] * 3


async def test_a_process_that_has_grown_is_not_asked_again(make):
    sandboxes = make(most=1)
    little = int(await sandboxes.ask(b"keep 1000", "a"))
    assert little in [each._process for each in sandboxes._alive if each.alive]
    much = int(await sandboxes.ask(b"keep 30000000", "a"))
    assert much not in [each._process for each in sandboxes._alive if each.alive]
    await gone(much)


@pytest.mark.parametrize("first_is_cancelled", [False, True])
async def test_nobody_gets_a_process_whose_reply_its_own_request_has_yet_to_take(make, first_is_cancelled):
    sandboxes = make(most=2)
    await sandboxes.ask(b"pid", "a")
    await asyncio.wait([sandboxes._starting])
    sandbox = sandboxes._idle()[-1]
    asking = asyncio.create_task(sandboxes.ask(b"keep 30000000", "a"))
    await asyncio.sleep(0)
    await sandbox._reply  # resumes before `asking`, which awaits it through two more futures
    assert not asking.done()
    if first_is_cancelled:
        asking.cancel()
    assert await sandboxes.ask(b"hello", "b") == b"hello"
    await asyncio.wait([asking])
    assert asking.cancelled() == first_is_cancelled
    assert not sandbox.alive


async def test_only_a_process_whose_reply_was_taken_is_ended_as_an_idle_one(sandbox_server):
    start = partial(Sandbox.start, sandbox_server, JOB, BOUNDS)
    sandboxes = Sandboxes(start, FairTurns("work", 1, 10), costly=True)
    await sandboxes.start()
    (sandbox,) = sandboxes._alive
    asking = asyncio.create_task(sandboxes.ask(b"hello", "a"))
    await asyncio.sleep(0)
    await sandbox._reply
    assert not asking.done()
    sandboxes.end()
    await sandboxes.start()  # it is there
    assert await asking == b"hello"
    assert sandbox.alive
    sandboxes.end()
    assert not sandbox.alive
    await sandboxes.close()


async def test_the_end_of_one_request_changes_no_checks_of_the_next(start):
    sandbox = await start(QUICK)
    os.kill(sandbox._process, signal.SIGSTOP)
    first = asyncio.create_task(sandbox.ask(b"first"))
    await asyncio.sleep(0)
    sandbox.data_received(REPLY_HEADER.pack(6) + ANSWERED + b"first")
    with pytest.raises(SandboxFailed, match=r"it took more than 0.6 s"):
        async with asyncio.timeout(60):
            await sandbox.ask(b"x" * 2 * MB)  # before callbacks of the first reply run
    assert await first == b"first"


async def test_a_sandbox_ends_with_its_node(start):
    sandbox = await start()
    process = int(await sandbox.ask(b"pid"))
    sandbox._transport.abort()  # as the system does for a node that is killed
    await gone(process)


def test_a_thread_of_the_system_is_no_reason_for_a_warning():
    """Python 3.12 and later warn of a fork beside any thread, such as one of macOS's Accelerate."""
    start = "import runpy, sys, threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    run = "runpy.run_module('node.text.sandbox_server', run_name='__main__', alter_sys=True)"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", f"{start}; {run}", str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True) as server:
            channel, end = socket.socketpair()
            with channel:
                with end:
                    socket.send_fds(ours, [START.pack(64 * MB, JOB.encode(), b"")], [end.fileno()])
                assert ours.recv(START_REPLY.size)
                ours.shutdown(socket.SHUT_RDWR)
                said = server.communicate(timeout=60)[1]
    assert (server.returncode, said) == (0, "")


@pytest.fixture
def files(tmp_path):
    """A sandbox's folder, in it a link to a secret file, and the folder of that file."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        Path(folder, "own").write_text("own")
        (tmp_path / "secret").write_text("secret")
        Path(folder, "link").symlink_to(tmp_path / "secret")
        yield Path(folder), tmp_path


async def test_a_sandbox_reads_and_writes_its_folder_and_reads_python_code(start, files):
    folder, _ = files
    sandbox = await start(folder=folder, job=CURIOUS)
    assert await sandbox.ask(f"open {folder / 'own'}".encode()) == b"own"
    await sandbox.ask(f"write {folder / 'new'}".encode())
    assert (folder / "new").read_text() == "written"
    assert await sandbox.ask(f"open {os.__file__}".encode())
    assert b"own" in await sandbox.ask(f"list {folder}".encode())


@pytest.mark.parametrize(
    "harm",
    [
        *(
            "open {elsewhere}/secret",
            "open {folder}/../x",
            "open {folder}/link",
            "open /etc/passwd",
            "list {elsewhere}",
        ),
        *("list /", "write {elsewhere}/new", "write {node}/new.py", "connect {port}", "run /bin/true", "end {pid}"),
    ],
)
async def test_a_sandbox_opens_nothing_else(start, files, harm, unused_tcp_port):
    folder, elsewhere = files
    sandbox = await start(folder=folder, job=CURIOUS)
    given = {"folder": folder, "elsewhere": elsewhere, "node": Path(node.__file__).parent, "pid": os.getpid()}
    with pytest.raises(SandboxFailed, match="PermissionError: a sandbox may not"):
        await sandbox.ask(harm.format(**given, port=unused_tcp_port).encode())
    assert not (elsewhere / "new").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is of Linux")
@pytest.mark.parametrize(("version", "told"), [(-1, True), (0, True), (1, False)])
def test_a_node_says_that_native_code_is_not_confined(monkeypatch, caplog, version, told):
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(syscall=lambda *_: version))
    server = SandboxServer()
    server.close()
    assert any("without Linux's Landlock" in each for each in caplog.messages) == told


@pytest.mark.skipif(not (has_landlock() or EXECUTABLE.exists()), reason="no system's wall here")
async def test_the_system_refuses_native_code_too(start, files):
    folder, elsewhere = files
    bounds = replace(BOUNDS, memory=512 * MB, reply=64 * MB)
    for path in (folder / "own", elsewhere / "secret"):
        shutil.copy(Path(node.__file__).parent / "builtin" / "pippin-demo" / "tokenizer.json", path)
    assert b"model" in await (await start(bounds, CURIOUS, folder)).ask(f"open-natively {folder / 'own'}".encode())
    for path in (elsewhere / "secret", folder / "link"):
        with pytest.raises(SandboxFailed, match=r"(denied|not permitted) \(os error"):
            await (await start(bounds, CURIOUS, folder)).ask(f"open-natively {path}".encode())


@pytest.mark.parametrize(("code", "kind"), [("invalid_value", BadRequest), ("model_broken", ModelBroken)])
async def test_a_job_refuses_what_it_was_given(start, code, kind):
    sandbox = await start(job=REFUSING)
    with pytest.raises(kind, match="^no$"):
        await sandbox.ask(code.encode())
    assert await sandbox.ask(b"") == b""


@pytest.mark.parametrize("reply", [b"", b"[]", b"1", b"{", b"{}", b'{"code": "invalid_value"}', b"[" * 10**4, b"\xff"])
def test_what_is_no_refusal(reply):
    assert _refusal(reply) is None


@pytest.mark.parametrize("said", ["invalid_api_key", "ring_lost", "nonsense", "malformed", "lengthy"])
async def test_a_process_that_was_taken_over_chooses_no_other_error(start, said):
    sandbox = await start(job=REFUSING)
    with pytest.raises(SandboxFailed, match="^it failed with "):
        await sandbox.ask(said.encode())
    assert not sandbox.alive
