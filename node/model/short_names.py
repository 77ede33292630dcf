"""Short names of models, the hub ids that they stand for, and the configs of these models."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_MODELS = {
    # Llama
    "Llama-3.2-1B-Instruct-4bit": "llama-3.2-1b",
    "Llama-3.2-3B-Instruct-4bit": "llama-3.2-3b llama-3.2",
    "Meta-Llama-3.1-8B-Instruct-4bit": "llama-3.1-8b llama-3.1",
    "Meta-Llama-3.1-70B-Instruct-4bit": "llama-3.1-70b",
    "Meta-Llama-3-8B-Instruct-4bit": "llama-3 llama-3-8b",
    "Llama-3.3-70B-Instruct-4bit": "llama-3.3-70b llama-3.3",
    # Qwen
    "Qwen3-0.6B-4bit": "qwen3-0.6b",
    "Qwen3-1.7B-4bit": "qwen3-1.7b",
    "Qwen3-4B-4bit": "qwen3-4b",
    "Qwen3-8B-4bit": "qwen3-8b qwen3",
    "Qwen3-14B-4bit": "qwen3-14b",
    "Qwen3-32B-4bit": "qwen3-32b",
    "Qwen3-30B-A3B-4bit": "qwen3-30b-a3b qwen3-30b",
    "Qwen3-30B-A3B-Instruct-2507-4bit": "qwen3-30b-a3b-instruct-2507",
    "Qwen3-Coder-30B-A3B-Instruct-4bit": "qwen3-coder-30b qwen3-coder",
    "Qwen3-Coder-Next-4bit": "qwen3-coder-next",
    "Qwen2.5-0.5B-Instruct-4bit": "qwen2.5-0.5b",
    "Qwen2.5-1.5B-Instruct-4bit": "qwen2.5-1.5b",
    "Qwen2.5-3B-Instruct-4bit": "qwen2.5-3b",
    "Qwen2.5-7B-Instruct-4bit": "qwen2.5-7b qwen2.5",
    "Qwen2.5-14B-Instruct-4bit": "qwen2.5-14b",
    "Qwen2.5-32B-Instruct-4bit": "qwen2.5-32b",
    "Qwen2.5-Coder-1.5B-Instruct-4bit": "qwen2.5-coder-1.5b",
    "Qwen2.5-Coder-7B-Instruct-4bit": "qwen2.5-coder-7b",
    "Qwen2.5-Coder-14B-Instruct-4bit": "qwen2.5-coder-14b",
    "Qwen2.5-Coder-32B-Instruct-4bit": "qwen2.5-coder-32b",
    "QwQ-32B-4bit": "qwq-32b qwq",
    # Gemma
    "gemma-2-2b-it-4bit": "gemma-2-2b",
    "gemma-2-9b-it-4bit": "gemma-2-9b",
    "gemma-3-270m-it-4bit": "gemma-3-270m",
    "gemma-3-1b-it-4bit": "gemma-3-1b",
    "gemma-3-4b-it-4bit": "gemma-3-4b gemma-3",
    "gemma-3-12b-it-4bit": "gemma-3-12b",
    "gemma-3-27b-it-4bit": "gemma-3-27b",
    "gemma-3n-E2B-it-lm-4bit": "gemma-3n-e2b",
    "gemma-3n-E4B-it-lm-4bit": "gemma-3n-e4b",
    # Mistral
    "Mistral-7B-Instruct-v0.3-4bit": "mistral-7b mistral",
    "Mistral-Nemo-Instruct-2407-4bit": "mistral-nemo-12b mistral-nemo",
    "Mistral-Small-3.2-24B-Instruct-2506-4bit": "mistral-small-24b mistral-small",
    # DeepSeek
    "DeepSeek-R1-Distill-Qwen-1.5B-4bit": "deepseek-r1-1.5b",
    "DeepSeek-R1-Distill-Qwen-7B-4bit": "deepseek-r1-7b",
    "DeepSeek-R1-Distill-Llama-8B-4bit": "deepseek-r1-8b deepseek-r1",
    "DeepSeek-R1-Distill-Qwen-14B-4bit": "deepseek-r1-14b",
    "DeepSeek-R1-Distill-Qwen-32B-4bit": "deepseek-r1-32b",
    "DeepSeek-R1-Distill-Llama-70B-4bit": "deepseek-r1-70b",
    "DeepSeek-R1-4bit": "deepseek-r1-671b",
    "DeepSeek-V3.1-4bit": "deepseek-v3.1",
    # Phi
    "Phi-3.5-mini-instruct-4bit": "phi-3.5-mini",
    "Phi-4-mini-instruct-4bit": "phi-4-mini",
    "phi-4-4bit": "phi-4 phi-4-14b",
    # gpt-oss
    "gpt-oss-20b-MXFP4-Q8": "gpt-oss-20b gpt-oss",
    "gpt-oss-120b-MXFP4-Q8": "gpt-oss-120b",
    # SmolLM
    "SmolLM-135M-Instruct-4bit": "smollm-135m",
    "SmolLM2-135M-Instruct": "smollm2-135m",
    "SmolLM2-360M-Instruct": "smollm2-360m",
    "SmolLM2-1.7B-Instruct": "smollm2-1.7b",
    "SmolLM3-3B-4bit": "smollm3-3b smollm3",
    # Others
    "GLM-4-9B-0414-4bit": "glm-4-9b",
    "GLM-4.5-Air-8bit": "glm-4.5-air",
    "GLM-4.7-Flash-4bit": "glm-4.7-flash",
    "granite-3.3-2b-instruct-4bit": "granite-3.3-2b",
    "granite-4.0-h-tiny-4bit": "granite-4.0-h-tiny",
    "LFM2-1.2B-4bit": "lfm2-1.2b",
    "OLMo-2-1124-7B-Instruct-4bit": "olmo-2-7b",
    "OLMoE-1B-7B-0125-Instruct-4bit": "olmoe-1b-7b",
    "Kimi-K2-Instruct-4bit": "kimi-k2",
}
"""Models of mlx-community, and the short names of each."""

SHORT_NAMES = {short: f"mlx-community/{model}" for model, names in _MODELS.items() for short in names.split()}

_CONFIGS = Path(__file__).parent / "short_name_configs.json"
"""By model, what its config.json says as far as sizes depend on it: numbers that the models' authors published. `like`: another
model, with which it shares all else. `bytes`: of its weights, as `cluster models --fits` computes them from the rest.
"""
_ANY: Mapping[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "torch_dtype": "bfloat16"}
"""What each config.json says, too, and no size depends on; all of these models were published in 16 bits."""

_HUB = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_PAGE = re.compile(r"^([^/]+/[^/?#]+)(?:/(?:tree|blob|resolve|discussions)(?:/.*)?)?/?(?:[?#].*)?$")
_QUANTIZATION = re.compile(r"[-:](?:I?Q[0-9]\w*|F16|F32|BF16)$", re.IGNORECASE)
_SUFFIX = re.compile(r"[-_:](instruct|it|chat|4bit|latest)$", re.IGNORECASE)


def _key(name: str) -> str:
    """Normalize a name's case and separators: `llama3.2:1b` is the same as `llama-3.2-1b`."""
    return re.sub(r"[-_:\s]", "", name).lower()


