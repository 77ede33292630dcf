"""A file that comes from the hub or a node: what came is kept, and the whole is verified."""

import hashlib
import random
import resource
import signal
from contextlib import closing

import pytest

from node.core.errors import ModelBroken, NoCapacity, NotReady
from node.model.digests import digest_of
from node.model.partial_file import PartialFile

CONTENT = random.Random(1).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BLOB_ID = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def opened(path, digest=SHA256):
    return closing(PartialFile(path, len(CONTENT), digest))


@pytest.mark.parametrize("digest", [SHA256, BLOB_ID])
def test_what_came_is_kept_until_the_next_try(path, digest):
    with opened(path, digest) as file:
        file.write(CONTENT[:500])
        file.write(CONTENT[500:700])
    with opened(path, digest) as file:
        assert file.offset == 700
        assert not path.exists()
        file.write(CONTENT[700:])
        file.finish(digest, note=True)
    assert path.read_bytes() == CONTENT
    assert digest_of(path) == digest
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.digest"}


@pytest.mark.parametrize(("digest", "found"), [("0" * 64, SHA256), ("0" * 40, BLOB_ID)])
def test_wrong_content_is_not_used_and_the_next_try_starts_with_nothing(path, digest, found):
    with opened(path, digest) as file:
        file.write(CONTENT)
        with pytest.raises(ModelBroken, match=f"model.safetensors .* digest is {found}, expected is {digest}"):
            file.finish(digest, note=True)
    assert [each.name for each in path.parent.iterdir()] == [f"{path.name}.incomplete"]
    with opened(path) as file:
        assert file.offset == 0


def test_one_that_is_longer_than_it_was_offered(path):
    with opened(path) as file:
        file.write(CONTENT)
        with pytest.raises(ModelBroken, match="longer than the 3,000,000 bytes"):
            file.write(b"x")
    with opened(path) as file:
        assert file.offset == 0


def test_one_at_a_time(path):
    with opened(path), pytest.raises(NotReady, match="already being fetched"):
        opened(path)
    with opened(path):
        pass


def test_disk_full(path):
    """A limit on file sizes stands for a full disk: both refuse the write with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(path) as file:
        file.write(CONTENT[:100])
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            with pytest.raises(NoCapacity, match="byte 100 of"):
                file.write(CONTENT[100:1_000])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
    with opened(path) as file:
        assert file.offset == 500, "what was written is kept"
        file.write(CONTENT[500:])
        file.finish(SHA256)
