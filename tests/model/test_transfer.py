import hashlib
import os
from contextlib import closing
from pathlib import Path

import pytest

from node.core.errors import BadRequest, ModelBroken, ModelNotFound
from node.core.model_files import File
from node.core.models import ModelVersion, Shard
from node.model import sending
from node.model.catalogue import Catalogue
from node.model.digests import digest_of
from node.model.file_names import DESCRIPTION
from node.model.gathering import has_file, open_partial
from node.model.json_parser import JsonParser
from node.model.layouts import Layout, Layouts
from node.model.partial_file import PartialFile
from node.model.sending import Sender
from node.model.stage_fetch import link

COMMIT = "c" * 40
FIRST, SECOND, THIRD = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))
SMALL = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors.index.json", DESCRIPTION}


def offer(directory, cache=Path("/nowhere")):
    return Sender(Layouts(), cache).offer(directory)


def read(directory, *span, cache=Path("/nowhere")):
    return Sender(Layouts(), cache).read(directory, *span)


@pytest.fixture
def source(tmp_path, make_model):
    return make_model(tmp_path / "source")


def content_of(directory, name, offset=0):
    chunks = list(read(directory, name, offset))
    assert chunks[-1][0] == b""
    return b"".join(chunk for chunk, _ in chunks)


def copy(source, directory, file):
    directory.mkdir(parents=True, exist_ok=True)
    with closing(PartialFile(directory / file.name, file.size, file.digest)) as partial:
        for chunk, sha256 in read(source, file.name):  # noqa: B007
            partial.write(chunk)
        assert file.digest in ("", sha256)
        partial.finish(sha256, note=True)
    return directory / file.name


def test_offer(source):
    (source / "folder").mkdir()
    (source / "folder.json").mkdir()
    (source / f"{FIRST}.incomplete").touch()
    for name in (".secret.json", "notes.txt", "secrets.json", "chat.jsonl", "training_args.json"):
        (source / name).write_text("secret")
    offered = offer(source)
    assert {file.name for file in offered} == SMALL | {FIRST, SECOND, THIRD}
    assert all(file.size == len(content_of(source, file.name)) for file in offered)
    digests = {file.name: file.digest for file in offered}
    assert digests[FIRST] == "", "not computed for each listing"
    assert digests["config.json"] == hashlib.sha256((source / "config.json").read_bytes()).hexdigest()


def test_a_stage_goes_to_another_node(source, tmp_path):
    catalogue = Catalogue(tmp_path / "none", (), tmp_path / "data", tmp_path / "cache")
    directory = catalogue.target("org/model", COMMIT)
    offered = offer(source)
    weights = JsonParser().description(content_of(source, DESCRIPTION))
    for file in [file for file in offered if file.name in SMALL | {SECOND}]:
        assert not has_file(directory, file)
        assert copy(source, directory, file).read_bytes() == content_of(source, file.name)
        assert has_file(directory, file)
    directory = catalogue.directory_for(Shard(ModelVersion("org/model", COMMIT), 1, 3), ends=False)
    assert directory == catalogue.target("org/model", COMMIT)
    catalogue.refresh()
    assert catalogue.local() == ()
    assert Layout(directory).weights == weights, "a node with a part knows the whole"

    (second,) = [file for file in offer(directory) if file.name == SECOND]
    assert second.digest == hashlib.sha256((source / SECOND).read_bytes()).hexdigest(), "noted when it was verified"
    assert {file.name for file in offer(directory)} == SMALL | {SECOND}

    for file in offered:
        if not has_file(directory, file):
            copy(source, directory, file)
    catalogue.refresh()
    assert [held.id for held in catalogue.local()] == ["org/model"]


def test_links_of_the_hub_cache_are_followed(tmp_path, make_model):
    cache = tmp_path / "cache"
    snapshot = make_model(cache / "models--org--model" / "snapshots" / COMMIT)
    content = (snapshot / SECOND).read_bytes()
    etag = hashlib.sha256(content).hexdigest()
    blob = cache / "models--org--model" / "blobs" / etag
    blob.parent.mkdir()
    (snapshot / SECOND).rename(blob)
    (snapshot / SECOND).symlink_to(f"../../blobs/{etag}")
    (tmp_path / "link").symlink_to(cache)  # a user may have moved the cache to another disk
    for place in (cache, tmp_path / "link"):
        assert File(SECOND, len(content), etag) in offer(snapshot, place)
        assert list(read(snapshot, SECOND, cache=place)) == [(content, ""), (b"", etag)]
    (tmp_path / "own" / "model").parent.mkdir()
    (tmp_path / "own" / "model").symlink_to(snapshot)
    assert File(SECOND, len(content), etag) in offer(tmp_path / "own" / "model", cache), "a folder may be a link itself"


