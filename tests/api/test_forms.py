"""The form of an answer by other servers' names: requests as vLLM's, llama.cpp's, SGLang's and outlines' clients send them."""

import json
import re

import pytest

from tests.api.conftest import MODEL

YES = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": False}
GBNF = 'root ::= "yes" | "no" ws\nws ::= " "*'
LARK = 'start: "yes" | "no"'


def grammar_of(server):
    return server.backend.requests[-1].grammar


async def ask(server, path="/v1/chat/completions", **given):
    prompt = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    return await server.post(path, {"model": MODEL, **prompt, **given})


JSON = [
    {"guided_json": YES},
    {"guided_json": json.dumps(YES)},
    {"structured_outputs": {"json": YES}},
    {"json_schema": YES},
    {"response_format": {"type": "json_object", "schema": YES}},
]


@pytest.mark.parametrize("given", JSON)
async def test_a_schema_by_any_name_makes_the_grammar_of_response_format(server, given):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": YES}}
    assert (await ask(server, response_format=form)).status == 200
    expected = grammar_of(server)
    assert (await ask(server, **given)).status == 200
    assert grammar_of(server) == expected
    assert "yes" in expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("given", "follows"),
    [
        ({"guided_regex": "[a-c]+d"}, "[a-c]+d"),
        ({"structured_outputs": {"regex": "[a-c]+d"}}, "[a-c]+d"),
        ({"regex": "[a-c]+d"}, "[a-c]+d"),
        ({"guided_choice": ["Rome", 'a "b"']}, 'start: "Rome" | "a \\"b\\""'),
        ({"structured_outputs": {"choice": ["Rome"]}}, 'start: "Rome"'),
        ({"guided_grammar": LARK}, LARK),
        ({"structured_outputs": {"grammar": LARK}}, LARK),
        ({"grammar": GBNF}, '"yes"'),
        ({"ebnf": GBNF}, '"yes"'),
        ({"structured_outputs": {"json_object": True}}, "object"),
    ],
)
async def test_a_text_is_followed(server, path, given, follows):
    assert (await ask(server, path, **given)).status == 200
    assert follows in json.dumps(grammar_of(server)) or follows in grammar_of(server)


@pytest.mark.parametrize(
    ("given", "param", "said"),
    [
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex"),
        ({"grammar": "root ::= nothing"}, "grammar", "grammar"),
        ({"guided_choice": []}, "guided_choice", "a list of texts"),
        ({"guided_choice": [1]}, "guided_choice", "a list of texts"),
        ({"regex": 5}, "regex", "a text"),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
        ({"guided_json": 5}, "guided_json", "JSON schema"),
        ({"structured_outputs": "x"}, "structured_outputs", "an object"),
        ({"guided_regex": "a", "grammar": GBNF}, "guided_regex", "can't both"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex", "can't both"),
    ],
)
async def test_a_wrong_one_is_named(server, given, param, said):
    found = await ask(server, **given)
    assert found.status == 400
    assert found.json["error"]["param"] == param
    assert said in found.json["error"]["message"]
    assert not server.backend.requests


@pytest.mark.parametrize(
    ("given", "off"),
    [
        ({"mirostat": 2}, {"mirostat": 0}),
        ({"typical_p": 0.5}, {"typical_p": 1.0}),
        ({"bad_words": ["x"]}, {"bad_words": []}),
        ({"use_beam_search": True}, {"use_beam_search": False}),
        ({"web_search_options": {}}, {"web_search_options": None}),
    ],
)
async def test_what_would_change_the_answer_is_refused_unless_it_is_off(server, given, off):
    found = await ask(server, **given)
    (name,) = given
    assert (found.status, found.json["error"]["code"], found.json["error"]["param"]) == (400, "unsupported", name)
    assert (await ask(server, **off)).status == 200


async def test_the_least_tokens_and_the_only_ones(server):
    """As lm-eval's and vLLM's clients send them."""
    assert (
        await ask(server, min_tokens=5, stop_token_ids=[7], allowed_token_ids=[7, 9, 11], max_tokens=8)
    ).status == 200
    made = server.backend.requests[-1].sampling
    assert (made.min_tokens, set(made.late), made.only) == (5, {7, *server.backend.model.tokenizer.eos}, (7, 9, 11))
    assert (await ask(server, min_tokens=0, allowed_token_ids=None)).status == 200
    made = server.backend.requests[-1].sampling
    assert (made.min_tokens, made.late, made.only) == (0, (), ())
    for given, param in (
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"allowed_token_ids": [10**8]}, "allowed_token_ids"),
        ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [7], "guided_regex": "a+"}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(16_385))}, "allowed_token_ids"),
    ):
        refused = await ask(server, **given)
        assert (refused.status, refused.json["error"]["param"]) == (400, param)


async def test_penalties_and_stop_tokens_by_other_names(server):
    assert (await ask(server, repeat_penalty=1.3, stop_token_ids=[7, 9])).status == 200
    made = server.backend.requests[-1]
    assert made.sampling.repetition_penalty == 1.3
    assert {7, 9} | server.backend.model.tokenizer.eos == made.stop_tokens
    found = await ask(server, stop_token_ids=[10**8])
    assert (found.status, found.json["error"]["param"]) == (400, "stop_token_ids")
    assert (await ask(server, peer_format={"schema": 1})).status == 200
    assert not grammar_of(server)


async def test_a_regular_expression_is_not_combined_with_tools(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    found = await ask(server, guided_regex="a", tools=[tool])
    assert found.status == 400
    assert re.search("'guided_regex' can't be combined with tools", found.json["error"]["message"])
