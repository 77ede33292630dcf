import re

import pytest

from node.model.short_names import SHORT_NAMES, canonical


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.2-1b",
        "Llama-3.2-1B",
        "llama3.2:1b",
        "llama-3.2-1b-instruct",
        "llama3.2:1b-instruct-4bit",
        " Llama-3.2-1B-Instruct-4bit ",
        "mlx-community/llama-3.2-1b-instruct-4bit",
    ],
)
def test_ways_of_writing_one_name(name):
    assert canonical(name) == "mlx-community/Llama-3.2-1B-Instruct-4bit"


@pytest.mark.parametrize("name", ["qwen3", "qwen3:latest", "Qwen3:8B", "qwen3_8b"])
def test_a_family_means_its_usual_size(name):
    assert canonical(name) == "mlx-community/Qwen3-8B-4bit"


@pytest.mark.parametrize("name", ["pippin-demo", "someone/Llama-3.2-1B-Instruct-4bit", "llama-3.2-1b-8bit", "", "../x"])
def test_other_names_stay(name):
    assert canonical(name) == name


def test_the_table_is_sane():
    keys = [re.sub(r"[-_:\s]", "", short).lower() for short in SHORT_NAMES]
    assert len(set(keys)) == len(keys)
    for short, model in SHORT_NAMES.items():
        assert short == short.lower()
        assert re.fullmatch(r"mlx-community/[A-Za-z0-9][\w.-]+", model)
        assert canonical(short) == model
        assert canonical(model) == model
        assert canonical(model.partition("/")[2]) == model
