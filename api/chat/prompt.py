"""The prompt of a request as tokens, and the choices that answer a chat."""

from collections.abc import Sequence

from aiohttp import web

from api.chat.constraint import AnswerConstraint, make_grammar
from api.chat.env import Env, open_model
from api.chat.generation import Choice, Prepared, check_tokens, read_prediction
from api.chat.request import ChatRequest
from api.http.callers import CLIENT
from node.core.errors import BadRequest
from node.text.sandboxed_encoder import OpenModel


async def prepare(env: Env, request: web.Request, body: ChatRequest, answer_id: str) -> tuple[Prepared, list[Choice]]:
    """Prepare the choices of a chat request."""
    constraint = await _constraint(env, body, request[CLIENT])
    model = await open_model(env, request, body)
    prompt = await _encode(model, body, constraint, context=model.context)
    prepared = Prepared(
        id=answer_id,
        client=request[CLIENT],
        model=model,
        body=body,
        sampling=body.sampling(body.wanted_logprobs, model.sampling),
        max_tokens=body.answer_tokens,
        param="messages",
        prediction=await read_prediction(model, body, body.answer_tokens),
        grammar=constraint.grammar,
    )
    return prepared, prepared.choices(prompt, reader=lambda: constraint.reader(model.tokenizer, prompt))


async def encode_chat(env: Env, request: web.Request, body: ChatRequest, *, most: int) -> tuple[OpenModel, list[int]]:
    """The model, and the tokens of a chat's prompt. Raises ContextExceeded for more than `most` and the model's context."""
    constraint = await _constraint(env, body, request[CLIENT])
    model = await open_model(env, request, body)
    return model, await _encode(model, body, constraint, context=max(model.context, most))


async def _constraint(env: Env, body: ChatRequest, client: str) -> AnswerConstraint:
    use = body.tool_use
    return AnswerConstraint(use, await make_grammar(env.gateway.grammars, use, body.json_format, client))


async def _encode(model: OpenModel, body: ChatRequest, constraint: AnswerConstraint, *, context: int) -> list[int]:
    """Tokens of the prompt, at most `context`."""
    encoder = model.encoder
    if body.adapter:
        prompt = await encoder.encode_pieces(list(body.adapter.pieces(body.messages)), context=context)
    else:
        tools, kwargs = constraint.use.for_template, constraint.template_kwargs(body.template_kwargs)
        prompt = await encoder.encode_chat(body.messages_for_template, tools, kwargs, context=context)
        if constraint.grammar and (opening := model.tokenizer.dialect.opening):
            prompt = [*prompt, *await encoder.encode(opening, context=context, param="messages")]
    if not prompt:
        raise BadRequest("The model's chat template renders these messages as an empty prompt.", param="messages")
    return prompt


async def encode_text(model: OpenModel, prompt: str | list[int], *, param: str) -> Sequence[int]:
    """Tokenize a text that is not a chat. `param`: the request's parameter that holds it. Raises BadRequest."""
    if isinstance(prompt, list):
        check_tokens(model, prompt, param=param)
        return prompt
    tokens = await model.encoder.encode(prompt, context=model.context, param=param)
    if tokens:
        return tokens
    start = model.tokenizer.empty_text_token
    if start is None:
        raise BadRequest("The text is empty, and the model has no token that begins a text.", param=param)
    return [start]
