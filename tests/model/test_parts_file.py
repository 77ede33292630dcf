"""A file that comes in parts: what came is kept, in whichever order, and the whole is verified."""

import hashlib
import os
import random
import resource
import signal
from contextlib import closing

import pytest

from node.core.errors import ModelBroken, NoCapacity, NotReady
from node.model.digests import digest_of
from node.model.parts import PART
from node.model.parts_file import PartsFile

CONTENT = random.Random(1).randbytes(PART) + bytes(PART) + b"end" * 300 + bytes(100)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BLOB_ID = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def opened(path):
    return closing(PartsFile(path, len(CONTENT)))


@pytest.mark.parametrize("digest", [SHA256, BLOB_ID])
def test_parts_in_any_order_also_after_a_restart(path, digest):
    with opened(path) as file:
        assert file.counts == [0, 0, 0]
        file.write(2 * PART, CONTENT[2 * PART :])
        file.write(0, CONTENT[:500])
        file.write(500, CONTENT[500:700])
    with opened(path) as file:
        assert file.counts == [700, 0, 1_000]
        assert not path.exists()
        file.write(PART, CONTENT[PART : 2 * PART])
        file.write(700, CONTENT[700:PART])
        file.finish(digest)
    assert path.read_bytes() == CONTENT
    assert digest_of(path) == digest
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.digest"}


def test_what_a_version_without_a_journal_left_is_used(path):
    path.with_name(f"{path.name}.incomplete").write_bytes(CONTENT[: PART + 5])
    for _ in range(2):
        with opened(path) as file:
            assert file.counts == [PART, 5, 0]


def test_a_journal_of_bytes_that_are_not_there_is_not_believed(path):
    with opened(path) as file:
        file.write(PART, CONTENT[PART : 2 * PART])
    os.truncate(path.with_name(f"{path.name}.incomplete"), PART + 10)
    with opened(path) as file:
        assert file.counts == [0, 0, 0]


@pytest.mark.parametrize(("digest", "found"), [("0" * 64, SHA256), ("0" * 40, BLOB_ID)])
def test_wrong_content_is_not_used_and_the_next_try_starts_with_nothing(path, digest, found):
    with opened(path) as file:
        file.write(0, CONTENT[:PART])
        file.write(PART, CONTENT[PART : 2 * PART])
        file.write(2 * PART, CONTENT[2 * PART :])
        with pytest.raises(ModelBroken, match=f"model.safetensors .* digest is {found}, expected is {digest}"):
            file.finish(digest)
    assert not path.exists()
    with opened(path) as file:
        assert file.counts == [0, 0, 0]


def test_one_at_a_time(path):
    with opened(path), pytest.raises(NotReady, match="already being fetched"):
        PartsFile(path, len(CONTENT))
    with opened(path):
        pass


def test_disk_full(path):
    """A limit on file sizes stands for a full disk: both refuse the write with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(path) as file:
        file.write(0, CONTENT[:100])
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            with pytest.raises(NoCapacity, match="byte 500 of"):
                file.write(100, bytes(1_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
    with opened(path) as file:
        assert file.counts == [100, 0, 0]
