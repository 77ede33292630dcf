"""Makes grammars for the gateway and constraints for the driver. A sandbox compiles each grammar before this process
does.
"""

import asyncio
import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from typing import Any

from node.core.errors import BadRequest, Overloaded
from node.core.fair_turns import FairTurns
from node.core.lru_cache import LruCache
from node.core.pool import Pool
from node.core.units import format_bytes
from node.text.call_form import CallForm
from node.text.constraint import Constraint, Constraints
from node.text.grammar import Function
from node.text.json_schema import EXACT
from node.text.sandbox import Bounds, Sandbox, Sandboxes, SandboxFailed, SandboxServer
from node.text.sandboxed_encoder import tokenizer_sandbox

MAX_BYTES = 256 * 2**10
"""Maximum total size of names and strings in a request's schemas."""
MAX_VALUES = 20_000
"""Maximum JSON values in a request's schemas."""
MAX_LEVELS = 64
"""Maximum depth of nesting."""
MAX_GRAMMAR = 2**20
"""Maximum characters of a grammar."""
MAX_IN_USE = 2**30
"""Maximum total bytes of the grammars of all sessions on a node. No client has more of it than is left for others."""
_MIN_IN_USE = 4 * 2**20
"""Minimum bytes that a session's grammar counts, as following it takes memory, too."""
_MEMORY = 256 * 2**20
_AT_ONCE, _WAITING = 2, 1024
"""Grammars that are made at once, and maximum grammars that one client waits for."""
_KEPT_TEXT = 64 * 2**10
"""Maximum characters of a grammar that is cached for the next request with the same schemas."""


