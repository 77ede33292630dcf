"""/v1/responses: OpenAI's Responses API, with items and named events. Each request is converted to a chat request."""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from api.chat.env import STREAM, Env
from api.chat.generation import respond, send
from api.chat.prompt import encode_chat, prepare
from api.chat.request import ChatRequest
from api.chat.schema import parse, renamed_params
from api.http.callers import CLIENT
from api.http.errors import shorten
from api.http.json_object import approximate_bytes
from api.http.limits import MAX_COUNTED, SMALL_BODY
from api.http.stream import EventStream, Sse
from api.responses.items import Item, messages_of
from api.responses.keeper import Keeper
from api.responses.output import ResponseOutput
from api.responses.schema import ResponseRequest
from api.responses.turn import Turn
from node.core.errors import BadRequest, ContextExceeded, NotReady, PippinError
from node.core.response_ids import Ask

MAX_PAGE = 100
QUEUED_AFTER_S = 0.5
"""Seconds after which a background response is returned as `queued`; a loaded model takes less."""


@dataclass(frozen=True, slots=True)
class Responses:
    """The handlers and their state."""

    env: Env
    keeper: Keeper

    async def create(self, request: web.Request) -> web.StreamResponse:
        chat, turn = await self._read(request)
        if turn.output.body.background:
            await self._begin(request, turn, asyncio.create_task(self._open(request, chat, turn)))
            if turn.output.body.stream:
                return await self._follow(request, turn.output.id, 0)
            return web.json_response(turn.output.response())
        await self._open(request, chat, turn)
        try:
            return await respond(self.env, request, turn.choices, turn)
        except PippinError as error:
            stream: EventStream | None = request.get(STREAM)
            if stream is None or not stream.response.prepared:
                raise
            await send(stream, turn.fail(error))
            return stream.response

    async def count(self, request: web.Request) -> web.Response:
        """The length of the prompt of a request, with a model that may have to be loaded for it."""
        chat, turn = await self._read(request)
        with renamed_params(turn.output.body.params):
            _, (prompt, _), _ = await encode_chat(self.env, request, chat, most=MAX_COUNTED)
        return web.json_response({"object": "response.input_tokens", "input_tokens": len(prompt)})

    async def _read(self, request: web.Request) -> tuple[ChatRequest, Turn]:
        client = request[CLIENT]
        body, given, received = await self.env.bodies.read(
            request, lambda given: (parse(ResponseRequest, given), given, approximate_bytes(given))
        )
        before = await self.keeper.before(body.previous_response_id) if body.previous_response_id else None
        new: tuple[Item, ...] = tuple(body.input)
        size = received
        if any(map(_is_reference, new)):
            new, more = await self.env.bodies.work(partial(self._resolved, new, client), small=False, client=client)
            size += more
        output = ResponseOutput(body, body.model, self.keeper.peers.new_response_id())
        turn = Turn(output, client, before, new, size, self.keeper.store, self.keeper.logs)
        whole = turn.conversation_bytes
        if before and whole > self.env.bodies.limit:
            raise ContextExceeded(
                f"The conversation has some {whole:,} bytes; the maximum is {self.env.bodies.limit:,}.",
                param="previous_response_id",
            )
        self.env.bodies.hold(request, whole - received)
        items = (*before.history, *new) if before else new
        chat = await self.env.bodies.work(
            lambda: parse(ChatRequest, body.for_chat(messages_of(body.instructions, items), given), body.params),
            small=whole <= SMALL_BODY,
            client=client,
        )
        return chat, turn

    async def show(self, request: web.Request) -> web.StreamResponse:
        response_id, after = request.match_info["id"], request.query.get("starting_after", "")
        if request.query.get("stream") == "true":
            if not re.fullmatch(r"[0-9]{0,9}", after):
                raise BadRequest("Invalid 'starting_after': it must be a sequence number.", param="starting_after")
            return await self._follow(request, response_id, int(after) + 1 if after else 0)
        return web.json_response((await self.keeper.ask(Ask.GET, response_id)).response)

    async def _follow(self, request: web.Request, response_id: str, first: int) -> web.StreamResponse:
        """Stream the events of a background response from this number on, up to its last one."""
        stream = request[STREAM] = EventStream(request, self.env.timing, Sse())
        try:
            async with aclosing(self.keeper.events(response_id, first)) as parts, stream.kept_alive():
                async for part in parts:
                    if part:
                        await stream.write(part)
                        first += part.count(b"\n\n")
        except PippinError as error:
            if not stream.response.prepared:
                raise
            about = {"code": error.code, "message": shorten(str(error)), "param": error.param}
            await stream.send({"type": "error", "sequence_number": first, **about})
        return stream.response

    async def delete(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        await self.keeper.ask(Ask.DELETE, response_id)
        return web.json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a background response. One that has already ended is returned unchanged."""
        return web.json_response((await self.keeper.ask(Ask.CANCEL, request.match_info["id"])).response)

    async def input_items(self, request: web.Request) -> web.Response:
        """The input items of the request, the last first unless `order` is asc."""
        items = list((await self.keeper.ask(Ask.GET, request.match_info["id"])).input)
        limit, order = request.query.get("limit", "20"), request.query.get("order", "desc")
        if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= MAX_PAGE:
            raise BadRequest(f"Invalid 'limit': it must be from 1 to {MAX_PAGE}.", param="limit")
        if order not in ("asc", "desc"):
            raise BadRequest("Invalid 'order': it must be asc or desc.", param="order")
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

    async def end(self, _app: web.Application) -> None:
        await self.keeper.background.close()

    # --- answering ----------------------------------------------------------------------------------------------------

    def _resolved(self, items: Sequence[Item], client: str) -> tuple[tuple[Item, ...], int]:
        """The items in place of references, and the bytes added. Raises BadRequest, ContextExceeded."""
        named = {item["id"]: f"input[{index}].id" for index, item in enumerate(items) if _is_reference(item)}
        found = self.keeper.store.items(named, client) if named else {}
        for name, param in named.items():
            if name not in found:
                raise BadRequest(f"Item with id '{name[:80]}' not found.", param=param)
        sizes = {name: approximate_bytes(item) for name, item in found.items()}
        more = sum(sizes[item["id"]] for item in items if _is_reference(item))
        if more > self.env.bodies.limit:
            raise ContextExceeded(
                f"The items referred to have some {more:,} bytes; the maximum is {self.env.bodies.limit:,}.",
                param="input",
            )
        return tuple(found[item["id"]] if _is_reference(item) else item for item in items), more

    async def _open(self, request: web.Request, chat: ChatRequest, turn: Turn) -> None:
        """Wait for the model; up to `loading_s` for a background response, for which no client waits."""
        deadline = time.monotonic() + self.env.timing.loading_s
        while turn.prepared is None:
            try:
                with renamed_params(turn.output.body.params):
                    turn.open(*await prepare(self.env, request, chat, turn.output.id))
            except NotReady:
                if not turn.output.body.background or time.monotonic() > deadline:
                    raise

    async def _begin(self, request: web.Request, turn: Turn, opening: asyncio.Task[None]) -> None:
        """Start a background response.

        An error within QUEUED_AFTER_S is raised, as a plain refusal of the request; after that, it makes the response fail.
        """
        try:
            with self.keeper.background.place(turn):
                if (await asyncio.wait([opening], timeout=QUEUED_AFTER_S))[0]:
                    opening.result()
            self.keeper.background.start(request, turn, opening)
            if turn.output.body.stream:
                turn.begin()
        except BaseException:
            opening.cancel()
            raise


def _is_reference(item: Item) -> bool:
    return bool(item["type"] == "item_reference")
