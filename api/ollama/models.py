"""What Ollama's API tells of models and of itself: /api/tags, /api/ps, /api/show, /api/version, and at `/`."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api.chat.env import Env
from api.chat.prompt import thinks
from api.http.json_object import Json
from api.ollama.answer import timestamp
from api.ollama.keeping import FOREVER_S
from api.ollama.schema import DEFAULTS, NAMES, ModelRequest
from node.core.models import ModelDescription, ModelEntry

VERSION = "0.14.2"
"""The release of Ollama whose API this is. Clients compare it with the release that they need; Pippin's own version would
look like that of a server from before tools, thoughts and formats. GET /version tells Pippin's.
"""
NEVER = "2300-01-01T00:00:00.000000Z"
"""When a model is unloaded that no request has said a time for. Ollama's clients call the distant future "Forever"."""
FACTS = {
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "feed_forward_length": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
}
"""Names in `model_info`, without the architecture, and in a config.json."""


def greeting(page: Handler, port: int | None) -> Handler:
    """A handler of `/` that answers Ollama's clients, and whoever is no browser at the Ollama port, as Ollama does.

    `page`: the handler for all others. `port`: None if there is no Ollama port.
    """

    async def greet(request: web.Request) -> web.StreamResponse:
        own = request.get_extra_info("sockname")
        is_theirs = request.headers.get(hdrs.USER_AGENT, "").startswith("ollama") or (
            own is not None and own[1] == port
        )
        if is_theirs and "text/html" not in request.headers.get(hdrs.ACCEPT, ""):
            return web.Response(text="Ollama is running")
        return await page(request)

    return greet


async def version(_request: web.Request) -> web.Response:
    return web.json_response({"version": VERSION})


async def tags(env: Env, _request: web.Request) -> web.Response:
    models = env.gateway.models
    told = [await models.told(each) for each in models.entries()]
    return web.json_response({"models": [_entry(each) | {"modified_at": timestamp(each.created)} for each in told]})


async def ps(env: Env, _request: web.Request) -> web.Response:
    """The models that are ready, by all of their names."""
    models, placed = env.gateway.models, env.gateway.monitor.status().get("models", [])
    loaded = {each["id"]: each for each in placed if each["state"] == "ready"}
    running = []
    for each in models.entries():
        if each.model in loaded:
            model, status = await models.told(each), loaded[each.model]
            own = {"size_vram": model.bytes, "expires_at": _expires_at(status), "context_length": status["context"]}
            running.append(_entry(model) | own)
    return web.json_response({"models": running})


def _expires_at(model: Json) -> str:
    """When a model of the status is unloaded if no request comes."""
    keep_s, is_busy = model["keep_s"], any(model["requests"].values())
    if keep_s is None or keep_s >= FOREVER_S:
        return NEVER
    return timestamp((time.time() if is_busy else model["used_at"]) + keep_s)


async def show(env: Env, request: web.Request) -> web.Response:
    body = await env.read(request, ModelRequest)
    model = await env.gateway.models.describe(body.wanted)
    sampling = {NAMES.get(name, name): value for name, value in model.sampling.items()}
    parameters = {"num_ctx": model.entry.context, **DEFAULTS, **sampling}
    return web.json_response(
        {
            "license": model.license,
            "modelfile": _modelfile(model, parameters),
            "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
            # Programs look for the place of a suffix, as Ollama's templates of models that fill in have it.
            "template": model.template + ("{# .Suffix #}" if model.fills_in else ""),
            "details": _details(model.entry),
            "model_info": _info(model),
            "capabilities": _capabilities(model),
            "modified_at": timestamp(model.entry.created),
        }
    )


def digest(model: str, revision: str = "") -> str:
    """A hash that changes with the model's files, and that its aliases share. No file has it: a model has several."""
    return hashlib.sha256((revision or model).encode()).hexdigest()


def _entry(model: ModelEntry) -> Json:
    """A model in a list. Its name has a tag, as Ollama's have; clients rely on that. An alias may have one of its own."""
    name = model.id if ":" in model.id else f"{model.id}:latest"
    return {
        "name": name,
        "model": name,
        "size": model.bytes,
        "digest": digest(model.model, model.revision),
        "details": _details(model),
    }


def _modelfile(model: ModelDescription, parameters: Mapping[str, Any]) -> str:
    """The model as Ollama's recipe for one, which some programs read instead of the fields."""
    lines = [
        f"FROM {model.entry.model}",
        f'TEMPLATE """{model.template}"""',
        *(f"PARAMETER {name} {value}" for name, value in parameters.items()),
        *([f'LICENSE """{model.license}"""'] if model.license else []),
    ]
    return "\n".join(lines) + "\n"


def _details(model: ModelEntry) -> Json:
    """`details` of a model; what is not known is empty."""
    config = model.config
    family = str(config.get("model_type", ""))
    quantization = config.get("quantization")
    bits = quantization.get("bits") if isinstance(quantization, dict) else None
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "")
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _short_number(model.parameters) if model.parameters else "",
        "quantization_level": f"{bits}-bit" if isinstance(bits, int) else dtype,
    }


def _info(model: ModelDescription) -> Json:
    """`model_info`: facts of the config.json by Ollama's names, which begin with the architecture."""
    config, text = model.entry.config, model.entry.config.get("text_config")
    parts = [config, *([text] if isinstance(text, dict) else [])]
    kind = config["model_type"]
    info: Json = {
        "general.architecture": kind,
        "general.basename": model.entry.id.rpartition("/")[2],
        f"{kind}.context_length": model.entry.context,
    }
    if model.entry.parameters:
        info["general.parameter_count"] = model.entry.parameters
    for name, keys in FACTS.items():
        numbers = [part[key] for part in parts for key in keys if type(part.get(key)) is int]
        if numbers:
            info[f"{kind}.{name}"] = numbers[0]
    return info


def _short_number(number: int) -> str:
    """A number of parameters as Ollama writes it: `8.2B`, `494.03M`."""
    if number >= 10**9:
        return f"{number / 10**9:.1f}B"
    return f"{number / 10**6:.2f}M" if number >= 10**6 else f"{number / 10**3:.2f}K"


def _capabilities(model: ModelDescription) -> list[str]:
    found = {
        "completion": True,
        "insert": model.fills_in,
        "vision": model.entry.takes_pictures,
        "tools": "tools" in model.template,
        "thinking": thinks(model.template),
        "embedding": model.embeds,
    }
    return [name for name, has in found.items() if has]
