"""POST /api/chat and /api/generate. Each request is converted to a chat request, or to a completion if it is raw."""

import json
import time
from collections.abc import Sequence
from functools import partial

from aiohttp import web

from api.chat.constraint import make_grammar
from api.chat.env import STREAM, Env, open_model
from api.chat.generation import Prepared, new_id, respond
from api.chat.prompt import encode_middle, encode_text, prepare, thinks
from api.chat.request import ChatRequest
from api.chat.response_format import ResponseFormat
from api.chat.schema import CompletionRequest, GenerationRequest, parse, renamed_params
from api.chat.shortening import beginnings, endings, fitting, prompt_room
from api.chat.tools import ToolUse
from api.http.callers import CLIENT
from api.http.errors import Unsupported
from api.http.json_object import Json
from api.http.stream import EventStream
from api.ollama.answer import Lines, OllamaOutput, Said
from api.ollama.keeping import CheckChange, keep
from api.ollama.messages import content_of, for_chat
from api.ollama.schema import SHARED, ChatBody, GenerateBody, Generation
from node.core.commands import LoadModel, UnloadModel
from node.core.errors import BadRequest, ModelNotFound
from node.core.models import Wish
from node.text.sandboxed_encoder import OpenModel

PARAMS = (
    *((f"^{name}$", f"options.{option}") for option, name in SHARED.items()),
    (r"^max_(completion_)?tokens$", "options.num_predict"),
    (r"^response_format(\.json_schema)?(\.schema)?", "format"),
    (r"^reasoning_effort$", "think"),
    (r"^(messages\[\d+\])\.reasoning_content$", r"\1.thinking"),
    (r"^(messages\[\d+\])\.content$", r"\1.images"),  # texts were checked before
)
"""Patterns of the parameter names of chat and completions, and the names of the same parameters here."""
OF_GENERATE = ((r"^messages\[\d+\]\.content$", "images"), *PARAMS, (r"^messages\b.*", "prompt"))


async def generate(env: Env, check_change: CheckChange, request: web.Request, *, chat: bool) -> web.StreamResponse:
    """`chat`: for /api/chat; else for /api/generate."""
    begun = time.monotonic_ns()
    body, asked = await env.bodies.read(request, _parse_chat if chat else _parse_generate)
    output = OllamaOutput(body.model, chat, body.stream, begun)
    form = Lines(partial(output.line, Said()))
    if asked is None:
        return await _load(env, check_change, request, body, output, form)
    answer_id = new_id("chat" if chat else "generate")
    with renamed_params(PARAMS if chat else OF_GENERATE):
        if isinstance(asked, ChatRequest):
            before = body.context if isinstance(body, GenerateBody) else ()
            output.tells_context = not (chat or asked.pictures)  # a context is of tokens
            prepared, choices = await prepare(env, request, asked, answer_id, form, before)
        else:
            json_format = ResponseFormat.model_validate(body.response_format).json_format
            grammar = await make_grammar(env.gateway.grammars, ToolUse(), json_format, request[CLIENT])
            model = await open_model(env, request, asked, form)
            prompt = await _encode_raw(model, body, asked)
            prepared = await Prepared.of(request, model, asked, answer_id, grammar)
            choices = prepared.choices(prompt)
    tokenizer = prepared.model.tokenizer
    if body.think and not (thinks(tokenizer.template) or "reasoning" in tokenizer.dialect.transitions):
        raise BadRequest(f"{json.dumps(body.model)} does not support thinking", param="think")  # Ollama's words
    output.opened, output.choice = time.monotonic_ns(), choices[0]
    output.tokenizer, output.top_logprobs = tokenizer, prepared.sampling.logprobs
    try:
        return await respond(env, request, choices, output)
    finally:
        await keep(env, check_change, request, body.model, body.keep_alive)


async def _encode_raw(model: OpenModel, body: Generation, asked: CompletionRequest) -> Sequence[int]:
    """The tokens of a prompt without a template. If it may be truncated, as much of it as leaves room for an answer: what is
    nearest to the answer.
    """
    (text,) = asked.prompt
    suffix = asked.suffix or ""

    async def encode(texts: tuple[str | list[int], str]) -> Sequence[int]:
        before, after = texts
        return await (encode_middle(model, before, after) if suffix else encode_text(model, before, param="prompt"))

    if not body.truncate or not isinstance(text, str):
        return await encode((text, suffix))
    candidates = list(zip(endings(text), beginnings(suffix), strict=True))
    return (await fitting(candidates, encode, prompt_room(model.context, asked.answer_tokens)))[1]


async def _load(
    env: Env, check_change: CheckChange, request: web.Request, body: Generation, output: OllamaOutput, form: Lines
) -> web.StreamResponse:
    """Load or unload a model, for a request without a prompt."""
    gateway, model, keep_s = env.gateway, body.model, body.keep_alive
    if keep_s is not None and keep_s <= 0:
        check_change(request)
    if keep_s == 0:
        try:
            await gateway.commands.run(UnloadModel(model))
        except ModelNotFound:  # it is not loaded, which is no error if there is such a model
            if gateway.models.known(model) is None:
                raise
        return web.json_response(output.ended("unload"))
    if keep_s is not None and keep_s < 0:
        await gateway.commands.run(LoadModel(model, Wish(named=True)))
    await open_model(env, request, GenerationRequest(model=model, stream=body.stream), form)
    if keep_s is not None and keep_s > 0:
        await keep(env, check_change, request, model, keep_s)
    events: EventStream | None = request.get(STREAM)
    if events is None or not events.response.prepared:
        return web.json_response(output.ended("load"))
    await events.send(output.ended("load"))
    return events.response


def _parse_chat(given: Json) -> tuple[ChatBody, ChatRequest | None]:
    """The request, and the equivalent chat request; None if it has no messages."""
    body = parse(ChatBody, given)
    if not body.messages:
        return body, None
    chat = body.for_chat(for_chat(body.messages))
    if body.tools:
        chat["tools"] = [{"type": "function", **tool} for tool in body.tools]
    return body, parse(ChatRequest, chat, PARAMS)


def _parse_generate(given: Json) -> tuple[GenerateBody, ChatRequest | CompletionRequest | None]:
    """The request, and the equivalent one to chat or to completions; None if it has no prompt."""
    body = parse(GenerateBody, given)
    if body.raw and (body.system or body.context):
        raise BadRequest("raw mode does not support template, system, or context", param="raw")
    suffix = "" if body.raw else body.suffix  # as in Ollama: a raw prompt has its suffix in it
    if suffix and body.context:
        raise Unsupported("'context' is not supported together with 'suffix'.", param="context")
    if body.images and (body.raw or suffix):
        raise Unsupported(
            f"'images' is not supported together with '{'raw' if body.raw else 'suffix'}'.", param="images"
        )
    if not (body.prompt or suffix or body.images):
        return body, None
    if body.raw or suffix:
        raw = {"model": body.model, "stream": body.stream, "prompt": body.prompt, "suffix": suffix}
        asked = parse(CompletionRequest, {**raw, **body.options.shared()}, OF_GENERATE)
        # After its validation, as completions have other limits for these.
        asked.max_tokens, asked.logprobs = body.options.max_tokens, body.wanted_logprobs
        return body, asked
    system = [{"role": "system", "content": body.system}] if body.system else []
    chat = body.for_chat([*system, {"role": "user", "content": content_of(body.prompt, body.images)}])
    return body, parse(ChatRequest, chat, OF_GENERATE)
