"""The tools of real coding agents: their schemas make grammars, and whatever these allow is valid for the schema.

`tests/data/tools` has the `tools` that each of them sends; its README.md says where they are from.
"""

import json
import random
from pathlib import Path

import jsonschema
import pytest

from api.chat.constraint import make_grammar
from api.chat.request import ChatRequest
from api.chat.schema import parse
from node.text.constraint import Constraints
from node.text.tokenizer import Tokenizer
from tests.api.conftest import DEMO, MODEL
from tests.api.test_chat import USER
from tests.text.test_constraint import constraints_of

SETS = {path.stem: json.loads(path.read_text()) for path in sorted(Path(__file__).parents[1].glob("data/tools/*.json"))}
EACH = [(name, tool["function"]["name"]) for name, tools in SETS.items() for tool in tools]
MOST_TOKENS = 3000


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(DEMO)


@pytest.fixture(scope="module")
def constraints(tokenizer):
    return constraints_of(DEMO, tokenizer.vocab_size)


class Drawn:
    """Draws answers from the tokens that a grammar allows; often one that ends a text, a list or an object, so that they end."""

    def __init__(self, tokenizer: Tokenizer, constraints: Constraints) -> None:
        self._tokenizer, self._constraints = tokenizer, constraints
        self._ending = {
            token
            for token in range(tokenizer.vocab_size)
            if token in tokenizer.eos or tokenizer.token_bytes(token)[:1] in (b'"', b"}", b"]")
        }

    def text(self, grammar: str, seed: int) -> str:
        choose, tokens = random.Random(seed), []
        constraint = self._constraints.begin(grammar)
        while len(tokens) < MOST_TOKENS:
            bits = constraint.allowed(tokens)
            assert bits is not None, constraint.error
            allowed = [8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]
            ending = [token for token in allowed if token in self._ending]
            tokens.append(choose.choice(ending if ending and choose.random() < 0.5 else allowed))
            if tokens[-1] in self._tokenizer.eos:
                return self._tokenizer.decode(tokens)
        raise AssertionError(f"no end after {MOST_TOKENS} tokens: {self._tokenizer.decode(tokens)[:500]}")


@pytest.fixture(scope="module")
def drawn(tokenizer, constraints):
    return Drawn(tokenizer, constraints)


def use_of(tools, choice, **more):
    """As a request with these tools is read."""
    body = {"model": MODEL, "messages": USER, "tools": tools, "tool_choice": choice, **more}
    return parse(ChatRequest, json.loads(json.dumps(body)))


def check(tools, name, arguments):
    schema = next(tool["function"].get("parameters", {}) for tool in tools if tool["function"]["name"] == name)
    jsonschema.validate(arguments, schema)


@pytest.mark.parametrize(("name", "function"), EACH)
async def test_a_named_function_gets_valid_arguments(grammars, drawn, name, function):
    named = {"type": "function", "function": {"name": function}}
    use = use_of(SETS[name], named).tool_use
    grammar = await make_grammar(grammars, use, None, "a")
    for seed in range(3):
        check(SETS[name], function, json.loads(drawn.text(grammar, seed)))


@pytest.mark.parametrize("name", SETS)
async def test_required_calls_are_of_the_tools(grammars, drawn, name):
    use = use_of(SETS[name], "required").tool_use
    grammar = await make_grammar(grammars, use, None, "a")
    for seed in range(5):
        for line in drawn.text(grammar, seed).split("\n"):
            call = json.loads(line)
            check(SETS[name], call["name"], call["arguments"])


@pytest.mark.parametrize("name", SETS)
async def test_tools_are_optional_or_beside_a_format(grammars, drawn, name):
    assert await make_grammar(grammars, use_of(SETS[name], "auto").tool_use, None, "a") == ""
    body = use_of(SETS[name], "auto", response_format={"type": "json_object"})
    grammar = await make_grammar(grammars, body.tool_use, body.response_format.json_format, "a")
    json.loads(drawn.text(grammar, 0).partition("\n")[0])


@pytest.mark.parametrize("name", SETS)
async def test_a_request_with_the_tools_is_answered(server, name):
    server.backend.model.context = 100_000
    response = await server.chat(tools=SETS[name], tool_choice="auto", parallel_tool_calls=True)
    assert response.status == 200
