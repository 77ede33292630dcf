"""Grammars for the gateway, and constraints for the driver. Nothing is compiled that no sandbox has compiled before."""

import asyncio
import json
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

from node.core.errors import BadRequest, ModelBroken, Overloaded
from node.core.pool import Pool
from node.core.units import format_bytes
from node.text.constraint import Constraint, Constraints
from node.text.grammar import EXACT, Function
from node.text.sandbox import Bounds, Sandboxes, SandboxFailed, SandboxServer
from node.text.sandboxed_encoder import start_tokenizer_sandbox

MOST_BYTES = 256 * 2**10
"""Of all names, texts and numbers of a request's schemas."""
MOST_VALUES = 20_000
"""JSON values in a request's schemas."""
MOST_LEVELS = 64
"""How deep these may be nested."""
MOST_TEXT = 2**20
"""Characters of a grammar."""
MOST_HELD = 2**30
"""Bytes that the grammars of all sessions at a node may take together."""
_LEAST_HELD = 4 * 2**20
"""Bytes that a session's grammar counts for at least, as following it takes memory, too."""
_MEMORY = 256 * 2**20
_AT_ONCE, _WAITING = 2, 64
_KEPT_TEXT = 64 * 2**10
"""Characters of the longest grammar that is kept for the next request with the same schemas."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Grammars:
    """Of a node; to be made inside a running loop. `start` has a sandbox ready, so that the first grammar is quick, too."""

    def __init__(self, server: SandboxServer, seconds: float = 2.0) -> None:
        """`seconds`: that a grammar may take to be made."""
        bounds = Bounds(seconds, _MEMORY, reply=16 * MOST_TEXT, kept=_LEAST_HELD)
        self._sandboxes = Sandboxes(server, "node.text.grammar_job:make_job", bounds, _AT_ONCE, _WAITING)
        self._server = server
        self._tokenizers_checked: set[Path] = set()
        """Directories of models whose tokenizers can be read within limits."""
        self._checking_tokenizer = asyncio.Lock()
        # One at a time: while it is compiled, a grammar takes many times the memory that it keeps.
        self._compiling = Pool("grammar", 1, 256, 30)
        self._made: LruCache[bytes, str] = LruCache(512)
        """Grammars by what was asked."""
        self._memory: LruCache[bytes, int] = LruCache(4096)
        """Of grammars that were proven, by their text."""
        self._held: weakref.WeakSet[Constraint] = weakref.WeakSet()
        self._beginning: list[int] = []
        """Bytes that each grammar takes which is being compiled."""

    async def start(self) -> None:
        """Raises NotReady when this machine can have no sandboxes: a node is of no use without."""
        await self._sandboxes.start()

    async def end(self) -> None:
        await self._sandboxes.end()

    @property
    def is_stuck(self) -> bool:
        return self._compiling.is_stuck()

    # --- for the gateway ----------------------------------------------------------------------------------------------

    async def json(self, schema: Mapping[str, Any], *, strict: bool, param: str) -> str:
        """A JSON text that the schema accepts. Raises BadRequest, naming `param`; Overloaded, NotReady."""
        return await self._make({"schema": schema, "strict": strict, "param": param})

    async def calls(
        self, functions: Sequence[Function], *, many: bool, param: str, answer: Mapping[str, Any] | None = None
    ) -> str:
        """Calls, or an answer; see `node.text.grammar.calls_grammar`. Raises as `json` does."""
        asked = [asdict(function) for function in functions]
        return await self._make({"functions": asked, "many": many, "param": param, "answer": answer})

    async def _make(self, request: Mapping[str, Any]) -> str:
        check(request, request["param"])
        data = json.dumps(request).encode()
        key = sha256(data).digest()
        if grammar := self._made.get(key):
            return grammar
        grammar = await self._prove(data, f"Invalid '{request['param']}': the schema", request["param"])
        if len(grammar) <= _KEPT_TEXT:
            self._made.put(key, grammar)
        return grammar

    # --- for the driver -----------------------------------------------------------------------------------------------

    async def begin(self, constraints: Constraints, grammar: str, generated: Sequence[int]) -> Constraint:
        """A session's constraint, to be closed with it. Raises BadRequest, ModelBroken, Overloaded, NotReady."""
        memory = max(_LEAST_HELD, await self._proven(grammar))
        await self._check_tokenizer(constraints.directory)
        held = [each.memory for each in self._held if each.memory] + self._beginning
        if sum(held) + memory > MOST_HELD:
            raise Overloaded(f"The grammars of {len(held)} requests take {format_bytes(sum(held))}.")
        self._beginning.append(memory)
        try:
            constraint = await self._compiling.run(constraints.begin, grammar, generated)
        finally:
            self._beginning.remove(memory)
        constraint.memory = memory
        self._held.add(constraint)
        return constraint

    async def _check_tokenizer(self, directory: Path) -> None:
        """Have a sandbox read a model's tokenizer before this process does; one at a time, as some take 0.5 GB."""
        async with self._checking_tokenizer:
            if directory in self._tokenizers_checked:
                return
            try:
                sandbox = await start_tokenizer_sandbox(self._server, directory)
            except SandboxFailed as error:
                raise ModelBroken(f"The tokenizer of {directory.name} can't be used: {error}.") from error
            sandbox.end()
            self._tokenizers_checked.add(directory)

    async def _proven(self, grammar: str) -> int:
        """The bytes that it takes. A grammar may come from another node."""
        if len(grammar) > MOST_TEXT:
            raise BadRequest(f"The grammar has {len(grammar):,} characters; {MOST_TEXT:,} are the most.")
        key = sha256(grammar.encode()).digest()
        if self._memory.get(key) is None:
            await self._prove(json.dumps({"grammar": grammar}).encode(), "The grammar", None)
        return self._memory.get(key) or 0

    async def _prove(self, request: bytes, what: str, param: str | None) -> str:
        try:
            reply = json.loads(await self._sandboxes.ask(request))
        except SandboxFailed as error:
            hint = "Make it smaller or simpler."
            raise BadRequest(f"{what} can't be followed: {error}.", hint=hint, param=param) from error
        if "error" in reply:
            raise BadRequest(reply["error"], param=reply["param"])
        grammar: str = reply["grammar"]
        self._memory.put(sha256(grammar.encode()).digest(), reply["memory"])
        return grammar


class LruCache(Generic[K, V]):
    """The values that were used last, `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


def check(schemas: Any, param: str) -> None:
    """Refuse what is too large or has numbers that are cut off where they are computed with. Raises BadRequest.

    Takes some milliseconds at most, however large the value is: it stops at the first limit.
    """
    values = size = 0
    level = [schemas]
    for _ in range(MOST_LEVELS + 1):
        values += len(level)
        if values > MOST_VALUES:
            raise _refused(param, f"has more than {MOST_VALUES:,} values")
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
                case int() | float() if not -EXACT - 1 <= value <= EXACT + 1:  # also what is no number
                    raise _refused(param, "has a number beyond ±2^53")
            if size > MOST_BYTES:
                raise _refused(param, f"is larger than {format_bytes(MOST_BYTES)}")
            if values + len(below) > MOST_VALUES:
                raise _refused(param, f"has more than {MOST_VALUES:,} values")
        if not below:
            return
        level = below
    raise _refused(param, f"is nested more than {MOST_LEVELS} levels deep")


def _refused(param: str, why: str) -> BadRequest:
    return BadRequest(f"Invalid '{param}': the schema {why}.", hint="Make it smaller or simpler.", param=param)
