"""Revisions: a commit or a fingerprint identifies the contents of a model's files, and no other files replace them."""

import json
import os
import shutil

import pytest

from node.core.models import HeldModel, ModelVersion, Shard
from node.model.catalogue import Catalogue
from node.model.file_names import DESCRIPTION, checked_revision, is_commit
from node.model.layouts import Layout

FIRST = "model-00001-of-00003.safetensors"
COMMITS = ["a" * 40, "b" * 40]


@pytest.fixture
def catalogue(tmp_path):
    return Catalogue(tmp_path / "builtin", [tmp_path / "mine"], tmp_path / "data", tmp_path / "cache")


def revision(catalogue, model_id="org/model"):
    return catalogue.whole(model_id).revision


def test_a_copy_has_the_same_revision_and_a_change_another_one(tmp_path, catalogue, make_model):
    directory = make_model(tmp_path / "mine" / "org" / "model")
    before = revision(catalogue)
    assert checked_revision(before) == before
    assert not is_commit(before)
    shutil.copytree(directory, tmp_path / "mine" / "copy")
    for file in (tmp_path / "mine" / "copy").iterdir():
        os.utime(file, (1, 1))
    assert revision(catalogue, "copy") == before
    (directory / "README.md").write_text("# Another card")
    (directory / "LICENSE").write_text("Do as you like.")
    (directory / DESCRIPTION).write_bytes(Layout(directory).weights.to_json())
    assert revision(catalogue) == before, "what is not loaded does not count"

    seen = {before}
    for change in (
        lambda: (directory / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 4, "x": 1}'),
        lambda: (directory / "tokenizer.json").write_text('{"version": "2.0"}'),
        (directory / "chat_template.jinja").unlink,
        lambda: overwrite(directory / FIRST, -1, b"\x01\x02\x03"),
        lambda: overwrite(directory / FIRST, 2_000, bytes(3_000)),
        lambda: append_index(directory / "model.safetensors.index.json"),
    ):
        change()
        assert revision(catalogue) not in seen
        seen.add(revision(catalogue))


def overwrite(path, at, content):
    """Change bytes without changing the size."""
    raw = bytearray(path.read_bytes())
    at = at if at >= 0 else len(raw) - len(content)
    raw[at : at + len(content)] = content
    path.write_bytes(raw)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))


def append_index(path):
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "metadata": {"total_size": 1}}))


def test_a_load_of_what_was_changed_meanwhile_finds_nothing(tmp_path, catalogue, make_model):
    directory = make_model(tmp_path / "mine" / "org" / "model")
    shard = Shard(ModelVersion("org/model", revision(catalogue)), 1, 2)
    assert catalogue.directory_for(shard, ends=False) == directory
    (directory / "tokenizer.json").write_text("{}")
    assert catalogue.directory_for(shard, ends=False) is None
    assert catalogue.tokenizer_directory("org/model", shard.version.revision) is None
    assert catalogue.tokenizer_directory("org/model", revision(catalogue)) == directory


def test_two_snapshots_are_two(tmp_path, catalogue, make_model):
    repository = tmp_path / "cache" / "models--org--model"
    first, second = (make_model(repository / "snapshots" / commit) for commit in COMMITS)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMITS[1])
    catalogue.refresh()
    assert catalogue.local() == (HeldModel("org/model", COMMITS[1]), HeldModel("org/model", COMMITS[0]))
    assert revision(catalogue) == COMMITS[1], "the branch as last seen"
    assert catalogue.whole("org/model", COMMITS[0]).path == first
    (first / FIRST).unlink()
    assert catalogue.directory_for(Shard(ModelVersion("org/model", COMMITS[0]), 0, 1), ends=True) is None
    assert catalogue.directory_for(Shard(ModelVersion("org/model", COMMITS[1]), 0, 1), ends=True) == second
    assert catalogue.described("org/model", COMMITS[0]) is None, "not all headers are here"


def test_what_peers_gave_keeps_its_revision(tmp_path, catalogue, make_model):
    for commit in COMMITS:
        make_model(catalogue.target("org/model", commit))
    make_model(catalogue.target("name", "local-1"))
    catalogue.refresh()
    assert set(catalogue.local()) == {
        *(HeldModel("org/model", commit) for commit in COMMITS),
        HeldModel("name", "local-1"),
    }
    part = catalogue.target("org/model", COMMITS[0])
    (part / DESCRIPTION).write_bytes(Layout(part).weights.to_json())
    (part / FIRST).unlink()
    assert catalogue.whole("org/model").path == catalogue.target("org/model", COMMITS[1])
    assert catalogue.described("org/model", COMMITS[0]).path == part


def test_a_part_without_a_name_is_of_no_use(tmp_path, catalogue, make_model):
    """It is not known which whole model it belongs to."""
    directory = make_model(tmp_path / "mine" / "org" / "model")
    (directory / DESCRIPTION).write_bytes(Layout(directory).weights.to_json())
    (directory / FIRST).unlink()
    catalogue.refresh()
    assert catalogue.local() == ()
    assert catalogue.described("org/model") is None
    assert catalogue.directory_for(Shard(ModelVersion("org/model", ""), 1, 2), ends=False) is None
