"""Disks that fail: the catalogue leaves out only the entries that it can't read."""

import builtins
import errno
import io
import logging
import os
import shutil
import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from node.core.errors import PippinError
from node.core.models import ModelVersion, Shard
from node.model.catalogue import Catalogue
from node.model.layouts import Layouts

ERRORS = (errno.EACCES, errno.EIO, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ETIMEDOUT, errno.EPERM)


@pytest.fixture
def places(tmp_path, make_model):
    make_model(tmp_path / "builtin" / "pippin-demo")
    make_model(tmp_path / "mine" / "single")
    make_model(tmp_path / "mine" / "org" / "model")
    repository = tmp_path / "cache" / "models--hub--model"
    for commit in ("aaa", "bbb", "ccc"):
        make_model(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("bbb")
    return tmp_path


ALL = {"pippin-demo", "single", "org/model", "hub/model"}


def ids(catalogue):
    return {held.id for held in catalogue.local()}


def made(places):
    return Catalogue(places / "builtin", [places / "mine"], places / "data", places / "cache")


class Disk:
    """A disk whose accesses fail at random, by a seed."""

    def __init__(self, monkeypatch, seed, share):
        self.random, self.share, self.failures = Random(seed), share, 0
        for module, name in ((os, "scandir"), (os, "stat"), (io, "open"), (builtins, "open")):
            monkeypatch.setattr(module, name, self.wrapped(getattr(module, name)))

    def wrapped(self, function):
        def call(*args, **kwargs):
            self.fail(args[0] if args else "")
            found = function(*args, **kwargs)
            return Entries(self, found) if function.__name__ == "scandir" else found

        return call

    def fail(self, path):
        if self.random.random() < self.share:
            self.failures += 1
            number = self.random.choice(ERRORS)
            raise OSError(number, os.strerror(number), str(path))


class Entries:
    def __init__(self, disk, entries):
        self.disk, self.entries = disk, entries

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.entries.close()

    def __iter__(self):
        for entry in self.entries:
            self.disk.fail(entry.path)
            yield Entry(self.disk, entry)


class Entry:
    def __init__(self, disk, entry):
        self.disk, self.entry, self.name = disk, entry, entry.name

    def __getattr__(self, name):
        self.disk.fail(self.entry.path)
        return getattr(self.entry, name)


@pytest.mark.parametrize("share", [0.003, 0.03, 0.3, 1.0])
def test_any_access_may_fail(places, share):
    for seed in range(15):
        catalogue = made(places)
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = Disk(monkeypatch, seed, share)
            catalogue.refresh()
            found = ids(catalogue)
            for model_id in ALL:
                catalogue.whole(model_id)
                catalogue.directory_for(Shard(ModelVersion(model_id, "bbb"), 1, 2), ends=False)
                catalogue.tokenizer_directory(model_id, "bbb")
        assert found <= ALL
        assert found == ALL or disk.failures
        catalogue.refresh()
        assert ids(catalogue) == ALL, "the disk is well again"


def test_a_folder_that_the_system_guards_is_told_apart(places, monkeypatch):
    """As macOS answers for ~/Documents and for other disks."""
    catalogue, scandir = made(places), os.scandir
    for number, denied in ((errno.EPERM, (places / "mine",)), (errno.EACCES, ()), (errno.EPERM, (places / "mine",))):

        def fail(path, number=number):
            if Path(path) == places / "mine":
                raise OSError(number, os.strerror(number), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", fail)
        catalogue.refresh()
        assert catalogue.denied == denied
        assert ids(catalogue) == ALL - {"single", "org/model"}
    monkeypatch.setattr(os, "scandir", scandir)
    catalogue.refresh()
    assert (catalogue.denied, ids(catalogue)) == ((), ALL)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_was_found_is_kept_when_the_process_is_short_of_something(places, monkeypatch, number):
    catalogue = made(places)
    catalogue.refresh()

    def fail(path):
        raise OSError(number, os.strerror(number), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", fail)
        with pytest.raises(OSError):
            catalogue.refresh()
    assert ids(catalogue) == ALL


def test_while_files_come_and_go(places, make_model):
    catalogue = made(places)
    ended = threading.Event()

    def churn():
        random = Random(1)
        while not ended.is_set():
            for path in (places / "mine" / "gone", places / "cache" / "models--hub--gone" / "snapshots" / "abc"):
                make_model(path)
                files = sorted(path.iterdir())
                random.shuffle(files)
                for file in files:
                    file.unlink()
                shutil.rmtree(path.parent if path.name == "abc" else path)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(60):
            catalogue.refresh()
            assert ids(catalogue) >= ALL
    finally:
        ended.set()
        thread.join()


def test_odd_entries(places, make_model, caplog):
    mine, cache = places / "mine", places / "cache"
    (mine / "loop").symlink_to("loop")
    (mine / "nowhere").symlink_to(mine / "absent")
    (mine / "up").symlink_to("..")  # an endless loop
    (mine / "file").write_text("no folder")
    (make_model(mine / "config-is-a-folder") / "config.json").unlink()
    (mine / "config-is-a-folder" / "config.json").mkdir()
    broken = make_model(mine / "broken-link") / "tokenizer.json"
    broken.unlink()
    broken.symlink_to("absent")
    index = make_model(mine / "index-is-a-loop") / "model.safetensors.index.json"
    index.unlink()
    index.symlink_to(index.name)
    (make_model(mine / "nested") / "model.safetensors.index.json").write_text('{"weight_map":' * 200_000)
    os.mkfifo(mine / "pipe")
    Path(os.fsdecode(os.fsencode(mine) + b"/not-\xff-text")).mkdir()
    for name in ("models--a--b--c", "models----", "models--..--x", "models--", "datasets--a--b"):
        make_model(cache / name / "snapshots" / "abc")
    (cache / "models--file").write_text("")
    (cache / "models--hub--model" / "refs" / "main").write_bytes(b"\xff\xfe")
    catalogue = made(places)
    with caplog.at_level(logging.WARNING):
        catalogue.refresh()
        first = len(caplog.records)
        catalogue.refresh()
    assert ids(catalogue) == ALL | {"broken-link", "index-is-a-loop"}
    told = " ".join(record.getMessage() for record in caplog.records)
    assert "'" + str(mine / "loop") + "'" in told
    assert str(mine / "nested") in told
    assert len(caplog.records) == first, "each is told once"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(places):
    (places / "mine" / "org").chmod(0)
    try:
        catalogue = made(places)
        catalogue.refresh()
        assert ids(catalogue) == ALL - {"org/model"}
    finally:
        (places / "mine" / "org").chmod(0o755)


def test_a_change_is_seen_though_the_rest_is_not_read_again(places, monkeypatch):
    catalogue = made(places)
    catalogue.refresh()
    read = []
    monkeypatch.setattr(Layouts, "of", lambda _, path: read.append(path) or SimpleNamespace(weight_map={}))
    catalogue.refresh()
    assert read == []
    (places / "mine" / "single" / "model-00002-of-00003.safetensors").unlink()
    catalogue.refresh()
    assert read == [places / "mine" / "single"]


def test_thousands(places):
    for number in range(1000):
        folder = places / "mine" / f"org-{number % 50}" / f"model-{number}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    catalogue = made(places)
    catalogue.refresh()
    assert ids(catalogue) == ALL
    for name in ("../x", "a/b/c"):
        with pytest.raises(PippinError):
            catalogue.whole(name)
