import hashlib
import resource
import signal

import pytest

from node.core.errors import BadRequest, ModelBroken, ModelNotFound, NoCapacity, NotReady
from node.core.types import Shard
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION
from node.model.transfer import File, has_file, needed, offer, open_partial, read, small
from node.model.weights import Weights

COMMIT = "c" * 40
FIRST, SECOND, THIRD = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))
SMALL = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json", DESCRIPTION}


@pytest.fixture
def source(tmp_path, make_model):
    return make_model(tmp_path / "source")


def content_of(directory, name, offset=0):
    chunks = list(read(directory, name, offset))
    assert chunks[-1][0] == b""
    return b"".join(chunk for chunk, _ in chunks)


def copy(source, directory, file):
    with open_partial(directory, file) as partial:
        for chunk, sha256 in read(source, file.name, partial.offset):  # noqa: B007
            partial.write(chunk)
        return partial.finish(sha256)


def test_offer(source):
    (source / "folder").mkdir()
    (source / "folder.json").mkdir()
    (source / f"{FIRST}.incomplete").touch()
    (source / ".secret.json").touch()
    offered = offer(source)
    assert {file.name for file in offered} == SMALL | {FIRST, SECOND, THIRD}
    assert all(file.size == len(content_of(source, file.name)) for file in offered)
    assert {file.name for file in small(offered)} == SMALL


def test_a_stage_goes_to_another_node(source, tmp_path):
    catalogue = Catalogue(tmp_path / "none", (), tmp_path / "data", tmp_path / "cache")
    directory = catalogue.target("org/model", COMMIT)
    offered = offer(source)
    weights = Weights.from_json(content_of(source, DESCRIPTION))
    files = needed(offered, weights, 1, 3, ends=False)
    assert {file.name for file in files} == SMALL | {SECOND}
    for file in files:
        assert not has_file(directory, file)
        assert copy(source, directory, file).read_bytes() == content_of(source, file.name)
        assert has_file(directory, file)
    directory = catalogue.directory_for(Shard("org/model", 1, 3, COMMIT), ends=False)
    assert directory == catalogue.target("org/model", COMMIT)
    catalogue.refresh()
    assert catalogue.local() == ()
    assert Weights.read(directory) == weights, "a node with a part knows the whole"

    third = offer(directory)
    assert [file.name for file in needed(third, weights, 1, 2, ends=False) if file.name == SECOND]
    with pytest.raises(ModelNotFound, match="lacks 2 of the stage's 2 files"):
        needed(third, weights, 0, 1, ends=True)

    for file in needed(offered, weights, 0, 4, ends=True):
        if not has_file(directory, file):
            copy(source, directory, file)
    catalogue.refresh()
    assert [held.id for held in catalogue.local()] == ["org/model"]


def test_links_of_the_hub_cache_are_followed(source, tmp_path):
    blob = tmp_path / "blob"
    (source / SECOND).rename(blob)
    (source / SECOND).symlink_to(blob)
    assert SECOND in {file.name for file in offer(source)}
    assert content_of(source, SECOND) == blob.read_bytes()
    assert list(read(source, SECOND))[-1] == (b"", hashlib.sha256(blob.read_bytes()).hexdigest())


@pytest.mark.parametrize(
    "name",
    [
        "../secret.json",
        "/etc/hosts.json",
        "..",
        "",
        "a/../config.json",
        "./config.json",
        "absent.json",
        "README.md",
        "config.json\0",
        "modeling_evil.py",
        "x\\config.json",
    ],
)
def test_names_not_offered(source, tmp_path, name):
    (tmp_path / "secret.json").write_text("secret")
    with pytest.raises(ModelNotFound):
        read(source, name, 0)


@pytest.mark.parametrize(
    "name", ["../config.json", "/tmp/config.json", "x.py", "config.json.incomplete", ".ssh.json", "a\nb.json"]
)
def test_names_not_taken(tmp_path, name):
    directory = tmp_path / "target"
    with pytest.raises(ModelBroken):
        open_partial(directory, File(name, 1))
    with pytest.raises(ModelBroken):
        has_file(directory, File(name, 1))


