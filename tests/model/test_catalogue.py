import logging
import re
import shutil

import pytest

from node.core.errors import ModelBroken, ModelNotFetched, ModelNotFound, ModelUnsupported
from node.core.models import HeldModel, ModelVersion, Shard
from node.model.catalogue import Catalogue, lm_studio
from node.model.file_names import DESCRIPTION
from node.model.layouts import Layout

COMMIT = "c" * 40
SECOND = "model-00002-of-00003.safetensors"


@pytest.fixture
def places(tmp_path):
    for name in ("builtin", "mine", "data", "cache"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def catalogue(places):
    return Catalogue(places / "builtin", [places / "mine", places / "absent"], places / "data", places / "cache")


def ids(catalogue):
    return tuple(dict.fromkeys(held.id for held in catalogue.local()))


def snapshot(places, name, commit, *, main=True):
    folder = places / "cache" / name
    if main:
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
    return folder / "snapshots" / commit


def test_all_the_places(places, catalogue, make_model):
    make_model(places / "builtin" / "pippin-demo")
    make_model(places / "mine" / "My model")
    make_model(places / "mine" / "org" / "model")
    make_model(places / "data" / "fetched" / COMMIT / "org" / "fetched")
    make_model(snapshot(places, "models--hub--model", "c0ffee"))
    make_model(places / "mine" / ".hidden")
    make_model(places / "mine" / "a\u00a0blank")  # Option-Space on a Mac; peers would refuse such a name
    make_model(places / "mine" / "no-weights", {"config.json": b"{}"})
    (places / "mine" / "no-config").mkdir()
    (make_model(places / "mine" / "cut-short") / SECOND).unlink()
    catalogue.refresh()
    assert ids(catalogue) == ("pippin-demo", "My model", "org/model", "org/fetched", "hub/model")
    for model_id in ids(catalogue):
        folder = catalogue.whole(model_id)
        assert HeldModel(model_id, folder.revision) in catalogue.local()
        assert catalogue.directory_for(Shard(ModelVersion(model_id, folder.revision), 1, 2), ends=False) == folder.path
        assert catalogue.directory_for(Shard(ModelVersion(model_id, "another"), 1, 2), ends=False) is None
        assert catalogue.created(model_id) > 1_700_000_000
    assert catalogue.whole("cut-short") is None
    assert catalogue.created("absent") == 0
    assert catalogue.target("org/fetched", COMMIT) == catalogue.whole("org/fetched").path


def test_models_fetched_from_peers_do_not_slow_down_the_search_for_one(places, catalogue, make_model, monkeypatch):
    for number in range(20):
        make_model(places / "data" / "fetched" / f"{number:040}" / "org" / "model")
    read = []
    reading = catalogue._scanner.read
    monkeypatch.setattr(catalogue._scanner, "read", lambda *path: read.append(path) or reading(*path))
    assert catalogue.tokenizer_directory("org/model", f"{7:040}")
    assert sum("fetched" in path.parts for path, *_ in read) == 1


def test_what_was_found_last_is_told_until_the_next_search(places, catalogue, make_model):
    model = make_model(places / "mine" / "model")
    assert ids(catalogue) == ()
    catalogue.refresh()
    shutil.rmtree(model)
    assert ids(catalogue) == ("model",)
    catalogue.refresh()
    assert ids(catalogue) == ()


def test_a_part_serves_its_stage_only(places, catalogue, make_model):
    directory = make_model(catalogue.target("org/model", COMMIT))
    (directory / DESCRIPTION).write_bytes(Layout(directory).weights.to_json())
    (directory / "model.safetensors.index.json").unlink()
    (directory / SECOND).rename(directory / f"{SECOND}.part")
    catalogue.refresh()
    assert ids(catalogue) == ()
    assert catalogue.whole("org/model") is None
    assert catalogue.tokenizer_directory("org/model", COMMIT) == directory
    assert catalogue.directory_for(Shard(ModelVersion("org/model", COMMIT), 0, 1), ends=True) == directory
    assert catalogue.directory_for(Shard(ModelVersion("org/model", COMMIT), 3, 4), ends=False) == directory
    assert catalogue.directory_for(Shard(ModelVersion("org/model", COMMIT), 0, 2), ends=False) is None


def test_a_missing_file_of_a_tower_does_not_matter(places, catalogue, make_model, make_safetensors):
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": b'{"weight_map": {"lm_head.weight": "model-text.safetensors",'
        b' "vision_tower.layers.0.w": "model-vision.safetensors"}}',
        "model-text.safetensors": make_safetensors({"lm_head.weight": 3}),
    }
    directory = make_model(places / "mine" / "model", files)
    catalogue.refresh()
    assert ids(catalogue) == ("model",)
    assert Layout(directory).weights.ends_bytes == 3


