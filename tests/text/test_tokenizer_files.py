"""A private copy of tokenizer files: whose fault it is if there is none, and that none is left behind."""

import asyncio
import os
import resource
import tempfile
import threading
import time
from contextlib import contextmanager

import pytest

from node.core.errors import NotReady
from node.core.pool import Pool
from node.text import tokenizer_files
from node.text.sandboxed_encoder import TokenizerProcesses
from node.text.tokenizer_files import PREFIX, copies, copy, remove_stale
from node.text.tokenizer_settings import clean
from tests.text.test_constraint import DEMO


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@contextmanager
def full_disk():
    """Have the system refuse each write of a file. Ends in the test: pytest's own output may go to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_temporary_folder_that_can_not_be_written_is_no_fault_of_the_model(place, sandbox_server):
    processes = TokenizerProcesses(sandbox_server, DEMO, Pool("text", 1, 1))
    place.rmdir()
    with pytest.raises(NotReady, match=rf"temporary folder, {place}/.*: No such file or directory.*TMPDIR"):
        await processes.open()
    place.mkdir()
    await processes.open()  # at once: nothing is remembered of the model
    await processes.close()


async def test_a_full_disk_is_no_fault_of_the_model(place):
    with full_disk(), pytest.raises(NotReady, match=rf"temporary folder, {place}/.*: File too large.*Free space"):
        async with copies(Pool("file", 1, 1), DEMO):
            pass
    assert not list(place.iterdir())


def test_a_disk_that_is_full_when_the_copy_is_cleaned_is_no_fault_of_the_model(tmp_path):
    copy(DEMO, tmp_path / "copy")
    with full_disk(), pytest.raises(NotReady, match="File too large"):
        clean(tmp_path / "copy")


# --- what is left behind ----------------------------------------------------------------------------------------------


async def test_who_hangs_up_while_files_are_copied_leaves_no_folder(place, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(directory, folder):
        begun.set()
        assert go_on.wait(60)
        copy(directory, folder)

    async def use():
        async with copies(pool, DEMO):
            pytest.fail("it was cancelled")

    monkeypatch.setattr(tokenizer_files, "copy", slow)
    pool = Pool("file", 1, 1)
    task = asyncio.create_task(use())
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.wait([task], timeout=0.1)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await pool.run(lambda: None)  # after the copy
    assert not list(place.iterdir())


def test_a_node_removes_what_killed_ones_left(place, tmp_path):
    for name in (f"{PREFIX}old", f"{PREFIX}new", "another's"):
        copy(DEMO, place / name)
    (place / f"{PREFIX}link").symlink_to(tmp_path)
    for path in place.iterdir():
        if path.name != f"{PREFIX}new":
            os.utime(path, (time.time() - 7200,) * 2, follow_symlinks=False)
    remove_stale()
    assert {path.name for path in place.iterdir()} == {f"{PREFIX}new", f"{PREFIX}link", "another's"}
    assert tmp_path.is_dir()


def test_no_temporary_folder_keeps_no_node_from_starting(place):
    place.rmdir()
    remove_stale()
