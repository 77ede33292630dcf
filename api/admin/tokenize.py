"""POST /tokenize and /detokenize, as vLLM has them: a prompt's tokens and their number, and the text of tokens.

Clients use them to fit a conversation into the context, so a prompt longer than the context is counted, too, up to
MAX_COUNTED tokens.
"""

import json
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from api.chat.env import Env
from api.chat.generation import check_tokens
from api.chat.message import StrictModel
from api.chat.prompt import encode_chat
from api.chat.request import ChatRequest
from api.chat.schema import ModelName, TokenList, parse
from api.http.callers import CLIENT
from api.http.limits import MAX_COUNTED
from node.text.sandboxed_encoder import OpenModel

JSON = "application/json"
PIECE = 2**16


class TokenizeRequest(StrictModel):
    model: ModelName
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class ChatTokenizeRequest(ChatRequest):
    """A chat whose prompt is to be counted: all parameters of a chat are allowed, but most change nothing."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False

    @property
    def template_kwargs(self) -> dict[str, Any]:
        # The encoder continues a last message of the assistant instead of beginning an answer.
        return {
            **super().template_kwargs,
            "add_generation_prompt": self.add_generation_prompt or self.continue_final_message,
        }


class DetokenizeRequest(StrictModel):
    model: ModelName
    tokens: TokenList


async def tokenize(env: Env, request: web.Request) -> web.Response:
    body = await env.bodies.read(request, _parse)
    if isinstance(body, ChatTokenizeRequest):
        model, (prompt, _), _ = await encode_chat(env, request, body, most=MAX_COUNTED)
        marks, form = model.tokenizer.pictures, model.pictures
        tokens = [marks.place if form and marks and each >= form.vocabulary else each for each in prompt]
    else:
        model = await env.gateway.open_models.open(body.model, request[CLIENT])
        most = max(model.context, MAX_COUNTED)
        tokens = await model.encoder.encode(body.prompt, context=most, param="prompt", bos=body.add_special_tokens)
    data = await model.encoder.work(_counted, model, tokens, body.return_token_strs)
    return web.Response(body=data, content_type=JSON)


async def detokenize(env: Env, request: web.Request) -> web.Response:
    body = await env.read(request, DetokenizeRequest)
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    data = await model.encoder.work(_spelled, model, body.tokens)
    return web.Response(body=data, content_type=JSON)


def _parse(body: dict[str, Any]) -> TokenizeRequest | ChatTokenizeRequest:
    if body.get("messages") is None:
        return parse(TokenizeRequest, body)
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    return parse(ChatTokenizeRequest, plain)


def _counted(model: OpenModel, tokens: Sequence[int], named: bool) -> bytes:
    names = _written(model.tokenizer.names(tokens)) if named else "null"
    counts = f'"count": {len(tokens)}, "max_model_len": {model.context}'
    return f'{{{counts}, "tokens": {_written(tokens)}, "token_strs": {names}}}'.encode()


def _written(values: Sequence[int | str]) -> str:
    """JSON of a list, made in pieces: `json.dumps` holds the GIL, and there may be a million."""
    pieces = (json.dumps(values[start : start + PIECE])[1:-1] for start in range(0, len(values), PIECE))
    return f"[{', '.join(pieces)}]"


def _spelled(model: OpenModel, tokens: Sequence[int]) -> bytes:
    check_tokens(model, tokens, param="tokens")
    return json.dumps({"prompt": model.tokenizer.spell(tokens)}).encode()
