"""The prompt of a request as tokens, and the choices that answer a chat."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from aiohttp import web

from api.chat.constraint import make_grammar, make_optional_grammar, make_reader
from api.chat.env import Env, open_model
from api.chat.generation import Choice, Prepared, check_tokens
from api.chat.message import NUMBER
from api.chat.request import ChatRequest
from api.chat.shortening import PARTS, Chat, fitting, prompt_room, shortenings
from api.http.callers import CLIENT
from api.http.errors import Unsupported
from api.http.limits import MAX_PIXEL_BYTES
from api.http.stream import StreamFormat
from node.core.errors import BadRequest
from node.core.pictures import Picture
from node.text.grammar import split_mark
from node.text.sandboxed_encoder import OpenModel
from node.text.thoughts import thinking_budget

log = logging.getLogger(__name__)

THINKING = ("<think>", "</think>", "enable_thinking", "reasoning_effort")
"""Texts in the chat templates of models that think."""


_SWITCH = re.compile(r"\benable_thinking\b|\b(?:if|not|and|or|set) thinking\b")
"""A variable of a template; "thinking" may be a message's, too."""


def thinks(template: str) -> bool:
    return any(text in template for text in THINKING)


def has_thinking_switch(template: str) -> bool:
    """Whether a request can say that the model is to think, or is not to; some think always."""
    return _SWITCH.search(template) is not None


async def prepare(
    env: Env,
    request: web.Request,
    body: ChatRequest,
    answer_id: str,
    form: StreamFormat | None = None,
    before: Sequence[int] = (),
) -> tuple[Prepared, list[Choice]]:
    """Prepare the choices of a chat request. `form`: of its stream; None for OpenAI's. `before`: tokens that the chat follows,
    which `/api/generate` calls its context.
    """
    model, (chat, pictures), grammar = await encode_chat(env, request, body, form=form)
    check_tokens(model, before, param="context")
    prompt = _after(before, chat, model, body) if before else chat
    prepared = await Prepared.of(request, model, body, answer_id, grammar)
    use, most, thinking = body.tool_use, body.thinking_tokens, None
    # A grammar from the beginning leaves no room for thoughts.
    if most is not None and (not grammar or split_mark(grammar)[0]):
        thinking = thinking_budget(model.tokenizer, chat, most, tools=bool(use.for_template))
    reader = partial(make_reader, use, grammar, model.tokenizer, chat)
    return prepared, prepared.choices(prompt, reader=reader, pictures=pictures, thinking=thinking)


class Prompt(NamedTuple):
    tokens: Sequence[int]
    pictures: tuple[Picture, ...] = ()
    """Those whose places it has."""


async def encode_chat(
    env: Env, request: web.Request, body: ChatRequest, *, most: int = 0, form: StreamFormat | None = None
) -> tuple[OpenModel, Prompt, str]:
    """The model, a chat's prompt, and the grammar of its answer.

    Raises ContextExceeded for a prompt longer than both `most` and the model's context.
    """
    use = body.tool_use
    grammar = await make_grammar(env.gateway.grammars, use, body.format, request[CLIENT])
    model = await open_model(env, request, body, form)
    encoder, context = model.encoder, max(model.context, most)
    if body.adapter:
        prompt = Prompt(await encoder.encode_pieces(list(body.adapter.pieces(body.messages)), context=context))
    else:
        # A grammar leaves no room for thoughts.
        kwargs = {"enable_thinking": False, **body.template_kwargs} if grammar else body.template_kwargs
        pictures = await _decode(env, request, model, body)

        async def encode(messages: Chat) -> Sequence[int]:
            rendered = await encoder.encode_chat(messages, use.for_template, kwargs, context=context)
            if not pictures:
                return rendered
            assert model.tokenizer.pictures
            assert model.pictures
            lay_out = model.tokenizer.pictures.lay_out
            return await encoder.work(lay_out, rendered, _shown(messages, pictures), model.pictures)

        kept, tokens = await _encode_within(body, context, encode)
        if grammar and (opening := model.tokenizer.dialect.opening):
            tokens = [*tokens, *await encoder.encode(opening, context=context, param="messages")]
        prompt = Prompt(tokens, tuple(_shown(kept, pictures)))
    if not grammar:
        grammar = await make_optional_grammar(env.gateway.grammars, use, model.tokenizer, request[CLIENT])
    elif use.tools:  # again, as the model is known now
        calls = model.tokenizer.call_form
        grammar = await make_grammar(env.gateway.grammars, use, body.format, request[CLIENT], calls)
    if not prompt.tokens:
        raise BadRequest("The model's chat template renders these messages as an empty prompt.", param="messages")
    return model, prompt, grammar


