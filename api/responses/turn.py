"""One request to the Responses API and the response to it, while it is being made."""

from dataclasses import dataclass, field

from api.chat.answer import Delta
from api.chat.generation import Choice, Prepared, usage
from api.chat.logprobs import chat_logprobs
from api.http.errors import shorten
from api.http.json_object import Json
from api.responses.events import EventLogs
from api.responses.items import Item
from api.responses.output import ResponseOutput
from api.responses.store import ResponseStore, StoredResponse
from node.core.errors import PippinError


@dataclass(slots=True)
class Turn:
    """The output of the request (see `Output`), and what else the response needs."""

    output: ResponseOutput
    client: str
    """Who asks for it."""
    before: StoredResponse | None
    """The response that it continues."""
    given: tuple[Item, ...]
    size: int
    """Approximate bytes of `given`."""
    store: ResponseStore
    logs: EventLogs
    prepared: Prepared | None = None
    """None until its model is ready."""
    choices: list[Choice] = field(default_factory=list)

    @property
    def conversation_bytes(self) -> int:
        """Approximate bytes of `given` and all before it."""
        return self.size + (self.before.bytes if self.before else 0)

    def open(self, prepared: Prepared, choices: list[Choice]) -> None:
        self.prepared, self.choices = prepared, choices
        self._record(list(self.output.open(prepared.model.id, prepared.sampling)))

    def begin(self) -> None:
        """Begin the events that are kept for streams of a background response."""
        self.logs.begin(self.output.id, self.client)
        self._record(list(self.output.begin()))

    def stored(self) -> StoredResponse:
        """The turn in its current state, to be stored."""
        return StoredResponse.after(self.before, self.output.response(), self.given, self.size, self.client)

    def whole(self) -> Json:
        return self.output.response()

    # --- changes; `grow` and `fail` return the events that report them, the final one once the response is stored ---

    def grow(self, _: int, delta: Delta) -> list[Json]:
        output = self.output
        events = [] if output.begun else list(output.begin())  # only now is it certain that the request is not refused
        if delta.reasoning:
            events += output.reasoning(delta.reasoning)
        if delta.text or delta.tokens:
            top, logprobs = output.body.logprobs, []
            if top is not None and self.prepared:
                logprobs = chat_logprobs(self.prepared.model.tokenizer, delta.tokens, top)["content"]
            events += output.text(delta.text, logprobs)
        for call in delta.calls:
            events += output.call(call)
        if delta.finish:
            events += output.finish(truncated=delta.finish == "length", usage=_usage(self.choices))
            self._keep()
        self._record(events)
        return events

    def fail(self, error: PippinError) -> list[Json]:
        """Make the response fail. Errors after its end change nothing."""
        if self.output.ended:
            return []
        code = "invalid_prompt" if error.status < 500 else "server_error"  # OpenAI defines these codes
        code = "rate_limit_exceeded" if error.status == 429 else code
        events = list(self.output.fail(code, shorten(str(error))))
        self._keep()
        self._record(events)
        return events

    def cancel(self) -> None:
        """Cancel the response, unless it has ended."""
        if not self.output.ended:
            events = list(self.output.cancel())
            self._keep()
            self._record(events)

    def _record(self, events: list[Json]) -> None:
        self.logs.add(self.output.id, events, ended=self.output.ended)

    def _keep(self) -> None:
        if self.output.body.store:
            self.store.add(self.stored())


def _usage(choices: list[Choice]) -> Json:
    chat = usage(choices)
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **chat["prompt_tokens_details"]},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": chat["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": chat["total_tokens"],
    }
