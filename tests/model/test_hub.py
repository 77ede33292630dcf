import errno
import math
import os
import subprocess
import sys

import pytest
from huggingface_hub import hf_hub_download

from node.core.errors import (
    HubUnavailable,
    ModelBroken,
    ModelGated,
    ModelNotFetched,
    ModelNotFound,
    ModelUnsupported,
    NoCapacity,
    PippinError,
)
from node.core.models import ModelVersion, Shard
from node.model.catalogue import Catalogue
from node.model.config import read_license
from node.model.file_names import DESCRIPTION
from node.model.hub import Hub
from node.model.hub_errors import translated
from node.model.hub_search import HubModel
from node.model.layouts import Layout
from node.model.weights import Weights

FIRST, SECOND, THIRD = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))


@pytest.fixture
def hub(fake_hub, tmp_path):
    return Hub(endpoint=fake_hub.url, token="good", cache_dir=tmp_path / "cache")


def test_metadata_downloads_no_weights(fake_hub, hub, tmp_path, make_model):
    metadata = hub.metadata("org/model")
    assert metadata.config["num_hidden_layers"] == 4
    assert metadata.weights == Layout(make_model(tmp_path / "local", fake_hub.repos["org/model"])).weights
    assert fake_hub.fetched() == []
    assert {path.name for path in metadata.directory.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        DESCRIPTION,
    }


def test_metadata_a_second_time_asks_for_the_commit_only(fake_hub, hub):
    first = hub.metadata("org/model")
    fake_hub.log.clear()
    assert hub.metadata("org/model") == first
    assert fake_hub.log == ["HEAD /org/model/resolve/main/config.json"]


def test_a_file_is_fetched_once_and_nothing_else(fake_hub, hub, tmp_path):
    told = []
    directory = hub.fetch("org/model", SECOND, told.append)
    assert fake_hub.fetched() == [SECOND]
    content = fake_hub.repos["org/model"][SECOND]
    assert (directory / SECOND).read_bytes() == content
    assert (told[0], told[-1]) == (0, len(content))
    assert told == sorted(told)
    assert not (directory / "modeling_evil.py").exists()
    catalogue = Catalogue(tmp_path / "none", (), tmp_path / "data", tmp_path / "cache")
    catalogue.refresh()
    assert catalogue.local() == ()
    assert catalogue.directory_for(Shard(ModelVersion("org/model", directory.name), 2, 3), ends=False) == directory
    assert catalogue.directory_for(Shard(ModelVersion("org/model", directory.name), 2, 4), ends=False) is None

    for file in (FIRST, SECOND, THIRD):
        hub.fetch("org/model", file)
    assert fake_hub.fetched() == [SECOND, FIRST, THIRD]
    catalogue.refresh()
    assert [held.id for held in catalogue.local()] == ["org/model"]
    assert catalogue.whole("org/model").path == directory


def test_what_pippin_fetched_is_deleted_and_not_what_another_program_did(fake_hub, hub, tmp_path):
    catalogue = Catalogue(tmp_path / "none", (), tmp_path / "data", tmp_path / "cache")
    for _ in range(2):
        hub.fetch("org/model", SECOND)
        assert catalogue.remove("org/model") > len(fake_hub.repos["org/model"][SECOND])

    def other_program(file):
        return hf_hub_download("org/model", file, cache_dir=tmp_path / "cache", endpoint=fake_hub.url, token="good")

    hub.fetch("org/model", SECOND)
    other_program("README.md")
    with pytest.raises(ModelNotFetched):
        catalogue.remove("org/model")
    catalogue.remove("org/model", not_fetched=True)
    for file in fake_hub.repos["org/model"]:
        other_program(file)
    directory = hub.fetch("org/model", SECOND)
    assert (directory / DESCRIPTION).is_file()
    with pytest.raises(ModelNotFetched):
        catalogue.remove("org/model")


def test_a_download_that_is_broken_off_is_pippins(fake_hub, hub, tmp_path):
    def progress(here):
        if here:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch("org/model", SECOND, progress)
    catalogue = Catalogue(tmp_path / "none", (), tmp_path / "data", tmp_path / "cache")
    assert list((tmp_path / "cache").rglob("*.incomplete"))
    assert catalogue.remove("org/model") > 0


