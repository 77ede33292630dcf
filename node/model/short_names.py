"""Short names of models, and the hub ids that they stand for."""

import re

SHORT_NAMES = {
    # Llama
    "llama-3.2-1b": "mlx-community/Llama-3.2-1B-Instruct-4bit",
    "llama-3.2-3b": "mlx-community/Llama-3.2-3B-Instruct-4bit",
    "llama-3.2": "mlx-community/Llama-3.2-3B-Instruct-4bit",
    "llama-3.1-8b": "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
    "llama-3.1-70b": "mlx-community/Meta-Llama-3.1-70B-Instruct-4bit",
    "llama-3.1": "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
    "llama-3": "mlx-community/Meta-Llama-3-8B-Instruct-4bit",
    "llama-3-8b": "mlx-community/Meta-Llama-3-8B-Instruct-4bit",
    "llama-3.3-70b": "mlx-community/Llama-3.3-70B-Instruct-4bit",
    "llama-3.3": "mlx-community/Llama-3.3-70B-Instruct-4bit",
    # Qwen
    "qwen3-0.6b": "mlx-community/Qwen3-0.6B-4bit",
    "qwen3-1.7b": "mlx-community/Qwen3-1.7B-4bit",
    "qwen3-4b": "mlx-community/Qwen3-4B-4bit",
    "qwen3-8b": "mlx-community/Qwen3-8B-4bit",
    "qwen3-14b": "mlx-community/Qwen3-14B-4bit",
    "qwen3-32b": "mlx-community/Qwen3-32B-4bit",
    "qwen3-30b-a3b": "mlx-community/Qwen3-30B-A3B-4bit",
    "qwen3-30b": "mlx-community/Qwen3-30B-A3B-4bit",
    "qwen3-30b-a3b-instruct-2507": "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit",
    "qwen3-coder-30b": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
    "qwen3-coder": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
    "qwen3-coder-next": "mlx-community/Qwen3-Coder-Next-4bit",
    "qwen3": "mlx-community/Qwen3-8B-4bit",
    "qwen2.5-0.5b": "mlx-community/Qwen2.5-0.5B-Instruct-4bit",
    "qwen2.5-1.5b": "mlx-community/Qwen2.5-1.5B-Instruct-4bit",
    "qwen2.5-3b": "mlx-community/Qwen2.5-3B-Instruct-4bit",
    "qwen2.5-7b": "mlx-community/Qwen2.5-7B-Instruct-4bit",
    "qwen2.5-14b": "mlx-community/Qwen2.5-14B-Instruct-4bit",
    "qwen2.5-32b": "mlx-community/Qwen2.5-32B-Instruct-4bit",
    "qwen2.5": "mlx-community/Qwen2.5-7B-Instruct-4bit",
    "qwen2.5-coder-1.5b": "mlx-community/Qwen2.5-Coder-1.5B-Instruct-4bit",
    "qwen2.5-coder-7b": "mlx-community/Qwen2.5-Coder-7B-Instruct-4bit",
    "qwen2.5-coder-14b": "mlx-community/Qwen2.5-Coder-14B-Instruct-4bit",
    "qwen2.5-coder-32b": "mlx-community/Qwen2.5-Coder-32B-Instruct-4bit",
    "qwq-32b": "mlx-community/QwQ-32B-4bit",
    "qwq": "mlx-community/QwQ-32B-4bit",
    # Gemma
    "gemma-2-2b": "mlx-community/gemma-2-2b-it-4bit",
    "gemma-2-9b": "mlx-community/gemma-2-9b-it-4bit",
    "gemma-3-270m": "mlx-community/gemma-3-270m-it-4bit",
    "gemma-3-1b": "mlx-community/gemma-3-1b-it-4bit",
    "gemma-3-4b": "mlx-community/gemma-3-4b-it-4bit",
    "gemma-3-12b": "mlx-community/gemma-3-12b-it-4bit",
    "gemma-3-27b": "mlx-community/gemma-3-27b-it-4bit",
    "gemma-3": "mlx-community/gemma-3-4b-it-4bit",
    "gemma-3n-e2b": "mlx-community/gemma-3n-E2B-it-lm-4bit",
    "gemma-3n-e4b": "mlx-community/gemma-3n-E4B-it-lm-4bit",
    # Mistral
    "mistral-7b": "mlx-community/Mistral-7B-Instruct-v0.3-4bit",
    "mistral": "mlx-community/Mistral-7B-Instruct-v0.3-4bit",
    "mistral-nemo-12b": "mlx-community/Mistral-Nemo-Instruct-2407-4bit",
    "mistral-nemo": "mlx-community/Mistral-Nemo-Instruct-2407-4bit",
    "mistral-small-24b": "mlx-community/Mistral-Small-3.2-24B-Instruct-2506-4bit",
    "mistral-small": "mlx-community/Mistral-Small-3.2-24B-Instruct-2506-4bit",
    # DeepSeek
    "deepseek-r1-1.5b": "mlx-community/DeepSeek-R1-Distill-Qwen-1.5B-4bit",
    "deepseek-r1-7b": "mlx-community/DeepSeek-R1-Distill-Qwen-7B-4bit",
    "deepseek-r1-8b": "mlx-community/DeepSeek-R1-Distill-Llama-8B-4bit",
    "deepseek-r1-14b": "mlx-community/DeepSeek-R1-Distill-Qwen-14B-4bit",
    "deepseek-r1-32b": "mlx-community/DeepSeek-R1-Distill-Qwen-32B-4bit",
    "deepseek-r1-70b": "mlx-community/DeepSeek-R1-Distill-Llama-70B-4bit",
    "deepseek-r1": "mlx-community/DeepSeek-R1-Distill-Llama-8B-4bit",
    "deepseek-r1-671b": "mlx-community/DeepSeek-R1-4bit",
    "deepseek-v3.1": "mlx-community/DeepSeek-V3.1-4bit",
    # Phi
    "phi-3.5-mini": "mlx-community/Phi-3.5-mini-instruct-4bit",
    "phi-4-mini": "mlx-community/Phi-4-mini-instruct-4bit",
    "phi-4": "mlx-community/phi-4-4bit",
    "phi-4-14b": "mlx-community/phi-4-4bit",
    # gpt-oss
    "gpt-oss-20b": "mlx-community/gpt-oss-20b-MXFP4-Q8",
    "gpt-oss-120b": "mlx-community/gpt-oss-120b-MXFP4-Q8",
    "gpt-oss": "mlx-community/gpt-oss-20b-MXFP4-Q8",
    # SmolLM
    "smollm-135m": "mlx-community/SmolLM-135M-Instruct-4bit",
    "smollm2-135m": "mlx-community/SmolLM2-135M-Instruct",
    "smollm2-360m": "mlx-community/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "mlx-community/SmolLM2-1.7B-Instruct",
    "smollm3-3b": "mlx-community/SmolLM3-3B-4bit",
    "smollm3": "mlx-community/SmolLM3-3B-4bit",
    # Others
    "glm-4-9b": "mlx-community/GLM-4-9B-0414-4bit",
    "glm-4.5-air": "mlx-community/GLM-4.5-Air-8bit",
    "glm-4.7-flash": "mlx-community/GLM-4.7-Flash-4bit",
    "granite-3.3-2b": "mlx-community/granite-3.3-2b-instruct-4bit",
    "granite-4.0-h-tiny": "mlx-community/granite-4.0-h-tiny-4bit",
    "lfm2-1.2b": "mlx-community/LFM2-1.2B-4bit",
    "olmo-2-7b": "mlx-community/OLMo-2-1124-7B-Instruct-4bit",
    "olmoe-1b-7b": "mlx-community/OLMoE-1B-7B-0125-Instruct-4bit",
    "kimi-k2": "mlx-community/Kimi-K2-Instruct-4bit",
}

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