def test_large_files_come_in_chunks(tmp_path):
    content = bytes(range(256)) * 10_000
    (tmp_path / "model.safetensors").write_bytes(content)
    digest = (b"", hashlib.sha256(content).hexdigest())
    *chunks, last = read(tmp_path, "model.safetensors", 100)
    assert last == digest
    assert [len(chunk) for chunk, _ in chunks] == [(1 << 20) - 100, 1 << 20, len(content) - (2 << 20)]
    assert b"".join(chunk for chunk, _ in chunks) == content[100:]
    *chunks, last = read(tmp_path, "model.safetensors", (1 << 20) + 1)
    assert [len(chunk) for chunk, _ in chunks] == [0, (1 << 20) - 1, len(content) - (2 << 20)]
    assert list(read(tmp_path, "model.safetensors", len(content)))[-1] == digest


def test_resume(source, tmp_path):
    content = (source / SECOND).read_bytes()
    file = File(SECOND, len(content))
    directory = tmp_path / "target"
    with open_partial(directory, file) as partial:
        assert partial.offset == 0
        partial.write(content[:1_000])
        partial.write(content[1_000:1_500])
    assert not has_file(directory, file)
    with open_partial(directory, file) as partial:
        assert partial.offset == 1_500
        for chunk, sha256 in read(source, SECOND, partial.offset):  # noqa: B007
            partial.write(chunk)
        partial.finish(sha256)
    assert (tmp_path / "target" / SECOND).read_bytes() == content
    assert [path.name for path in (tmp_path / "target").iterdir()] == [SECOND]


def test_a_part_longer_than_the_file_is_dropped(tmp_path):
    (tmp_path / "config.json.incomplete").write_bytes(b"longer than that")
    with open_partial(tmp_path, File("config.json", 2)) as partial:
        assert partial.offset == 0
        partial.write(b"{}")
        partial.finish(hashlib.sha256(b"{}").hexdigest())
    assert (tmp_path / "config.json").read_bytes() == b"{}"


def test_damage_is_noticed_and_the_next_try_starts_at_zero(source, tmp_path):
    directory, file = tmp_path / "target", File("config.json", 4)
    with open_partial(directory, file) as partial:
        partial.write(b"abcX")
        with pytest.raises(ModelBroken, match="damaged on its way"):
            partial.finish(hashlib.sha256(b"abcd").hexdigest())
    assert not has_file(directory, file)
    with open_partial(directory, file) as partial:
        assert partial.offset == 0


def test_too_short_and_too_long(tmp_path):
    directory, file = tmp_path, File("config.json", 4)
    with open_partial(directory, file) as partial:
        partial.write(b"abc")
        with pytest.raises(ModelBroken, match="ended after 3 of 4 bytes"):
            partial.finish("")
    with open_partial(directory, file) as partial, pytest.raises(ModelBroken, match="longer than the 4 bytes"):
        partial.write(b"de")
    with open_partial(directory, file) as partial:
        assert partial.offset == 0


def test_one_at_a_time(tmp_path):
    directory, file = tmp_path, File("config.json", 4)
    with open_partial(directory, file), pytest.raises(NotReady, match="already being fetched"):
        open_partial(directory, file)
    with open_partial(directory, file):
        pass


def test_disk_full(tmp_path):
    """A limit on file sizes stands for a full disk: both refuse the write with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    directory, file = tmp_path, File("config.json", 1_000)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_partial(directory, file) as partial:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            with pytest.raises(NoCapacity, match="byte 0 of 1,000"):
                partial.write(bytes(1_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
    with open_partial(directory, file) as partial:
        assert partial.offset == 500, "what fitted is kept"


@pytest.mark.parametrize("name", [DESCRIPTION, "config.json", FIRST])
def test_what_is_behind_the_end_is_refused_before_anything_is_read(source, name):
    (size,) = [file.size for file in offer(source) if file.name == name]
    assert content_of(source, name, size) == b""
    for offset in (size + 1, 1 << 62, (1 << 64) - 1):
        with pytest.raises(BadRequest, match=f"has {size:,} bytes"):
            read(source, name, offset)