@pytest.mark.slow
def test_a_download_that_breaks_off_is_resumed(fake_hub, hub, make_safetensors):
    tensors = {f"model.layers.{n}.mlp.weight": 6_000_000 for n in range(4)}
    fake_hub.repos["org/big"] = {
        "config.json": b'{"model_type": "llama"}',
        "model.safetensors": make_safetensors(tensors),
    }
    fake_hub.breaks["model.safetensors"] = 15_000_000
    directory = hub.fetch("org/big", "model.safetensors")
    assert (directory / "model.safetensors").read_bytes() == fake_hub.repos["org/big"]["model.safetensors"]
    assert fake_hub.begins("model.safetensors") == [0, 15_000_000]


def test_progress_can_break_it_off(fake_hub, hub):
    class Stop(Exception):
        pass

    def progress(here):
        if here:
            raise Stop

    with pytest.raises(Stop):
        hub.fetch("org/model", SECOND, progress)
    directory = hub.fetch("org/model", SECOND)
    assert (directory / SECOND).read_bytes() == fake_hub.repos["org/model"][SECOND]


@pytest.mark.parametrize(
    ("bound", "files"),
    [("MAX_SMALL_BYTES", {"vocab.json": b" " * 5000}), ("MAX_TOKENIZER_BYTES", {"vocab.json": b" " * 5000})],
)
def test_small_files_have_a_bound(fake_hub, hub, monkeypatch, bound, files):
    monkeypatch.setattr(f"node.model.file_names.{bound}", 4000)
    fake_hub.repos["org/model"] |= files
    with pytest.raises(ModelBroken, match="are the most"):
        hub.metadata("org/model")
    assert not any(name in entry for entry in fake_hub.log for name in files)


def test_licenses_come_along_unless_they_are_long(fake_hub, hub):
    texts = {"LICENSE": b"Do", "Licence.md": b"as", "NOTICE.txt": b"you", "LICENSE-MODEL": b"like."}
    others = {"NOTICE": b" " * (64 * 2**10 + 1), "LICENSE.py": b"x", "license.pdf": b"x", "LICENSES.zip": b"x"}
    fake_hub.repos["org/model"] |= {**texts, **others}
    directory = hub.metadata("org/model").directory
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.name in {**texts, **others}} == texts
    assert read_license(directory) == "Do\nlike.\nas\nyou"


def test_files_that_nothing_reads_stay_on_the_hub(fake_hub, hub):
    fake_hub.repos["org/model"] |= {"notes.txt": b"x", "training_args.json": b"{}", "chat.jsonl": b"{}"}
    directory = hub.metadata("org/model").directory
    assert not {"notes.txt", "training_args.json", "chat.jsonl"} & {path.name for path in directory.iterdir()}


def test_a_commit_can_be_pinned(fake_hub, hub):
    first = hub.fetch("org/model", SECOND)
    fake_hub.repos["org/model"]["README.md"] = b"# A better card"
    second = hub.fetch("org/model", SECOND)
    assert second != first
    assert hub.fetch("org/model", SECOND, revision=first.name) == first
    assert fake_hub.fetched() == [SECOND], "the same blob serves both commits"


def test_unknown(hub):
    with pytest.raises(ModelNotFound, match="no model 'org/other' on the hub"):
        hub.metadata("org/other")


@pytest.mark.parametrize("model_id", ["../../etc", "a/b/c", "org/mo del", "org/..", "a\0b", ""])
def test_ids_that_are_none(hub, model_id):
    with pytest.raises(ModelNotFound):
        hub.metadata(model_id)


def test_gated(fake_hub, tmp_path, hub):
    fake_hub.gated.add("org/model")
    stranger = Hub(endpoint=fake_hub.url, token="bad", cache_dir=tmp_path / "stranger")
    with pytest.raises(ModelGated) as caught:
        stranger.metadata("org/model")
    assert "HF_TOKEN" in caught.value.hint
    assert "https://huggingface.co/org/model" in caught.value.hint
    assert hub.metadata("org/model").config


def test_a_token_that_is_refused(fake_hub, hub):
    fake_hub.status = 401
    with pytest.raises(ModelGated, match="401"):
        hub.metadata("org/model")


@pytest.mark.parametrize(
    "files", [{"model.gguf": b"GGUF"}, {"config.json": b'{"model_type": "llama"}', "pytorch_model.bin": b"PK"}]
)
def test_other_formats(fake_hub, hub, files):
    fake_hub.repos["org/gguf"] = files
    with pytest.raises(ModelUnsupported) as caught:
        hub.metadata("org/gguf")
    assert "mlx-community" in caught.value.hint