_IDS = {_key(short): model for short, model in SHORT_NAMES.items()}
_IDS |= {_key(model.partition("/")[2]): model for model in SHORT_NAMES.values()}


def not_for_mlx(name: str) -> str:
    """What to write instead of the name of a model in llama.cpp's format; empty for other names."""
    plain = without_hub(name.strip())
    is_gguf = re.search(r"gguf", plain, re.IGNORECASE) is not None
    if not is_gguf and not (":" in plain and _QUANTIZATION.search(plain)):
        return ""
    family = re.sub(r"[-_.]?gguf$", "", _QUANTIZATION.sub("", plain).rpartition("/")[2], flags=re.IGNORECASE)
    known = canonical(family)
    instead = (
        f"Write {known}." if "/" in known else "Write the id of a model in that format, like those of mlx-community."
    )
    return f"It names a GGUF file or its quantization; Pippin reads safetensors, as MLX does. {instead}"


def untagged(name: str) -> str:
    """The name without `:latest`, the tag that Ollama's clients append to names that have none."""
    return name.strip().removesuffix(":latest")


def without_hub(name: str) -> str:
    """`org/name` of the address of a model's page on the hub; any other name unchanged."""
    path = _HUB.sub("", name)
    page = _PAGE.match(path) if path != name else None
    return page[1] if page else name


def canonical(name: str) -> str:
    """Hub id of a short name, in any case and with or without `-instruct` etc.; any other name is returned unchanged.

    The address of a model's page on the hub is its id. An `org/name` is only changed in case, and only if the table has it.
    """
    name = without_hub(name.strip())
    if "/" in name:
        found = _IDS.get(_key(name.partition("/")[2]))
        return found if found is not None and found.lower() == name.lower() else name
    short = name
    while True:
        if found := _IDS.get(_key(short)):
            return found
        shorter = _SUFFIX.sub("", short)
        if shorter == short:
            return name
        short = shorter


def known_configs() -> dict[str, dict[str, Any]]:
    """The config of each model that has a short name, by id: good for sizes, not for computing."""
    raw, known = _raw_configs(), dict[str, dict[str, Any]]()
    for model in _MODELS:
        own = raw[model]
        config = dict(_ANY) | raw.get(own.get("like", ""), {}) | own
        del config["bytes"]
        if "text_config" in config:
            config["text_config"] = dict(_ANY) | config["text_config"]
        if bits := re.search(r"-(\d)bit$", model):
            config["quantization"] = {"group_size": 64, "bits": int(bits[1])}
        known[f"mlx-community/{model}"] = config
    return known


@cache
def known_sizes() -> Mapping[str, int]:
    """Bytes of the weights of each model that has a short name, by id."""
    raw = _raw_configs()
    return {f"mlx-community/{model}": raw[model]["bytes"] for model in _MODELS}


def _raw_configs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(_CONFIGS.read_text("utf-8"))
    return found
