"""POST /api/chat and /api/generate. Each request is converted to a chat request, or to a completion if it is raw."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from api.chat.answer import Delta
from api.chat.constraint import make_grammar
from api.chat.env import STREAM, Env, open_model
from api.chat.generation import Choice, Prepared, new_id, run_all
from api.chat.param_names import renamed_params
from api.chat.prompt import encode_text, prepare
from api.chat.request import ChatRequest, ResponseFormat
from api.chat.schema import CompletionRequest, GenerationRequest, parse
from api.chat.tools import ToolUse
from api.http.callers import CLIENT
from api.http.errors import Unsupported
from api.http.stream import EventStream
from api.ollama.answer import Calls, Part, Writer, reason
from api.ollama.durations import Durations
from api.ollama.lines import Lines
from api.ollama.messages import for_chat
from api.ollama.schema import SHARED, ChatBody, GenerateBody, Generation
from node.core.commands import LoadModel, UnloadModel
from node.core.errors import ModelNotFound
from node.core.models import Wish

Json = dict[str, Any]

PARAMS = (
    *((f"^{name}$", f"options.{option}") for option, name in SHARED.items()),
    (r"^max_(completion_)?tokens$", "options.num_predict"),
    (r"^response_format(\.json_schema)?(\.schema)?", "format"),
    (r"^reasoning_effort$", "think"),
    (r"^(messages\[\d+\])\.reasoning_content$", r"\1.thinking"),
)
"""Patterns of the parameter names of chat and completions, and the names of the same parameters here."""
OF_GENERATE = (*PARAMS, (r"^messages\b.*", "prompt"))


@dataclass(frozen=True, slots=True)
class Generations:
    """The two handlers."""

    env: Env
    check_change: Callable[[web.BaseRequest], None]
    """Raises OriginNotAllowed for requests that may not change the cluster."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        durations = Durations()
        body, chat = await self.env.bodies.read(request, _parse_chat)
        writer = Writer(body.model, chat=True)
        if chat is None:
            return await self._keep(request, body, writer)
        self._begin(request, body, writer)
        with renamed_params(PARAMS):
            prepared, choices = await prepare(self.env, request, chat, new_id("chat"))
        return await self._answer(request, durations, writer, prepared, choices)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        durations = Durations()
        body, asked = await self.env.bodies.read(request, _parse_generate)
        writer = Writer(body.model, chat=False)
        if asked is None:
            return await self._keep(request, body, writer)
        self._begin(request, body, writer)
        with renamed_params(OF_GENERATE):
            if isinstance(asked, ChatRequest):
                prepared, choices = await prepare(self.env, request, asked, new_id("generate"))
            else:
                prepared, choices = await self._prepare_raw(request, body, asked)
        return await self._answer(request, durations, writer, prepared, choices)

    def _begin(self, request: web.Request, body: Generation, writer: Writer) -> None:
        """Make the request's stream, in the format of Ollama, if it is to be streamed."""
        if body.stream:
            request[STREAM] = EventStream(request, self.env.timing, form=Lines(writer.quiet))

    async def _prepare_raw(
        self, request: web.Request, body: GenerateBody, asked: CompletionRequest
    ) -> tuple[Prepared, list[Choice]]:
        form = ResponseFormat.model_validate(body.response_format).json_format
        grammar = await make_grammar(self.env.gateway.grammars, ToolUse(), form, request[CLIENT])
        model = await open_model(self.env, request, asked)
        prompt = await encode_text(model, body.prompt, param="prompt")
        prepared = Prepared(
            id=new_id("generate"),
            client=request[CLIENT],
            model=model,
            body=asked,
            sampling=asked.sampling(body.wanted_logprobs, model.sampling),
            max_tokens=body.options.max_tokens,
            param="prompt",
            grammar=grammar,
        )
        return prepared, prepared.choices(prompt)

    async def _answer(
        self, request: web.Request, durations: Durations, writer: Writer, prepared: Prepared, choices: list[Choice]
    ) -> web.StreamResponse:
        durations.opened()
        calls = Calls()
        events: EventStream | None = request.get(STREAM)
        write = partial(writer.line, tokenizer=prepared.model.tokenizer, top_logprobs=prepared.sampling.logprobs)
        whole, finish = Part(), None

        async def take(_: int, delta: Delta) -> None:
            nonlocal finish
            part, finish = calls.take(delta), delta.finish
            if events is None:
                whole.add(part)
            elif part != Part():
                await events.send(write(part))

        def last() -> Json:
            (choice,) = choices
            counts = durations.of_answer(len(choice.request.prompt), choice.answer.completion_tokens, choice.first_at)
            return writer.last(reason(finish), counts)

        if events is None:
            await run_all(self.env, choices, take)
            return web.json_response(write(whole) | _without_text(last()))
        async with events.kept_alive():
            await run_all(self.env, choices, take)
            await events.send(last())
        return events.response

    async def _keep(self, request: web.Request, body: Generation, writer: Writer) -> web.StreamResponse:
        """Load or unload a model, for a request without a prompt."""
        gateway, model, keep_s = self.env.gateway, body.model, body.keep_alive
        if keep_s == 0:
            self.check_change(request)
            try:
                await gateway.commands.run(UnloadModel(model))
            except ModelNotFound:  # it is not loaded, which is no error if there is such a model
                if gateway.models.known(model) is None:
                    raise
            return web.json_response(writer.last("unload", {}))
        self._begin(request, body, writer)
        if keep_s is not None and keep_s < 0:
            self.check_change(request)
            await gateway.commands.run(LoadModel(model, Wish(named=True)))
        await open_model(self.env, request, GenerationRequest(model=model, stream=body.stream))
        events: EventStream | None = request.get(STREAM)
        if events is None or not events.response.prepared:
            return web.json_response(writer.last("load", {}))
        await events.send(writer.last("load", {}))
        return events.response


def _parse_chat(given: Json) -> tuple[ChatBody, ChatRequest | None]:
    """The request, and the equivalent chat request; None if it has no messages."""
    body = parse(ChatBody, given)
    if not body.messages:
        return body, None
    chat = body.for_chat(for_chat(body.messages))
    if body.tools:
        chat["tools"] = [{"type": "function", **tool} for tool in body.tools]
    return body, _with_stops(body, chat, PARAMS)


def _parse_generate(given: Json) -> tuple[GenerateBody, ChatRequest | CompletionRequest | None]:
    """The request, and the equivalent one to chat or to completions; None if it has no prompt."""
    body = parse(GenerateBody, given)
    for param in ("suffix", "template"):
        if getattr(body, param):
            raise Unsupported(f"'{param}' is not supported.", param=param)
    if not body.prompt:
        return body, None
    if body.raw:
        raw = {"model": body.model, "stream": body.stream, "prompt": body.prompt, **body.options.shared()}
        with renamed_params(OF_GENERATE):
            asked = parse(CompletionRequest, raw)
        asked.stop = body.options.stop
        return body, asked
    system = [{"role": "system", "content": body.system}] if body.system else []
    return body, _with_stops(body, body.for_chat([*system, {"role": "user", "content": body.prompt}]), OF_GENERATE)


def _with_stops(body: Generation, chat: Json, params: tuple[tuple[str, str], ...]) -> ChatRequest:
    with renamed_params(params):
        asked = parse(ChatRequest, chat)
    asked.stop = body.options.stop
    return asked


def _without_text(last: Json) -> Json:
    """What the last line of a stream tells beside the text: plain answers have both in one object."""
    return {name: value for name, value in last.items() if name not in ("message", "response")}
