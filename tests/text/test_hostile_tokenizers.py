"""Tokenizers that name files or code: nothing outside of the model's folder is opened, and nothing of it is run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.core.errors import ModelBroken
from node.text.same_tokens import difference
from node.text.tokenizer_files import copy
from node.text.tokenizer_settings import clean
from tests.text.hostile_folders import SECRET, write
from tests.text.test_constraint import DEMO

ROOT = Path(__file__).parents[2]
ADDED = {"content": "<x>", "lstrip": False, "normalized": False, "rstrip": True, "single_word": False, "special": True}


def found(folder, *options):
    command = [sys.executable, "-m", "tests.text.hostile_folders", str(folder), *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout.splitlines()[-1])


def test_no_class_opens_the_path_of_an_argument_and_no_vocabulary_is_a_path(tmp_path):
    read = found(tmp_path)
    assert read["opened"] == read["told"] == []
    assert not read["noticed"]
    assert read["count"] > 1000
    assert read["read"] > 40
    assert read["classes"] > 40


def test_the_watch_sees_what_transformers_opens_by_itself(tmp_path):
    """What the test above could not miss."""
    read = found(tmp_path, "RAW")
    assert [f"open {tmp_path / 'elsewhere' / 'secret'}"] == read["opened"]
    assert read["noticed"] == (sys.platform == "linux")
    assert "vocab" in str(read["told"])


# --- what stays -------------------------------------------------------------------------------------------------------


@pytest.fixture
def left(tmp_path):
    """Clean a copy of a folder with these settings; returns what is left of each file."""

    def left(**files):
        model, folder = tmp_path / "model", tmp_path / "copy"
        model.mkdir()
        (model / "vocab.txt").write_text("a")
        for name, content in files.items():
            (model / f"{name}.json").write_text(json.dumps(content))
        copy(model, folder)
        clean(folder)
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}

    return left


def test_settings_that_are_data_stay(left):
    settings = {
        "bos_token": "<s>",
        "eos_token": ADDED | {"__type": "AddedToken"},
        "unk_token": None,
        "image_token": "<i>",
        "added_tokens_decoder": {"7": ADDED},
        "additional_special_tokens": ["<x>", ADDED],
        "legacy": False,
        "add_bos_token": True,
        "model_max_length": 1e30,
        "padding_side": "left",
        "errors": "replace",
        "chat_template": "{{ bos_token }}",
        "tokenizer_class": "LlamaTokenizer",
        "chat_template_type": "deepseek_v32",
    }
    special = {"extra_special_tokens": {"image_token": "<i>"}, "pad_token": ADDED}
    model = {
        "model_type": "llama",
        "transformers_version": "4.45.0.dev0",
        "_name_or_path": "deepseek-ai/deepseek-coder",
    }
    files = {"tokenizer_config": settings, "special_tokens_map": special, "config": model, "added_tokens": {"<x>": 7}}
    assert left(**files) == {**files, "generation_config": {"eos_token_id": []}}


def test_a_tokenizer_may_have_very_many_added_tokens(left):
    """As speech models do."""
    added = {str(128_256 + number): ADDED | {"content": f"<custom_token_{number}>"} for number in range(65_536)}
    assert left(tokenizer_config={"added_tokens_decoder": added})["tokenizer_config"]["added_tokens_decoder"] == added


def test_everything_else_goes(left):
    path = "/etc/passwd"
    names = ("vocab", "vocab_file", "merges", "tokenizer_file", "init_inputs", "name_or_path", "auto_map", "a_new_key")
    hostile = {**dict.fromkeys(names, path), "sp_model_kwargs": {"model_file": path}, "trust_remote_code": True}
    added = {**ADDED, "vocab_file": path}
    files = left(
        tokenizer_config=hostile | {"eos_token": added, "extra_special_tokens": {"vocab_file": path}},
        special_tokens_map=hostile | {"legacy": True},
        config=hostile
        | {"model_file": "evil.py", "model_type": "llama", "_name_or_path": "../../x", "eos_token_id": 3},
        generation_config=hostile | {"eos_token_id": [4]},
    )
    assert files == {
        "tokenizer_config": {"eos_token": ADDED, "extra_special_tokens": {}},
        "special_tokens_map": {},
        "config": {"model_type": "llama", "_name_or_path": ""},
        "generation_config": {"eos_token_id": [3, 4]},
    }


@pytest.mark.parametrize("key", ["model_name", "_name_or_path"])
@pytest.mark.parametrize(
    ("name", "stays"), [("llama", True), ("org/x", True), ("My Model", False), ("../x", False), ("/etc/passwd", False)]
)
def test_a_name_that_is_only_compared_breaks_no_model(left, key, name, stays):
    assert left(config={key: name})["config"] == {key: name if stays else ""}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("eos_token", 3), ("eos_token", {"content": ["x"]}), ("added_tokens_decoder", {"1": 2}), ("legacy", "/x")),
        *(
            ("chat_template", 5),
            ("errors", "/x"),
            ("unk_id", True),
            ("tokenizer_class", "../x"),
            ("tool_parser_type", "a.b"),
        ),
        *(("additional_special_tokens", [0]), ("chat_template", [{"name": "x"}])),
    ],
)
def test_a_known_key_of_another_type_is_named(left, key, value):
    with pytest.raises(ModelBroken, match=f"'{key}' of tokenizer_config.json has a wrong value"):
        left(tokenizer_config={key: value})


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_vocabulary_of_its_own_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelBroken, match="has no tokenizer: there is none of tokenizer.json"):
        copy(tmp_path, tmp_path / "copy")


def test_links_lead_to_the_model_to_the_hubs_cache_or_to_a_file_of_the_same_name(tmp_path):
    folder, cached = tmp_path / "model", tmp_path / "models--org--name" / "blobs"
    folder.mkdir()
    cached.mkdir(parents=True)
    (cached / "abc").write_text("{}")
    (tmp_path / "vocab.json").write_text('{"a": 1}')
    (folder / "tokenizer.json").symlink_to("../models--org--name/blobs/abc")
    (folder / "vocab.json").symlink_to(tmp_path / "vocab.json")  # as the node links what several folders share
    (folder / "words").write_text("a")
    (folder / "vocab.txt").symlink_to("words")
    copy(folder, tmp_path / "copy")
    copied = {path.name: path.read_text() for path in (tmp_path / "copy").iterdir() if path.is_file()}
    assert copied == {"tokenizer.json": "{}", "vocab.json": '{"a": 1}', "vocab.txt": "a"}
    assert not any(path.is_symlink() for path in (tmp_path / "copy").iterdir())

    (tmp_path / "secret").write_text("{}")
    for name in ("vocab.txt", "special_tokens_map.json", "additional_chat_templates/x.jinja"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "secret")
        with pytest.raises(ModelBroken, match=f"{name} of model is a link to a file outside"):
            copy(folder, tmp_path / f"copy of {Path(name).name}")
        (folder / name).unlink()


def test_what_is_no_file_or_too_large_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    os.mkfifo(tmp_path / "tokenizer_config.json")
    with pytest.raises(ModelBroken, match="is not a regular file"):
        copy(tmp_path, tmp_path / "one")
    (tmp_path / "tokenizer_config.json").unlink()
    with (tmp_path / "tokenizer_config.json").open("wb") as file:
        file.truncate(33 * 2**20)
    with pytest.raises(ModelBroken, match=r"has 34,603,008 bytes; 33,554,432 are the most"):
        copy(tmp_path, tmp_path / "two")
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").symlink_to("tokenizer_config.json")
    with pytest.raises(ModelBroken, match="loop"):
        copy(tmp_path, tmp_path / "three")


async def test_two_tokenizers_are_compared_within_the_same_walls(tmp_path, sandbox_server):
    (tmp_path / "secret").write_text(f"{SECRET}\nprivate\n")
    (tmp_path / "hostile").mkdir()
    settings = {"tokenizer_class": "BertTokenizer", "vocab_file": str(tmp_path / "secret"), "unk_token": "[UNK]"}
    write(tmp_path / "hostile", b"", None, settings)
    (tmp_path / "hostile" / "vocab.json").write_text('{"[UNK]": 0, "a": 1}')
    told = await difference(sandbox_server, DEMO, tmp_path / "hostile")
    assert told
    assert "private" not in told
    assert await difference(sandbox_server, DEMO, DEMO) == ""
