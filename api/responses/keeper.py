"""Finds responses on whichever node keeps them, and answers other nodes that look for one here."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web
from pydantic import Field, ValidationError

from api.chat.message import StrictModel
from api.http.body import Bodies
from api.http.errors import NotFound, PreviousNotFound
from api.http.json_object import Json, approximate_bytes, parse_object
from api.http.limits import SMALL_BODY
from api.responses.background import Background
from api.responses.events import EventLogs
from api.responses.items import read_item
from api.responses.store import ResponseStore, StoredResponse
from node.core.errors import BadRequest, Incompatible, NodeNotFound
from node.core.response_ids import Ask
from node.gateway.peers import Peers


@dataclass(frozen=True, slots=True)
class Keeper:
    background: Background
    bodies: Bodies
    peers: Peers
    store: ResponseStore = field(default_factory=ResponseStore)
    logs: EventLogs = field(default_factory=EventLogs)

    async def ask(self, ask: Ask, response_id: str) -> StoredResponse:
        """The response, which is cancelled or deleted if that is asked for.

        Raises NotFound, BadRequest for the cancellation of a response that is not in the background, and PeerUnavailable.
        """
        if not self.peers.is_kept_elsewhere(response_id):
            return await self._ask_here(ask, response_id)
        try:
            sent = await self.peers.response(ask, response_id)
        except NodeNotFound as error:
            raise self._gone(response_id) from error
        return await self.bodies.work(partial(_received, response_id, sent), small=len(sent) <= SMALL_BODY)

    def events(self, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
        """The events of a background response from this number on, in parts, which are empty while none comes.

        Raises there NotFound, BadRequest for a response that was not to be streamed, and PeerUnavailable.
        """
        is_here = not self.peers.is_kept_elsewhere(response_id)
        return self.own_events(response_id, first) if is_here else self._events_of_peer(response_id, first)

    async def own_events(self, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
        """As `events`, of a response that this node keeps."""
        self._find(response_id)
        log = self.logs.get(response_id)
        if log is None:
            raise BadRequest(
                f"The events of the response '{response_id[:80]}' are not kept.",
                hint="Only those of a response with 'background' and 'stream' are, until they make room for others.",
                param="stream",
            )
        async with aclosing(log.read(first)) as parts:
            async for part in parts:
                yield part

    async def _events_of_peer(self, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self.peers.events(response_id, first)) as parts:
                async for part in parts:
                    yield part
        except NodeNotFound as error:
            raise self._gone(response_id) from error

    @staticmethod
    def _gone(response_id: str) -> NotFound:
        return NotFound(_not_found(response_id), hint="The node that kept it is gone, and its responses with it.")

    async def before(self, response_id: str) -> StoredResponse:
        """The response that a request continues. Raises PreviousNotFound, PeerUnavailable."""
        hint = ""
        try:
            kept = await self.ask(Ask.GET, response_id)
            if kept.response["status"] not in ("queued", "in_progress"):
                return kept
        except NotFound as error:
            hint = error.hint
        raise PreviousNotFound(
            f"Previous response with id '{response_id[:80]}' not found.",
            hint=hint or "It was not stored, or was deleted to make room.",
            param="previous_response_id",
        )

    async def answer(self, ask: Ask, response_id: str) -> bytes:
        """For another node: the response, which this node keeps, as JSON. Raises what `ask` raises."""
        kept = await self._ask_here(ask, response_id)
        before = kept.history[: len(kept.history) - len(kept.input) - len(kept.response["output"])]
        sent = {"response": kept.response, "input": kept.input, "before": before, "bytes": kept.bytes}
        return json.dumps(sent, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    async def _ask_here(self, ask: Ask, response_id: str) -> StoredResponse:
        kept = self._find(response_id)
        if ask is Ask.CANCEL and not kept.response["background"]:
            raise BadRequest("Cannot cancel a synchronous response.", hint="Close its connection instead.")
        if ask is not Ask.GET:
            await self.background.cancel(response_id)
            kept = self._find(response_id)
        if ask is Ask.DELETE:
            self.store.delete(response_id)
            self.logs.drop(response_id)
        return kept

    def _find(self, response_id: str) -> StoredResponse:
        """The response, running or stored. Raises NotFound."""
        running = self.background.find(response_id)
        kept = running.stored() if running else self.store.get(response_id)
        if kept is None:
            raise NotFound(_not_found(response_id))
        return kept


KEEPER = web.AppKey("keeper", Keeper)


def _not_found(response_id: str) -> str:
    return f"Response with id '{response_id[:80]}' not found."


class _SentResponse(StrictModel):
    """A response as another node sends it."""

    response: Json
    input: list[Any]
    before: list[Any]
    bytes: int = Field(ge=0)


def _received(response_id: str, data: bytes) -> StoredResponse:
    """Read what another node has sent. Its items are checked as those of clients are. Raises Incompatible."""
    try:
        sent = _SentResponse.model_validate(parse_object(data))
        if sent.response["id"] != response_id or not isinstance(sent.response["status"], str):
            raise BadRequest("It is another response.")
        given = tuple(read_item("input", item) for item in sent.input)
        before = [read_item("output", item) for item in (*sent.before, *sent.response["output"])]
    except (BadRequest, ValidationError, KeyError, TypeError) as error:
        said = f"The node that keeps the response {response_id} has sent something else: {error}"
        raise Incompatible(said) from error
    count = len(sent.before)
    size = max(sent.bytes, approximate_bytes([sent.response, sent.input, sent.before]))
    return StoredResponse(sent.response, given, (*before[:count], *given, *before[count:]), size)
