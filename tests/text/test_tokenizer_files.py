"""A private copy of tokenizer files: whose fault it is if there is none, and that none is left behind."""

import resource
import tempfile

import pytest

from node.core.errors import NotReady
from node.core.pool import Pool
from node.text.sandboxed_encoder import TokenizerProcesses
from node.text.tokenizer_files import copies, copy
from node.text.tokenizer_settings import clean
from tests.text.test_constraint import DEMO


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of temporary files."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def full():
    """Have the system refuse each write of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_temporary_folder_that_can_not_be_written_is_no_fault_of_the_model(place, sandbox_server):
    processes = TokenizerProcesses(sandbox_server, DEMO, Pool("text", 1, 1))
    place.rmdir()
    with pytest.raises(NotReady, match=rf"temporary folder, {place}/.*: No such file or directory.*TMPDIR"):
        await processes.open()
    place.mkdir()
    await processes.open()  # at once: nothing is remembered of the model
    await processes.close()


async def test_a_full_disk_is_no_fault_of_the_model(place, full):
    full()
    with pytest.raises(NotReady, match=rf"temporary folder, {place}/.*: File too large.*Free space"):
        async with copies(Pool("file", 1, 1), DEMO):
            pass
    assert not list(place.iterdir())


def test_a_disk_that_is_full_when_the_copy_is_cleaned_is_no_fault_of_the_model(tmp_path, full):
    copy(DEMO, tmp_path / "copy")
    full()
    with pytest.raises(NotReady, match="File too large"):
        clean(tmp_path / "copy")
