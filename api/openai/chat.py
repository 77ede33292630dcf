"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from aiohttp import web

from api.chat.answer import Delta
from api.chat.env import Env
from api.chat.generation import new_id
from api.chat.logprobs import chat_logprobs
from api.chat.prompt import prepare
from api.chat.reader import CallDelta
from api.chat.request import ChatRequest
from api.http.json_object import Json
from api.openai.reply import Collected, Reply

_KINDS = {False: ("function", "arguments"), True: ("custom", "input")}
"""By `CallDelta.custom`: the kind of a call, and where it has its arguments."""


async def create(env: Env, request: web.Request) -> web.StreamResponse:
    body = await env.read(request, ChatRequest)
    prepared, choices = await prepare(env, request, body, new_id("chatcmpl"))
    return await ChatReply(prepared, choices, body.wanted_logprobs, legacy=body.tool_use.legacy).send(request, env)


@dataclass(slots=True)
class ChatReply(Reply):
    legacy: bool = False
    """Write tool calls in OpenAI's older format, `function_call`."""
    object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    _begun: set[int] = field(default_factory=set)
    """Choices whose `role` has been sent; it is sent once for each."""

    def chunks(self, index: int, delta: Delta) -> Sequence[Json]:
        deltas: list[Json] = []
        if index not in self._begun:
            self._begun.add(index)
            deltas.append({"delta": {"role": "assistant", "content": ""}})
        if delta.reasoning:
            deltas.append({"delta": {"reasoning_content": delta.reasoning}})
        if delta.text or delta.tokens:
            deltas.append({"delta": {"content": delta.text}, "logprobs": self._logprobs(delta)})
        for call in delta.calls:
            # The first delta of a call has its name; pieces of the arguments follow.
            kind, said = _KINDS[call.custom]
            if call.id:
                deltas.append(self._call(call, {"name": call.name, said: ""}, id=call.id, type=kind))
            if call.arguments:
                deltas.append(self._call(call, {said: call.arguments}))
        if delta.finish:
            deltas.append({"delta": {}, "finish_reason": self._reason(delta)})
        return [{"index": index, "delta": {}, "logprobs": None, "finish_reason": None, **each} for each in deltas]

    def choice(self, index: int, collected: Collected) -> Json:
        content = None if collected.calls and not collected.text else collected.text
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if collected.reasoning:
            message["reasoning_content"] = collected.reasoning
        calls: list[Json] = []
        for call in collected.calls.values():
            kind, said = _KINDS[call.custom]
            calls.append({"id": call.id, "type": kind, kind: {"name": call.name, said: call.arguments}})
        if calls:
            message |= {"function_call": calls[0]["function"]} if self.legacy else {"tool_calls": calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(collected),
            "finish_reason": self._reason(collected),
        }

    def _call(self, call: CallDelta, function: Json, **about: str) -> Json:
        if self.legacy:
            return {"delta": {"function_call": function}}
        kind, _ = _KINDS[call.custom]
        return {"delta": {"tool_calls": [{"index": call.index, **about, kind: function}]}}

    def _reason(self, part: Delta | Collected) -> str | None:
        return "function_call" if self.legacy and part.finish == "tool_calls" else part.finish

    def _logprobs(self, part: Delta | Collected) -> Json | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(self.prepared.model.tokenizer, part.tokens, self.top_logprobs)