@pytest.mark.parametrize("linked", [".", "models--org--model", "models--org--model/blobs"])
def test_what_a_user_moved_to_another_disk_is_offered(tmp_path, make_model, linked):
    cache = tmp_path / "cache"
    snapshot = make_model(cache / "models--org--model" / "snapshots" / COMMIT)
    blobs = cache / "models--org--model" / "blobs"
    blobs.mkdir()
    (snapshot / SECOND).rename(blobs / "abc")
    (snapshot / SECOND).symlink_to("../../blobs/abc")
    (tmp_path / "disk").mkdir()
    moved = (cache / linked).rename(tmp_path / "disk" / "moved")
    (cache / linked).symlink_to(moved)
    assert SECOND in {file.name for file in offer(snapshot, cache)}


def test_the_log_says_once_that_files_of_a_folder_are_not_offered(source, tmp_path, caplog):
    for name in ("tokenizer.json", "chat_template.jinja"):
        (source / name).rename(tmp_path / name)
        (source / name).symlink_to(tmp_path / name)
    sender = Sender(Layouts(), tmp_path / "cache")
    for _ in range(2):
        assert {file.name for file in sender.offer(source)} & SMALL == SMALL - {"tokenizer.json", "chat_template.jinja"}
    assert caplog.messages == [
        f"chat_template.jinja of {source} is not offered to other nodes, as it is a link to a file elsewhere"
    ]


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("kind", ["outside", "blobs of another place", "pipe", "folder", "dangling"])
def test_what_lies_elsewhere_is_not_offered(source, tmp_path, name, kind):
    path, secret = source / name, tmp_path / "blobs" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("secret")
    secret.chmod(0o600)
    path.unlink(missing_ok=True)
    match kind:
        case "outside":
            secret.rename(tmp_path / "id_ed25519")
            path.symlink_to(tmp_path / "id_ed25519")
        case "blobs of another place":
            path.symlink_to(secret)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to("absent")
    cache = tmp_path / "cache"
    cache.mkdir()
    assert name not in {file.name for file in offer(source, cache)}
    with pytest.raises(ModelNotFound):
        read(source, name, cache=cache)


def test_a_link_that_changes_meanwhile_shows_nothing(source, tmp_path, monkeypatch):
    """The file that was opened is the one that is judged."""
    secret, path = tmp_path / "secret", source / "tokenizer.json"
    secret.write_text("secret")
    path.rename(source / "real")
    path.symlink_to(secret)
    opened = os.open

    def open_then_change(*given):
        found = opened(*given)
        path.unlink()
        path.symlink_to(source / "real")
        return found

    monkeypatch.setattr(os, "open", open_then_change)
    with pytest.raises(ModelNotFound):
        read(source, "tokenizer.json")


def test_a_digest_is_computed_once_until_the_file_changes(source, monkeypatch):
    sender, computed = Sender(Layouts(), Path("/nowhere")), []
    monkeypatch.setattr(sending, "digest_of", lambda path: computed.append(path.name) or digest_of(path))
    first = sender.offer(source)
    assert sender.offer(source) == first
    assert sorted(computed) == sorted({file.name for file in first} - {DESCRIPTION})
    computed.clear()
    (source / "tokenizer.json").write_text("{}")
    assert sender.offer(source) != first
    assert computed == ["tokenizer.json"]


@pytest.mark.parametrize(
    "name",
    [
        "../secret.json",
        "/etc/hosts.json",
        "..",
        "",
        "a/../config.json",
        "./config.json",
        "vocab.json",
        "notes.txt",
        "secrets.json",
        "chat.jsonl",
        "README.md",
        "config.json\0",
        "modeling_evil.py",
        "x\\config.json",
    ],
)
def test_names_not_offered(source, tmp_path, name):
    (tmp_path / "secret.json").write_text("secret")
    for other in ("notes.txt", "secrets.json", "chat.jsonl"):
        (source / other).write_text("secret")
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
    for offset, length in ((0, 10), (100, (1 << 20) + 1), (len(content) - 5, 5), (len(content) - 5, 100)):
        parts = list(read(tmp_path, "model.safetensors", offset, length))
        assert {sha256 for _, sha256 in parts} == {""}
        assert b"".join(chunk for chunk, _ in parts) == content[offset : offset + length]


def test_files_of_two_directories_come_together(source, tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / SECOND).symlink_to(tmp_path / "gone")
    (target / "config.json").write_bytes(b"own")
    link(target, [source / SECOND, source / "config.json", source / FIRST])
    assert (target / SECOND).read_bytes() == (source / SECOND).read_bytes()
    assert (target / "config.json").read_bytes() == b"own"
    assert (target / FIRST).resolve() == source / FIRST


@pytest.mark.parametrize("name", [DESCRIPTION, "config.json", FIRST])
def test_what_is_behind_the_end_is_refused_before_anything_is_read(source, name):
    (size,) = [file.size for file in offer(source) if file.name == name]
    assert content_of(source, name, size) == b""
    for offset in (size + 1, 1 << 62, (1 << 64) - 1):
        with pytest.raises(BadRequest, match=f"has {size:,} bytes"):
            read(source, name, offset)
