import re

import pytest

from node.model.short_names import SHORT_NAMES, canonical, not_for_mlx


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


@pytest.mark.parametrize(
    "name",
    [
        "hf.co/org/model",
        "huggingface.co/org/model/",
        "https://huggingface.co/org/model",
        "https://hf.co/org/model/tree/main",
        "https://huggingface.co/org/model/blob/main/config.json?download=true",
    ],
)
def test_the_address_of_a_page_on_the_hub_is_its_id(name):
    assert canonical(name) == "org/model"


def test_a_page_of_a_known_model_in_another_case():
    assert canonical("hf.co/MLX-community/qwen3-8b-4BIT") == "mlx-community/Qwen3-8B-4bit"
    assert canonical("hf.co/org") == "hf.co/org"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "Write mlx-community/Llama-3.2-1B-Instruct-4bit."),
        ("qwen3:32b-q4_K_M", "Write mlx-community/Qwen3-32B-4bit."),
        ("llama-3.1:8b-instruct-q4_0", "Write mlx-community/Meta-Llama-3.1-8B-Instruct-4bit."),
        ("someone/Unknown-gguf", "Write the id of a model in that format, like those of mlx-community."),
        ("model.gguf", "Write the id of a model in that format, like those of mlx-community."),
    ],
)
def test_names_of_llama_cpps_format_are_told_what_to_write(name, instead):
    assert not_for_mlx(name).endswith(instead)


@pytest.mark.parametrize("name", ["llama3.2:1b", "qwen3:latest", "mlx-community/model-bf16", "org/model-Q4", ""])
def test_other_names_are_for_mlx(name):
    assert not not_for_mlx(name)
