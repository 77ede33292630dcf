"""Ollama's streams: one JSON object a line."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from api.http.stream import to_json

Json = dict[str, Any]


class Lines:
    """The format of a stream (`StreamFormat`) of JSON objects, one a line."""

    content_type = "application/x-ndjson"

    def __init__(self, quiet: Callable[[], Json]) -> None:
        """`quiet`: the object of a line that tells nothing, for a stream that waits."""
        self._quiet = quiet

    def event(self, data: Json, _name: str) -> bytes:
        return to_json(data) + b"\n"

    def failure(self, error: Json) -> bytes:
        return self.event(error, "")

    def waiting(self, _awaited: str) -> bytes:
        return self.event(self._quiet(), "")


def timestamp(seconds: float | None = None) -> str:
    """A time as Ollama writes it, RFC 3339 in UTC. `seconds`: since 1970; None: now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
