"""A sandbox's job: makes grammars, or takes finished ones, and tries them before the node compiles them.

llguidance recurses or computes forever for some grammars of a few bytes, which would end the node. The cost of a
grammar depends only on the grammar, the tokens and the limits, so a grammar that stays within the limits here does so
at a driver.
"""

import json
import os
import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from node.core.errors import BadRequest
from node.core.units import format_bytes
from node.host.memory import used_by
from node.text.call_form import CallForm
from node.text.grammar import Function, calls_grammar, form_grammar, json_grammar, spelled, text_grammar
from node.text.sandbox_server import Job

LIMITS = LLParserLimits(step_lexer_fuel=100_000, max_lexer_states=50_000, step_max_items=20_000, verbose_errors=False)
"""Limits of the computation for one token, some 20 ms at worst; other limits are llguidance's defaults."""
MAX_MEMORY = 32 * 2**20
"""Maximum bytes of a grammar, compiled and after some steps."""
MAX_FORCED = 4096
"""Maximum bytes of text that a grammar forces at a place: the model's tokenizer encodes all of it for each token."""
_STEPS = 64
_STACK = 2**20
"""Stack size in bytes, less than any thread of a node has: recursion that fits here fits there."""


def make_job() -> Job:
    """Create the job, with everything loaded."""
    tokenizer = LLTokenizer("byte")  # so that a grammar's cost does not depend on a model
    threading.stack_size(_STACK)

    def answer(request: bytes) -> bytes:
        with ThreadPoolExecutor(1) as thread:
            return json.dumps(thread.submit(_answer, tokenizer, json.loads(request)).result()).encode()

    # The first grammar takes additional memory, which must not count.
    answer(json.dumps({"schema": {}, "strict": True, "param": ""}).encode())
    return answer


def _answer(tokenizer: LLTokenizer, request: Mapping[str, Any]) -> dict[str, Any]:
    param = request.get("param")
    try:
        grammar = _make(request)
        return {"grammar": grammar, "memory": _try(tokenizer, grammar, param)}
    except BadRequest:
        raise
    except Exception as error:  # the root of this process's work
        what = f"{_where(param)} can't be followed: {type(error).__name__}: {error}"[:500]
        raise BadRequest(what, param=param) from error


def _make(request: Mapping[str, Any]) -> str:
    if "grammar" in request:
        return str(request["grammar"])
    if "schema" in request:
        return json_grammar(**request)
    if "kind" in request:
        return text_grammar(**request)
    functions = [Function(**each) for each in request["functions"]]
    form = CallForm(**request["form"]) if request["form"] else None
    if form and request["free"]:
        return form_grammar(functions, form, many=request["many"], param=request["param"])
    return calls_grammar(functions, many=request["many"], param=request["param"], answer=request["answer"], form=form)


def _try(tokenizer: LLTokenizer, grammar: str, param: str | None) -> int:
    """Bytes of the grammar. Raises BadRequest if it cannot be compiled and followed within the limits."""
    before = used_by(os.getpid())
    assert before, "else its growth would not be seen"
    matcher = LLMatcher(tokenizer, spelled(grammar), log_level=0, limits=LIMITS)
    choose = random.Random(0)  # noqa: S311 - any fixed path through the grammar
    for _ in range(_STEPS):
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            raise BadRequest(f"{_where(param)} can't be followed: {error_of(matcher)}", param=param)
        if (forced := len(matcher.compute_ff_bytes())) > MAX_FORCED:
            what = f"{_where(param)} forces a text of {forced:,} bytes; {MAX_FORCED:,} are the most."
            raise BadRequest(what, param=param)
        if matcher.is_stopped():
            break
        allowed = [token for token in range(tokenizer.vocab_size) if bits[token // 8] >> token % 8 & 1]
        matcher.consume_token(choose.choice(allowed))
    memory = used_by(os.getpid()) - before
    if memory > MAX_MEMORY:
        most = format_bytes(MAX_MEMORY)
        raise BadRequest(f"{_where(param)} takes {format_bytes(memory)} of memory; {most} are the most.", param=param)
    return max(0, memory)


def error_of(matcher: LLMatcher) -> str:
    """The first line of a matcher's error, 500 characters at most."""
    return str(matcher.get_error()).partition("\n")[0][:500]


def _where(param: str | None) -> str:
    return f"Invalid '{param}': the schema" if param else "The grammar"
