"""/v1/responses: OpenAI's newer way to ask, in items and named events. Each request is asked as a chat."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from api.answer import Delta
from api.body import read_object
from api.chat import ask
from api.errors import Unsupported
from api.generation import Choice, Job, run_all, usage
from api.logprobs import chat_logprobs
from api.response import STREAM, Gateway
from api.responses.items import Item, item_id, messages_of
from api.responses.output import Output
from api.responses.schema import ResponseRequest
from api.responses.store import Kept, Store
from api.schema import ChatRequest, parse
from node.core.errors import BadRequest, PippinError

Json = dict[str, Any]

MAX_PAGE = 100
PARAMS = (
    (r"^messages\b.*", "input"),
    (r"^max_completion_tokens$", "max_output_tokens"),
    (r"^response_format(\.json_schema)?", "text.format"),
    (r"^(tools\[\d+\])\.function", r"\1"),
    (r"^tool_choice\.function", "tool_choice"),
    (r"^reasoning_effort$", "reasoning.effort"),
)
"""Chat's names for parameters, and their names here."""


@dataclass(frozen=True, slots=True)
class Responses:
    """The handlers, and what they keep."""

    gateway: Gateway
    store: Store = field(default_factory=Store)

    async def create(self, request: web.Request) -> web.StreamResponse:
        given = await read_object(request)
        body = parse(ResponseRequest, given)
        before = self.store.before(body.previous_response_id) if body.previous_response_id else None
        new = tuple(self._resolved(index, item) for index, item in enumerate(body.input))
        with _told_in_our_names():
            items = (*before.history, *new) if before else new
            chat = parse(ChatRequest, body.for_chat(messages_of(body.instructions, items), given))
            job, choices = await ask(self.gateway, request, chat, item_id("resp"))
        turn = _Turn(job, choices, Output(body, job.model.id, job.id), before, new, self.store)
        return await (self._stream(request, turn) if body.stream else self._whole(turn))

    async def show(self, request: web.Request) -> web.Response:
        kept = self.store.get(request.match_info["id"])
        if request.query.get("stream") == "true":
            raise Unsupported("Only a response made in the background can be streamed again.", param="stream")
        return web.json_response(kept.response)

    async def delete(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        self.store.delete(response_id)
        return web.json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: web.Request) -> web.Response:
        self.store.get(request.match_info["id"])
        raise BadRequest("Cannot cancel a synchronous response.", hint="Close its connection while it runs.")

    async def input_items(self, request: web.Request) -> web.Response:
        """The items that came with the request, the last first unless `order` is asc."""
        items = list(self.store.get(request.match_info["id"]).input)
        limit, order = request.query.get("limit", "20"), request.query.get("order", "desc")
        if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise BadRequest(f"Invalid 'limit': it is from 1 to {MAX_PAGE}.", param="limit")
        if order not in ("asc", "desc"):
            raise BadRequest("Invalid 'order': it is asc or desc.", param="order")
        if order == "desc":
            items.reverse()
        if after := request.query.get("after"):
            ids = [item["id"] for item in items]
            if after not in ids:
                raise BadRequest(f"Invalid 'after': there is no item {after[:80]!r}.", param="after")
            items = items[ids.index(after) + 1 :]
        page = items[: int(limit)]
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
        return web.json_response({"object": "list", "data": page, "has_more": len(items) > len(page), **ends})

    # --- answering ------------------------------------------------------------------------------------------------------

    def _resolved(self, index: int, item: Item) -> Item:
        if item["type"] != "item_reference":
            return item
        found = self.store.item(item["id"])
        if found is None:
            raise BadRequest(f"Item with id '{item['id'][:80]}' not found.", param=f"input[{index}].id")
        return found

    async def _whole(self, turn: "_Turn") -> web.Response:
        async def take(_: int, delta: Delta) -> None:
            turn.grow(delta)

        await run_all(self.gateway.backend, turn.choices, take)
        return web.json_response(turn.output.response())

    async def _stream(self, request: web.Request, turn: "_Turn") -> web.StreamResponse:
        events, output = request[STREAM], turn.output

        async def send(told: Iterable[Json]) -> None:
            for event in told:
                await events.send(event, event["type"])

        async def take(_: int, delta: Delta) -> None:
            if not output.begun:  # only now it is certain that the request is not refused
                await send(output.begin())
            await send(turn.grow(delta))

        async with events.kept_alive():
            try:
                await run_all(self.gateway.backend, turn.choices, take)
            except PippinError as error:
                if not events.response.prepared:
                    raise
                await send(output.fail(_code(error), str(error)))
        return events.response


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request on its way to a response."""

    job: Job
    choices: list[Choice]
    output: Output
    before: Kept | None
    given: tuple[Item, ...]
    store: Store

    def grow(self, delta: Delta) -> list[Json]:
        """The events that tell of it. The last one is told when the response can be asked for."""
        output = self.output
        events: list[Json] = []
        if delta.text or delta.tokens:
            events += output.text(delta.text, self._logprobs(delta))
        if delta.finish:
            events += output.finish(cut=delta.finish == "length", usage=_usage(self.choices))
            if output.body.store:
                self.store.add(Kept.after(self.before, output.response(), self.given))
        return events

    def _logprobs(self, delta: Delta) -> list[Json]:
        top = self.output.body.logprobs
        if top is None:
            return []
        content: list[Json] = chat_logprobs(self.job.model.tokenizer, delta.tokens, top)["content"]
        return content


def _usage(choices: list[Choice]) -> Json:
    chat = usage(choices, 1)
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **chat["prompt_tokens_details"]},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": chat["total_tokens"],
    }


def _code(error: PippinError) -> str:
    """OpenAI knows these only."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"


@contextmanager
def _told_in_our_names() -> Iterator[None]:
    """What chat finds wrong, by the names that the sender used."""
    try:
        yield
    except PippinError as error:
        for pattern, name in PARAMS:
            if error.param and re.search(pattern, error.param):
                renamed = re.sub(pattern, name, error.param)
                error.message = error.message.replace(f"'{error.param}'", f"'{renamed}'")
                error.param = renamed
        raise