def test_a_new_commit_without_weights_does_not_hide_the_old_one(places, catalogue, make_model):
    old = make_model(snapshot(places, "models--hub--model", "aaa"))
    make_model(snapshot(places, "models--hub--model", "bbb"), {"config.json": b"{}"})
    catalogue.refresh()
    assert ids(catalogue) == ("hub/model",)
    assert catalogue.whole("hub/model").path == old


def test_a_damaged_model_is_not_listed(places, catalogue, make_model):
    directory = make_model(places / "mine" / "model")
    (directory / "model.safetensors.index.json").write_text("{")
    catalogue.refresh()
    assert ids(catalogue) == ()


def test_find(places, catalogue, make_model):
    make_model(places / "mine" / "Llama-3.2-1B-Instruct-4bit")
    make_model(places / "mine" / "mlx-community" / "Qwen3-8B-4bit")
    make_model(places / "builtin" / "pippin-demo")
    catalogue.refresh()
    assert catalogue.find("pippin-demo") == "pippin-demo"
    assert catalogue.find("Pippin-Demo") == "pippin-demo"
    assert catalogue.find("Llama-3.2-1B-Instruct-4bit") == "Llama-3.2-1B-Instruct-4bit"
    assert catalogue.find("qwen3:8b") == "mlx-community/Qwen3-8B-4bit"
    assert catalogue.find("qwen3-8b-4bit") == "mlx-community/Qwen3-8B-4bit"
    assert catalogue.find("qwen3:4b") == "mlx-community/Qwen3-4B-4bit", "not here: to be fetched"
    assert catalogue.find("org/anything") == "org/anything"
    with pytest.raises(ModelNotFound, match="Did you mean pippin-demo") as caught:
        catalogue.find("pipin-demo")
    assert caught.value.param == "model"
    for typed, meant in (("Qwen3-8b-4bti", "mlx-community/Qwen3-8B-4bit"), ("lama-3.2-1b", "llama-3.2-1b")):
        with pytest.raises(ModelNotFound, match=f"Did you mean {re.escape(meant)}?"):
            catalogue.find(typed)
    with pytest.raises(ModelNotFound, match="Write its hub id"):
        catalogue.find("nothing-like-it-at-all")


def test_the_tag_of_ollamas_clients_is_no_part_of_a_name(places, catalogue, make_model):
    make_model(places / "mine" / "org" / "one")
    catalogue.refresh()
    for name in ("org/one:latest", "ORG/one:latest", " one:latest "):
        assert catalogue.match(name) == "org/one"
    assert catalogue.match("other:latest", ["other"]) == "other"
    assert catalogue.match("org/one:other") != "org/one"


def test_a_name_without_end_is_refused_before_anything_is_compared_with_it(catalogue):
    for name in ("a" * 1_000_000, "-it" * 300_000, "x/" + "y" * 1_000_000):
        with pytest.raises(ModelNotFound, match="512 are the most") as caught:
            catalogue.find(name)
        assert len(caught.value.message) < 200


def test_a_folder_that_is_no_model_is_told_why(places, catalogue, make_model):
    make_model(places / "mine" / "Qwen3-8B-GGUF", {"qwen3-8b-q4_k_m.gguf": b"GGUF"})
    make_model(places / "mine" / "org" / "old", {"config.json": b"{}", "pytorch_model.bin": b"PK"})
    (make_model(places / "mine" / "broken") / SECOND).unlink()
    with pytest.raises(ModelUnsupported, match="GGUF, the format of llama.cpp"):
        catalogue.find("Qwen3-8B-GGUF")
    with pytest.raises(ModelBroken, match=f"{SECOND} is missing"):
        catalogue.find("broken")
    assert "PyTorch" in str(catalogue.flaw("org/old"))
    assert catalogue.flaw("org/none") is None


@pytest.mark.parametrize(
    "model_id",
    [
        "../mine/model",
        "..",
        ".",
        "",
        "/",
        "/etc",
        "mine/../model",
        "a/b/c",
        "a\0b",
        "a\\b",
        ".x",
        "x/",
        "/x",
        "a\nb",
        "x" * 300,
    ],
)
def test_ids_that_lead_elsewhere(places, catalogue, make_model, model_id):
    make_model(places / "mine" / "model")
    for refuse in (catalogue.whole, catalogue.described, catalogue.find):
        with pytest.raises(ModelNotFound):
            refuse(model_id)
    for refuse in (catalogue.tokenizer_directory, catalogue.target):
        with pytest.raises(ModelNotFound):
            refuse(model_id, COMMIT)
    with pytest.raises(ModelNotFound):
        catalogue.directory_for(Shard(ModelVersion(model_id, COMMIT), 0, 1), ends=False)


@pytest.mark.parametrize("revision", ["..", "", "a/b", "/etc", ".x", "a\\b", "a\0b", "x" * 300])
def test_revisions_that_lead_elsewhere(catalogue, revision):
    with pytest.raises(ModelNotFound):
        catalogue.target("org/model", revision)


