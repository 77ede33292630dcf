"""POST /v1/chat/completions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from aiohttp import web

from api.chat.answer import Delta
from api.chat.env import Env
from api.chat.generation import new_id
from api.chat.logprobs import chat_logprobs
from api.chat.prompt import prepare
from api.chat.reader import CallDelta
from api.chat.request import ChatRequest
from api.chat.schema import parse
from api.openai.reply import Collected, Reply
from node.text.tokenizer import Tokenizer


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body = await env.bodies.read(request, partial(parse, ChatRequest))
    prepared, choices = await prepare(env, request, body, new_id("chatcmpl"))
    shape = ChatShape(prepared.model.tokenizer, body.wanted_logprobs, legacy=body.tool_use.legacy)
    return await Reply(prepared, choices, shape).send(request, env)


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