class Grammars:
    """The grammars of a node. Create it inside a running event loop. `start` prepares a sandbox for the first grammar."""

    def __init__(self, server: SandboxServer, seconds: float = 2.0) -> None:
        """`seconds`: time limit for making one grammar."""
        bounds = Bounds(seconds, _MEMORY, reply=16 * MAX_GRAMMAR, kept=_MIN_IN_USE)
        start = partial(Sandbox.start, server, "node.text.grammar_job:make_job", bounds)
        self._sandboxes = Sandboxes(start, FairTurns("a grammar to be made", _AT_ONCE, _WAITING))
        self._server = server
        self._reading_tokenizer = asyncio.Lock()
        # One at a time: compiling a grammar takes many times the memory of the result.
        self._compiling = Pool("grammar", 1, 256, 30)
        self._turns = FairTurns("a grammar to be compiled", 1, _WAITING)
        self._grammars: LruCache[bytes, str] = LruCache(512)
        """Grammars by the hash of the request."""
        self._memory: LruCache[bytes, int] = LruCache(4096)
        """Bytes of each grammar that a sandbox has tried, by the hash of its text."""
        self._clients: weakref.WeakKeyDictionary[Constraint, str] = weakref.WeakKeyDictionary()
        """The client of each constraint."""

    async def start(self) -> None:
        """Start the first sandbox. Raises NotReady, Overloaded."""
        await self._sandboxes.start()

    async def end(self) -> None:
        await self._sandboxes.close()

    @property
    def is_stuck(self) -> bool:
        return self._compiling.is_stuck()

    # --- for the gateway ----------------------------------------------------------------------------------------------

    async def json(self, schema: Mapping[str, Any], *, strict: bool, param: str, client: str) -> str:
        """Grammar of the JSON texts that the schema accepts. Raises BadRequest, naming `param`; Overloaded, NotReady."""
        return await self._make({"schema": schema, "strict": strict, "param": param}, client)

    async def text(self, kind: str, text: str, *, param: str, client: str) -> str:
        """Grammar of a text; see `node.text.grammar.text_grammar`. Raises as `json` does."""
        return await self._make({"kind": kind, "text": text, "param": param}, client)

    async def calls(
        self,
        functions: Sequence[Function],
        *,
        many: bool,
        param: str,
        client: str,
        answer: Mapping[str, Any] | None = None,
        form: CallForm | None = None,
        free: bool = False,
    ) -> str:
        """Grammar of calls, or of an answer instead; see `node.text.grammar.calls_grammar`. `free`: of a text that may end in calls
        of this `form`; see `form_grammar`. Raises as `json` does.
        """
        request = {"functions": [asdict(each) for each in functions], "many": many, "param": param, "answer": answer}
        return await self._make({**request, "form": asdict(form) if form else None, "free": free}, client)

    async def _make(self, request: Mapping[str, Any], client: str) -> str:
        check(request, request["param"])
        data = json.dumps(request).encode()
        key = sha256(data).digest()
        if grammar := self._grammars.get(key):
            return grammar
        grammar = await self._try(data, f"Invalid '{request['param']}': the schema", request["param"], client)
        if len(grammar) <= _KEPT_TEXT:
            self._grammars.put(key, grammar)
        return grammar

    # --- for the driver -----------------------------------------------------------------------------------------------

    async def begin(
        self, constraints: Constraints, grammar: str, generated: Sequence[int], *, client: str
    ) -> Constraint:
        """Create the constraint of a client's session, which must close it. Raises BadRequest, ModelBroken, Overloaded,
        NotReady.
        """
        if len(grammar) > MAX_GRAMMAR:
            raise BadRequest(f"The grammar has {len(grammar):,} characters; {MAX_GRAMMAR:,} are the most.")
        key = sha256(grammar.encode()).digest()
        if self._memory.get(key) is None:  # it may come from another node
            await self._try(json.dumps({"grammar": grammar}).encode(), "The grammar", None, client)
        memory = max(_MIN_IN_USE, self._memory.get(key) or 0)
        async with self._reading_tokenizer:  # one at a time, as some take 0.5 GB
            if not constraints.is_read:
                async with tokenizer_sandbox(self._server, constraints.directory) as (sandbox, folder):
                    sandbox.end()
                    await self._compiling.run(constraints.read, folder)
        async with self._turns.turn(client):
            own = sum(each.memory for each, of in self._clients.items() if of == client)
            whole = sum(each.memory for each in self._clients)
            if own + memory > MAX_IN_USE - whole:  # more than would be left for the next client's
                raise Overloaded(
                    f"Your grammars take {format_bytes(own)}, and those of all requests {format_bytes(whole)} of "
                    f"{format_bytes(MAX_IN_USE)}."
                )
            constraint = await self._compiling.run(constraints.begin, grammar, generated)
            constraint.memory = memory
            self._clients[constraint] = client
        return constraint

    async def _try(self, request: bytes, what: str, param: str | None, client: str) -> str:
        try:
            reply = json.loads(await self._sandboxes.ask(request, client))
        except SandboxFailed as error:
            hint = "Make it smaller or simpler."
            raise BadRequest(f"{what} can't be followed: {error}.", hint=hint, param=param) from error
        grammar: str = reply["grammar"]
        self._memory.put(sha256(grammar.encode()).digest(), reply["memory"])
        return grammar


def check(schemas: Any, param: str) -> None:
    """Raises BadRequest for schemas that exceed a limit, or have a number that is not exact in all JSON parsers.

    Stops at the first limit, so it takes milliseconds at most.
    """
    values = size = 0
    level = [schemas]
    for _ in range(MAX_LEVELS + 1):
        values += len(level)
        if values > MAX_VALUES:
            raise _refused(param, f"has more than {MAX_VALUES:,} values")
        below: list[Any] = []
        for value in level:
            match value:
                case str():
                    size += len(value)
                case Mapping():
                    size += sum(map(len, value))
                    below.extend(value.values())
                case list() | tuple():
                    below.extend(value)
                case int() | float() if not -EXACT - 1 <= value <= EXACT + 1:  # NaN, too
                    raise _refused(param, "has a number beyond ±2^53")
            if size > MAX_BYTES:
                raise _refused(param, f"is larger than {format_bytes(MAX_BYTES)}")
            if values + len(below) > MAX_VALUES:
                raise _refused(param, f"has more than {MAX_VALUES:,} values")
        if not below:
            return
        level = below
    raise _refused(param, f"is nested more than {MAX_LEVELS} levels deep")


def _refused(param: str, why: str) -> BadRequest:
    return BadRequest(f"Invalid '{param}': the schema {why}.", hint="Make it smaller or simpler.", param=param)