def test_a_directory_of_models_may_be_a_model_itself(places, make_model):
    make_model(places / "qwen3-8b")
    catalogue = Catalogue(places / "builtin", [places / "qwen3-8b"], places / "data", places / "cache")
    catalogue.refresh()
    assert ids(catalogue) == ("qwen3-8b",)
    folder = catalogue.whole("qwen3-8b")
    assert folder.path == places / "qwen3-8b"
    assert catalogue.directory_for(Shard(ModelVersion("qwen3-8b", folder.revision), 1, 2), ends=True) == folder.path
    assert catalogue.flaw("qwen3-8b") is None


def test_a_model_that_came_since_the_last_search_is_found(places, catalogue, make_model):
    catalogue.refresh()
    with pytest.raises(ModelNotFound):
        catalogue.find("one")
    make_model(places / "mine" / "one")
    with pytest.raises(ModelNotFound):
        catalogue.find("one")  # so soon after the last search for an unknown name
    make_model(places / "mine" / "org" / "two")
    catalogue._searched_again_at = float("-inf")
    assert catalogue.find("two") == "org/two"
    assert [held.id for held in catalogue.local()] == ["one", "org/two"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("org/model-GGUF:Q4_K_M", "Pippin reads safetensors"),
        ("./qwen3-8b", "Start a node with --model and this path"),
        ("/models/org/name", "Start a node with --model and this path"),
    ],
)
def test_a_name_of_something_else_is_told_what_to_write(name, hint, catalogue):
    with pytest.raises(ModelNotFound) as caught:
        catalogue.find(name)
    assert hint in caught.value.hint


def test_fetched_models_are_removed_and_no_others(places, catalogue, make_model, caplog):
    make_model(places / "mine" / "org" / "mine")
    make_model(places / "data" / "fetched" / COMMIT / "org" / "model")
    make_model(snapshot(places, "models--org--other", COMMIT))
    catalogue.refresh()
    assert catalogue.remove("org/model") > 10_000
    catalogue.refresh()
    assert ids(catalogue) == ("org/mine", "org/other")
    with pytest.raises(ModelNotFound) as caught, caplog.at_level(logging.INFO):
        catalogue.remove("org/mine")
    assert "named in that node's log" in caught.value.hint
    assert str(places) not in caught.value.hint
    assert str(places / "mine" / "org" / "mine") in caplog.text
    make_model(places / "data" / "fetched" / COMMIT / "org" / "model")
    for name in ("org", "org/none", "../mine/org", "none"):
        with pytest.raises(ModelNotFound):
            catalogue.remove(name)


def test_a_folder_of_the_hubs_cache_that_pippin_did_not_fetch_is_not_deleted_unasked(
    places, catalogue, make_model, monkeypatch
):
    monkeypatch.setenv("HOME", str(places))
    folder = make_model(snapshot(places, "models--org--other", COMMIT))
    catalogue.refresh()
    (size,) = {held.bytes for held in catalogue.local()}
    with pytest.raises(ModelNotFetched) as caught:
        catalogue.remove("org/other")
    assert "Pippin did not fetch all of org/other in ~/cache/models--org--other (" in caught.value.message
    assert "`cluster rm --yes org/other`" in caught.value.hint
    assert folder.is_dir()
    (folder / "model-of-the-same-bytes.safetensors").hardlink_to(folder / SECOND)
    catalogue.refresh()
    assert [held.bytes for held in catalogue.local()] == [size]
    kept = places / "kept"
    kept.hardlink_to(folder / "tokenizer.json")
    whole = sum(file.stat().st_size for file in folder.iterdir() if not file.name.startswith("model-of"))
    whole += len(COMMIT)  # refs/main
    assert catalogue.remove("org/other", not_fetched=True) == whole - kept.stat().st_size
    assert not folder.exists()


def test_the_models_of_lm_studio(tmp_path, make_model):
    """GGUF alone is named; beside whole weights it does no harm."""
    folders = lm_studio(tmp_path)
    make_model(folders[0] / "mlx-community" / "tiny")
    make_model(folders[1] / "org" / "both")
    (folders[1] / "org" / "both" / "both-Q4_K_M.gguf").touch()
    for place in ("lmstudio-community/tiny-GGUF/tiny-Q4.GGUF", "org/partial/x.gguf", "org/partial/config.json"):
        path = folders[0] / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    catalogue = Catalogue(tmp_path / "none", folders, tmp_path / "data", tmp_path / "cache")
    catalogue.refresh()
    assert {held.id for held in catalogue.local()} == {"mlx-community/tiny", "org/both"}
    assert list(catalogue.unusable()) == ["lmstudio-community/tiny-GGUF", "org/partial"]
    assert "GGUF, the format of llama.cpp" in catalogue.unusable()["org/partial"]
    (folders[0] / "lmstudio-community" / "tiny-GGUF" / "tiny-Q4.GGUF").unlink()
    catalogue.refresh()
    assert list(catalogue.unusable()) == ["org/partial"]
