"""Large files from the hub: downloads that break off in any way resume where they were."""

import hashlib
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from node.core.errors import HubUnavailable, ModelBroken
from node.model import download as module
from node.model.hub import Hub

SIZE = 3_000_000
NAME = "model.safetensors"


@pytest.fixture
def content(fake_hub, make_safetensors):
    content = make_safetensors({"model.layers.0.mlp.weight": SIZE})
    fake_hub.repos = {"org/big": {"config.json": b'{"model_type": "llama"}', NAME: content}}
    return content


@pytest.fixture
def hub(fake_hub, content, tmp_path):
    return Hub(endpoint=fake_hub.url, token="good", cache_dir=tmp_path / "cache")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "_MAX_PAUSE_S", 0.01)


def incomplete(tmp_path):
    return next((tmp_path / "cache").glob("models--*/blobs/*.incomplete"), None)


def until(condition, within_s=60):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_in_the_middle_of_a_file(fake_hub, hub, content, tmp_path):
    fake_hub.stalls[NAME] = 1_000_000
    script = (
        "import sys; from pathlib import Path; from node.model.hub import Hub\n"
        "Hub(sys.argv[1], 'good', Path(sys.argv[2])).fetch('org/big', 'model.safetensors')"
    )
    process = subprocess.Popen([sys.executable, "-c", script, fake_hub.url, str(tmp_path / "cache")])
    until(lambda: (path := incomplete(tmp_path)) and path.stat().st_size == 1_000_000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    directory = hub.fetch("org/big", NAME)
    assert (directory / NAME).read_bytes() == content
    assert fake_hub.begins(NAME) == [0, 1_000_000]
    assert incomplete(tmp_path) is None


def test_broken_off_by_progress(fake_hub, hub, content, tmp_path):
    class Stop(Exception):
        pass

    def progress(here):
        if here > 500_000:
            raise Stop

    with pytest.raises(Stop):
        hub.fetch("org/big", NAME, progress)
    came = incomplete(tmp_path).stat().st_size
    assert 500_000 < came < 1_000_000, "at once, not when the file is whole"
    told = []
    directory = hub.fetch("org/big", NAME, told.append)
    assert (directory / NAME).read_bytes() == content
    assert fake_hub.begins(NAME) == [0, came]
    assert told == sorted(told)
    assert told[-1] == len(content)


def test_a_connection_that_stalls_is_given_up(fake_hub, hub, content, monkeypatch):
    monkeypatch.setattr(module, "STALL_S", 0.2)
    fake_hub.stalls[NAME] = 1_000_000
    directory = hub.fetch("org/big", NAME)
    assert (directory / NAME).read_bytes() == content
    assert fake_hub.begins(NAME) == [0, 1_000_000]


def test_a_connection_that_breaks_again_and_again(fake_hub, hub, content):
    directory = hub.fetch("org/big", NAME, lambda *_: fake_hub.breaks.setdefault(NAME, 200_000))
    assert (directory / NAME).read_bytes() == content
    assert fake_hub.begins(NAME) == list(range(0, len(content), 200_000)), "more often than TRIES, as bytes came"


def test_a_hub_that_sends_nothing_any_more(fake_hub, hub):
    with pytest.raises(HubUnavailable):
        hub.fetch("org/big", NAME, lambda *_: fake_hub.breaks.setdefault(NAME, 0))
    assert fake_hub.begins(NAME) == [0] * module.TRIES


def test_a_hub_in_trouble_for_a_while(fake_hub, hub, content):
    seen = []

    def progress(here):
        if here == 1_000_000:
            seen.append(here)
            fake_hub.status = 503 if len(seen) < 4 else 200

    fake_hub.breaks[NAME] = 1_000_000
    directory = hub.fetch("org/big", NAME, progress)
    assert (directory / NAME).read_bytes() == content
    assert len(fake_hub.begins(NAME)) > 2


def test_a_hub_that_sends_no_parts(fake_hub, hub, content):
    fake_hub.sends_parts = False
    fake_hub.breaks[NAME] = 1_000_000
    directory = hub.fetch("org/big", NAME)
    assert (directory / NAME).read_bytes() == content
    assert fake_hub.begins(NAME) == [0, 1_000_000]


@pytest.mark.parametrize("size", [1, 1_000_000, None, SIZE * 2])
def test_what_an_earlier_try_left_is_damaged(fake_hub, hub, content, tmp_path, size):
    blobs = hub.metadata("org/big").directory.parent.parent / "blobs"
    left = bytes(len(content) if size is None else size)
    (blobs / f"{hashlib.sha256(content).hexdigest()}.incomplete").write_bytes(left)
    directory = hub.fetch("org/big", NAME)
    assert (directory / NAME).read_bytes() == content


def test_damaged_at_the_hub(fake_hub, hub, content, tmp_path, monkeypatch):
    """Its SHA-256 differs from the hub's."""
    metadata = module.Source

    def wrong(url, headers, size, etag, name):
        return metadata(url, headers, size, "0" * 64, name)

    monkeypatch.setattr("node.model.hub.Source", wrong)
    with pytest.raises(
        ModelBroken,
        match=rf"{NAME} of org/big .* its digest is {hashlib.sha256(content).hexdigest()}, expected is 0+\.",
    ):
        hub.fetch("org/big", NAME)


def test_several_want_the_same_file(fake_hub, content, tmp_path):
    hubs = [Hub(endpoint=fake_hub.url, token="good", cache_dir=tmp_path / "cache") for _ in range(4)]
    fake_hub.stalls[NAME] = 1_000_000
    threading.Timer(0.5, fake_hub.stalled.set).start()
    with ThreadPoolExecutor(4) as pool:
        directories = list(pool.map(lambda hub: hub.fetch("org/big", NAME), hubs))
    assert {(directory / NAME).read_bytes() for directory in directories} == {content}
    assert fake_hub.begins(NAME) == [0, 1_000_000], "by one of them"
    assert incomplete(tmp_path) is None