def test_damaged_config(fake_hub, hub):
    fake_hub.repos["org/model"]["config.json"] = b"{"
    with pytest.raises(ModelBroken, match=r"config\.json"):
        hub.metadata("org/model")


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a": {}}',
        b'{"a": {"dtype": "U8"}}',
        b'{"a": 1}',
        b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 3]}}',
        b'{"a": {"dtype": "U8", "shape": [999], "data_offsets": [0, 999]}}',
        b'{"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}, "b": {"dtype":"U8","shape":[1],"data_offsets":[3,4]}}',
        None,
    ],
)
def test_damaged_header(fake_hub, hub, header):
    content = b"\xff" * 100 if header is None else len(header).to_bytes(8, "little") + header
    fake_hub.repos["org/model"][SECOND] = content
    with pytest.raises(ModelBroken):
        hub.metadata("org/model")


def test_an_index_that_names_absent_files_is_passed_over(fake_hub, hub, make_safetensors):
    files = {**fake_hub.repos["org/model"], "model.safetensors": make_safetensors({"model.layers.0.w": 5})}
    fake_hub.repos["org/model"] = {name: files[name] for name in files if "-of-" not in name}
    assert hub.metadata("org/model").weights.layers == 1


def test_no_connection(tmp_path):
    with pytest.raises(HubUnavailable, match="cannot be reached"):
        Hub(endpoint="http://127.0.0.1:9", cache_dir=tmp_path).metadata("org/model")


def test_an_error_of_the_system_is_told_without_its_number():
    for number, reason in ((-2, "Name or service not known"), (111, "Connection refused")):
        error = translated(ConnectionError(f"[Errno {number}] {reason}"), "org/model")
        assert error.message == f"The hub cannot be reached for org/model ({reason})."


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_in_trouble(fake_hub, hub, status):
    fake_hub.status = status
    with pytest.raises(HubUnavailable, match=str(status)):
        hub.metadata("org/model")


def test_without_connection_the_cache_answers(fake_hub, hub, tmp_path):
    directory = hub.fetch("org/model", SECOND)
    offline = Hub(endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "cache")
    assert offline.fetch("org/model", SECOND) == directory
    assert offline.metadata("org/model").weights.layers == 4


def test_offline_by_choice(tmp_path):
    script = (
        "from pathlib import Path; from node.model.hub import Hub\n"
        f"try: Hub(endpoint='http://127.0.0.1:9', cache_dir=Path({str(tmp_path)!r})).metadata('org/model')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("HubUnavailable org/model is not on this node, and HF_HUB_OFFLINE")


def test_disk_full_before_and_during(fake_hub, hub):
    metadata = hub.metadata("org/model")
    huge = Weights(metadata.weights.tensors, dict.fromkeys(metadata.weights.sizes, 10**18))
    (metadata.directory / DESCRIPTION).write_bytes(huge.to_json())
    with pytest.raises(NoCapacity, match=r"needs 888\.2 PB more on disk"):
        hub.fetch("org/model", SECOND)
    assert fake_hub.fetched() == []
    error = translated(OSError(errno.ENOSPC, "No space left on device"), "org/model")
    assert isinstance(error, NoCapacity)
    assert type(translated(PermissionError(errno.EACCES, "denied"), "org/model")) is PippinError


def test_the_hub_says_what_it_has_of_an_id(fake_hub, hub):
    assert hub.about("org/model") == HubModel("org/model", 400, 7)
    for other in ("org/other", "../../etc", "a/b/c"):
        with pytest.raises(ModelNotFound):
            hub.about(other)
    assert not [line for line in fake_hub.log if "etc" in line]
    fake_hub.status = 503
    with pytest.raises(HubUnavailable):
        hub.about("org/model")


def test_models_are_found_by_a_part_of_their_names(fake_hub, hub):
    assert hub.search("MOD") == [HubModel("org/model", 400, 7)]
    assert hub.search("none") == []
    for fake_hub.found in (["org/model"], [{}], {"error": "none"}, 7, [{"id": "m", "downloads": math.inf}]):
        with pytest.raises(HubUnavailable, match="cannot be searched"):
            hub.search("model")
    fake_hub.status = 503
    with pytest.raises(HubUnavailable, match="answers 503 to a search"):
        hub.search("model")
