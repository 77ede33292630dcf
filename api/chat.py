"""POST /v1/chat/completions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from aiohttp import web

from api.answer import Delta
from api.callers import CLIENT
from api.chat_schema import ChatRequest
from api.constraint import AnswerConstraint, make_grammar
from api.env import Env, open_model
from api.generation import Choice, Job, read_prediction
from api.logprobs import chat_logprobs
from api.reader import CallDelta
from api.response import Collected, Reply, new_id
from api.schema import parse
from node.core.errors import BadRequest
from node.text.sandboxed_encoder import OpenModel
from node.text.tokenizer import Tokenizer


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body = await env.bodies.read(request, partial(parse, ChatRequest))
    job, choices = await prepare(env, request, body, new_id("chatcmpl"))
    shape = ChatShape(job.model.tokenizer, body.wanted_logprobs, legacy=body.tool_use.legacy)
    return await Reply(job, choices, shape).send(request, env)


async def prepare(env: Env, request: web.Request, body: ChatRequest, job_id: str) -> tuple[Job, list[Choice]]:
    """Prepare the choices of a chat request."""
    constraint = await _constraint(env, body, request[CLIENT])
    model = await open_model(env, request, body)
    prompt = await _encode(model, body, constraint, context=model.context)
    job = Job(
        id=job_id,
        client=request[CLIENT],
        model=model,
        body=body,
        sampling=body.sampling(body.wanted_logprobs, model.sampling),
        max_tokens=body.answer_tokens,
        param="messages",
        prediction=await read_prediction(model, body, body.answer_tokens),
        grammar=constraint.grammar,
    )
    return job, job.choices(prompt, reader=lambda: constraint.reader(model.tokenizer, prompt))


async def count_tokens(env: Env, request: web.Request, body: ChatRequest, *, most: int) -> int:
    """Number of tokens of a chat's prompt. Raises ContextExceeded for more than `most` and the model's context."""
    return len((await encode(env, request, body, most=most))[1])


async def encode(env: Env, request: web.Request, body: ChatRequest, *, most: int) -> tuple[OpenModel, list[int]]:
    """The model, and the tokens of a chat's prompt. Raises ContextExceeded for more than `most` and the model's context."""
    constraint = await _constraint(env, body, request[CLIENT])
    model = await open_model(env, request, body)
    return model, await _encode(model, body, constraint, context=max(model.context, most))


async def _constraint(env: Env, body: ChatRequest, client: str) -> AnswerConstraint:
    use = body.tool_use
    return AnswerConstraint(use, await make_grammar(env.backend.grammars, use, body.json_format, client))


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


@dataclass(slots=True)
class ChatShape:
    tokenizer: Tokenizer
    top_logprobs: int | None
    legacy: bool = False
    """Write tool calls in OpenAI's older format, `function_call`."""
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    _begun: set[int] = field(default_factory=set)
    """Choices whose `role` has been sent; it is sent once for each."""

    def chunks(self, index: int, delta: Delta) -> Sequence[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        if index not in self._begun:
            self._begun.add(index)
            chunks.append(_chunk(index, {"role": "assistant", "content": ""}))
        if delta.reasoning:
            chunks.append(_chunk(index, {"reasoning_content": delta.reasoning}))
        if delta.text or delta.tokens:
            chunks.append(_chunk(index, {"content": delta.text}) | {"logprobs": self._logprobs(delta)})
        for call in delta.calls:
            chunks += [_chunk(index, part) for part in self._call_deltas(call)]
        if delta.finish:
            chunks.append(_chunk(index, {}) | {"finish_reason": self._reason(delta)})
        return chunks

    def whole(self, index: int, collected: Collected) -> dict[str, Any]:
        content = None if collected.calls and not collected.text else collected.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if collected.reasoning:
            message["reasoning_content"] = collected.reasoning
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in collected.calls.values()
        ]
        if calls:
            message |= {"function_call": calls[0]["function"]} if self.legacy else {"tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(collected),
            "finish_reason": self._reason(collected),
        }

    def _call_deltas(self, call: CallDelta) -> Iterator[dict[str, Any]]:
        """The first delta of a call has its name; pieces of the arguments follow."""
        pieces = [{"name": call.name, "arguments": ""}] if call.id else []
        pieces += [{"arguments": call.arguments}] if call.arguments else []
        for piece in pieces:
            about = {"id": call.id, "type": "function"} if "name" in piece else {}
            yield (
                {"function_call": piece}
                if self.legacy
                else {"tool_calls": [{"index": call.index, **about, "function": piece}]}
            )

    def _reason(self, part: Delta | Collected) -> str | None:
        return "function_call" if self.legacy and part.finish == "tool_calls" else part.finish

    def _logprobs(self, part: Delta | Collected) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, part.tokens, self.top_logprobs)


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
