"""How a process is told to stop, and ends although its loop or its threads never do."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

WITHIN_S = 20.0
"""Generous: the process has one second."""
BEGIN = """
import asyncio, concurrent.futures, threading, time
from node.host.shutdown import exit_within, on_signals

def say(text):
    print(text, flush=True)

async def main():
    stop, leave = asyncio.Event(), asyncio.Event()
    on_signals(stop.set, leave.set)
"""
FREE = """
    say("ready")
    await stop.wait()
    say("stopping")
    await leave.wait()
    say("leaving")

asyncio.run(main())
"""
NOHUP = """
    say(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)

asyncio.run(main())
"""
BLOCKED = """
    say("ready")
    while True:
        time.sleep(0.1)

asyncio.run(main())
"""
STUCK_THREAD = """
    threading.Thread(target=threading.Event().wait).start()
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    exit_within(0.5, 7)
    say("ready")

asyncio.run(main())
"""


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", BEGIN + code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_stops_and_the_second_leaves(number):
    with running(FREE) as process:
        for said in ("stopping", "leaving"):
            process.send_signal(number)
            assert process.stdout.readline() == f"{said}\n"
        assert process.wait(WITHIN_S) == 0


def test_a_terminal_that_is_closed_stops_once():
    """Its shell repeats the signal of the system."""
    with running(FREE) as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "leaving\n"
        assert process.wait(WITHIN_S) == 0


def test_nohup():
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + BEGIN + NOHUP
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=WITHIN_S)
    assert done.stdout == "True\n"


def test_the_second_ends_a_process_whose_loop_is_held_up():
    with running(BLOCKED) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        # Two signals at the same moment count as two.
        assert process.wait(WITHIN_S) == 0


def test_no_thread_keeps_a_process_from_its_end():
    with running(STUCK_THREAD) as process:
        assert process.wait(WITHIN_S) == 7
