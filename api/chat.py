"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aiohttp import web

from api.answer import Delta
from api.body import read_object
from api.generation import Job
from api.logprobs import chat_logprobs
from api.response import Collected, Gateway, Reply, new_id
from api.schema import ChatRequest, parse
from node.core.errors import BadRequest
from node.engine.tokenizer import Tokenizer


async def create(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = parse(ChatRequest, await read_object(request))
    model = await gateway.backend.open(body.model)
    messages = [message.for_template() for message in body.messages]
    # In a thread: a long prompt takes long, and other streams go on.
    prompt = await asyncio.to_thread(model.tokenizer.chat, messages, **body.chat_template_kwargs)
    if not prompt:
        raise BadRequest("The model's chat template makes nothing of these messages.", param="messages")
    job = Job(
        id=new_id("chatcmpl"),
        model=model,
        body=body,
        sampling=body.sampling(body.wanted_logprobs),
        max_tokens=body.answer_tokens,
        param="messages",
    )
    choices = job.choices(prompt)
    return await Reply(job, choices, ChatShape(model.tokenizer, body.wanted_logprobs)).send(request, gateway)


@dataclass(slots=True)
class ChatShape:
    tokenizer: Tokenizer
    top_logprobs: int | None
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    _begun: set[int] = field(default_factory=set)
    """The choices whose role has been told; it is told once."""

    def chunks(self, index: int, delta: Delta) -> Sequence[dict[str, Any]]:
        chunks = []
        if index not in self._begun:
            self._begun.add(index)
            chunks.append(_chunk(index, {"role": "assistant", "content": ""}))
        if delta.text or delta.tokens:
            chunks.append(_chunk(index, {"content": delta.text}) | {"logprobs": self._logprobs(delta)})
        if delta.finish:
            chunks.append(_chunk(index, {}) | {"finish_reason": delta.finish})
        return chunks

    def whole(self, index: int, collected: Collected) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": collected.text, "refusal": None},
            "logprobs": self._logprobs(collected),
            "finish_reason": collected.finish,
        }

    def _logprobs(self, part: Delta | Collected) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, part.tokens, self.top_logprobs)


def _chunk(index: int, delta: dict[str, str]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
