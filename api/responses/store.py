"""In-memory LRU store of responses that later ones may continue, with limits on their number and bytes.

One client can't drive out what others have: see `first_to_go`.
"""

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from api.http.json_object import Json, approximate_bytes
from api.http.limits import MAX_RESPONSES, MAX_RESPONSES_BYTES
from api.responses.room import first_to_go


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and the conversation before it."""

    response: Json
    input: tuple[Json, ...]
    history: tuple[Json, ...]
    """Items of the whole conversation, including this response's input and output."""
    bytes: int
    """Approximate bytes of the response and its history, items that it shares with others included."""
    client: str = ""
    """Who asked for it; empty for one that another node keeps."""

    @classmethod
    def after(
        cls, before: "StoredResponse | None", response: Json, given: tuple[Json, ...], size: int, client: str = ""
    ) -> "StoredResponse":
        """`size`: approximate bytes of the request (see `approximate_bytes`)."""
        history = (*(before.history if before else ()), *given, *response["output"])
        size += approximate_bytes(response["output"]) + (before.bytes if before else 0)
        return cls(response, given, history, size, client)


class ResponseStore:
    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_RESPONSES_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._bytes = 0

    def add(self, kept: StoredResponse) -> None:
        """Store a response, unless it exceeds the limit on bytes by itself."""
        if kept.bytes > self._max_bytes:
            return
        self._kept[kept.response["id"]] = kept
        self._bytes += kept.bytes
        while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
            self.delete(first_to_go(self._kept, by_bytes=self._bytes > self._max_bytes))

    def get(self, response_id: str) -> StoredResponse | None:
        if response_id in self._kept:
            self._kept.move_to_end(response_id)
        return self._kept.get(response_id)

    def delete(self, response_id: str) -> None:
        """Forget a response, if it is here."""
        if kept := self._kept.pop(response_id, None):
            self._bytes -= kept.bytes

    def items(self, ids: Container[str], client: str) -> dict[str, Json]:
        """Items of stored responses that have one of these ids, by id. Safe to call from any thread.

        Ids are often chosen by clients: of several items, that of the client's own responses counts, of these the latest.
        """
        kept = sorted(self._kept.values(), key=lambda each: each.client == client)  # its own come last
        return {item["id"]: item for each in kept for item in each.history if item["id"] in ids}