async def _decode(env: Env, request: web.Request, model: OpenModel, body: ChatRequest) -> list[Picture]:
    """The pictures of a chat, as its model takes them. Raises Unsupported for a model that takes none, and what Pictures.decode
    raises.
    """
    if not body.pictures:
        return []
    form = model.pictures
    if form is None or model.tokenizer.pictures is None:
        others = ", ".join(await env.gateway.models.ready_for_pictures())
        hint = f"These loaded models do: {others}." if others else "Leave them out, or describe them in words."
        raise Unsupported(f"{model.id} takes no pictures, only text.", hint=hint, param="messages")
    decode = partial(env.gateway.pictures.decode, form=form, param="messages", client=request[CLIENT])
    pictures, size = list[Picture](), 0
    for file in body.pictures:
        pictures.append(picture := await decode(file))
        env.bodies.hold(request, len(picture.pixels))  # a small file may have many
        if (size := size + len(picture.pixels)) > MAX_PIXEL_BYTES:
            what = f"The pictures have {size:,} bytes or more in the sizes that {model.id} takes; {MAX_PIXEL_BYTES:,} are the most."
            raise BadRequest(what, hint="Send fewer, or smaller ones.", param="messages")
    return pictures


def _shown(messages: Chat, pictures: Sequence[Picture]) -> list[Picture]:
    """Those of a request's pictures that these messages for a template have."""
    contents = (each["content"] for each in messages if isinstance(each["content"], list))
    return [pictures[part[NUMBER]] for content in contents for part in content if NUMBER in part]


def _after(before: Sequence[int], prompt: Sequence[int], model: OpenModel, body: ChatRequest) -> Sequence[int]:
    """A prompt with tokens before it, and a single BOS. If the chat may be truncated, as many of them as leave room for an answer."""
    start = [token for token in prompt[:1] if token == model.tokenizer.bos]
    prompt, before = prompt[len(start) :], before[len(start) if before[:1] == start else 0 :]
    room = prompt_room(model.context, body.answer_tokens) - len(start) - len(prompt)
    if body.truncation == "auto" and len(before) > room:
        said = f"{max(room, 0)} of {len(before)} tokens before it are kept"
        log.info("a chat with %s is too long for %d tokens: the last %s", body.model, model.context, said)
        before = before[len(before) - max(room, 0) :]
    return [*start, *before, *prompt]


async def _encode_within(
    body: ChatRequest, context: int, encode: Callable[[Chat], Awaitable[Sequence[int]]]
) -> tuple[Chat, Sequence[int]]:
    """The messages of a chat and its tokens; if it may be truncated, of as much of it as leaves room for an answer."""
    messages = body.messages_for_template
    if body.truncation == "disabled":
        return messages, await encode(messages)
    candidates = shortenings([each["role"] for each in messages])
    most = prompt_room(context, body.answer_tokens)
    kept, prompt = await fitting(candidates, lambda each: encode(each.of(messages)), most)
    if kept != candidates[0]:
        said = f"{len(messages) - len(kept.of(messages))} of {len(messages)} messages"
        said += f", and {kept.parts}/{PARTS} of the user's last text" if kept.parts else ""
        log.info("a chat with %s is too long for %d tokens; its oldest are left out: %s", body.model, context, said)
    return kept.of(messages), prompt


async def encode_middle(model: OpenModel, prefix: str | list[int], suffix: str) -> Sequence[int]:
    """Tokens of the prompt for the text between two others. Raises Unsupported for a model that can't be asked for it."""
    if model.tokenizer.fim is None:
        why = "its tokenizer has no marks for the text in the middle"
        raise Unsupported(f"'suffix' is not supported by {model.id}: {why}.", param="suffix")
    if isinstance(prefix, list):
        raise Unsupported("'suffix' is not supported with a prompt of token ids, only with a text.", param="suffix")
    return await model.encoder.encode_fim(prefix, suffix, context=model.context, param="prompt")


async def encode_text(model: OpenModel, prompt: str | list[int], *, param: str, bos: bool = True) -> Sequence[int]:
    """Tokenize a text that is not a chat. `param`: the request's parameter that holds it. Raises BadRequest."""
    if isinstance(prompt, list):
        check_tokens(model, prompt, param=param)
        return prompt
    tokens = await model.encoder.encode(prompt, context=model.context, param=param, bos=bos)
    if tokens:
        return tokens
    start = model.tokenizer.empty_text_token
    if start is None:
        raise BadRequest("The text is empty, and the model has no token that begins a text.", param=param)
    return [start]
