"""The form of an answer by other servers' names: requests as vLLM's, llama.cpp's, SGLang's and outlines' clients send them."""

import json
import re

import pytest

from tests.api.conftest import MODEL

YES = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": False}
SUMS = '?start: number ("+" number)~1..3\nnumber: /[1-9][0-9]?/'
"""Its first rule is inlined, as in the examples of Lark."""
GBNF = 'root ::= "yes" | "no" ws\nws ::= " "*'
LARK = 'start: "yes" | "no"'


def grammar_of(server):
    return server.backend.requests[-1].grammar


ASKED = {"messages": [{"role": "user", "content": "a"}]}
PROMPTS = {
    "/v1/chat/completions": ASKED,
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {**ASKED, "max_tokens": 50},
}
CHATS = [path for path in PROMPTS if path != "/v1/completions"]


async def ask(server, path="/v1/chat/completions", **given):
    return await server.post(path, {"model": MODEL, **PROMPTS[path], **given})


def names(found, param, path="/v1/chat/completions"):
    """Whether a refusal names the parameter: Anthropic's errors do in their words only."""
    error = found.json["error"]
    return found.status == 400 and (
        f"'{param}'" in error["message"] if path == "/v1/messages" else error["param"] == param
    )


JSON = [
    {"guided_json": YES},
    {"guided_json": json.dumps(YES)},
    {"structured_outputs": {"json": YES}},
    {"json_schema": YES},
    {"response_format": {"type": "json_object", "schema": YES}},
]


@pytest.mark.parametrize(
    ("path", "given"),
    [(path, given) for path in CHATS for given in JSON if path == CHATS[0] or "response_format" not in given],
)
async def test_a_schema_by_any_name_makes_the_grammar_of_response_format(server, path, given):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": YES}}
    assert (await ask(server, response_format=form)).status == 200
    expected = grammar_of(server)
    assert (await ask(server, path, **given)).status == 200
    assert grammar_of(server) == expected
    assert "yes" in expected


@pytest.mark.parametrize("path", PROMPTS)
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
        ({"structured_outputs": {"grammar": SUMS}}, SUMS),  # as outlines sends it to vLLM, and to SGLang
        ({"ebnf": SUMS}, SUMS),
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
    ("path", "beside"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "text"}}),
        ("/v1/responses", {"text": {"format": {"type": "text"}}}),
        ("/v1/messages", {"thinking": {"type": "adaptive"}}),
    ],
)
async def test_what_demands_no_form_stands_beside_one(server, path, beside):
    assert (await ask(server, path, guided_regex="[a-c]+d", **beside)).status == 200
    assert "[a-c]+d" in grammar_of(server)
    assert server.backend.requests[-1].thinking is None


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": YES}}}),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": YES}}}),
    ],
)
async def test_two_forms_are_refused_in_each_dialect(server, path, beside):
    assert names(await ask(server, path, guided_regex="a", **beside), "guided_regex", path)
    assert names(await ask(server, path, guided_regex="a", grammar=GBNF), "guided_regex", path)
    assert names(await ask(server, path, guided_regex="(a"), "guided_regex", path)


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize(
    ("given", "off"),
    [
        ({"mirostat": 2}, {"mirostat": 0}),
        ({"typical_p": 0.5}, {"typical_p": 1.0}),
        ({"bad_words": ["x"]}, {"bad_words": []}),
        ({"stop_regex": "and|or"}, {"stop_regex": []}),
        ({"use_beam_search": True}, {"use_beam_search": False}),
        ({"no_stop_trim": True}, {"no_stop_trim": False}),
        ({"return_token_ids": True}, {"return_token_ids": False}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": True}),
        ({"truncate_prompt_tokens": 4}, {"truncate_prompt_tokens": -1}),
        ({"prompt_logprobs": 0}, {"prompt_logprobs": None}),
        ({"web_search_options": {}}, {"web_search_options": None}),
    ],
)
async def test_what_would_change_the_answer_is_refused_unless_it_is_off(server, path, given, off):
    found = await ask(server, path, **given)
    (name,) = given
    assert names(found, name, path)
    assert path == "/v1/messages" or found.json["error"]["code"] == "unsupported"
    assert (await ask(server, path, **off)).status == 200


@pytest.mark.parametrize("path", CHATS)
async def test_the_least_tokens_and_the_only_ones(server, path):
    """As lm-eval's and vLLM's clients send them."""
    most = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 50}
    few = dict.fromkeys(most, 8)

    async def ask(server, **given):
        return await server.post(path, {"model": MODEL, **PROMPTS[path], **most, **given})

    assert (await ask(server, min_tokens=5, stop_token_ids=[7], allowed_token_ids=[7, 9, 11], **few)).status == 200
    made = server.backend.requests[-1].sampling
    assert (made.min_tokens, set(made.late), made.only) == (5, {7, *server.backend.model.tokenizer.eos}, (7, 9, 11))
    assert (await ask(server, min_tokens=0, allowed_token_ids=None)).status == 200
    made = server.backend.requests[-1].sampling
    assert (made.min_tokens, made.late, made.only) == (0, (), ())
    for given, param in (
        ({"min_tokens": 9, **few}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"allowed_token_ids": [10**8]}, "allowed_token_ids"),
        ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}, "allowed_token_ids"),
        ({"allowed_token_ids": [7], "guided_regex": "a+"}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(16_385))}, "allowed_token_ids"),
    ):
        assert names(await ask(server, **given), param, path)


@pytest.mark.parametrize("path", CHATS)
async def test_penalties_and_stop_tokens_by_other_names(server, path):
    assert (await ask(server, path, repeat_penalty=1.3, stop_token_ids=[7, 9])).status == 200
    made = server.backend.requests[-1]
    assert made.sampling.repetition_penalty == 1.3
    assert {7, 9} | server.backend.model.tokenizer.eos == made.stop_tokens
    assert names(await ask(server, path, stop_token_ids=[10**8]), "stop_token_ids", path)
    assert (await ask(server, path, peer_format={"schema": 1})).status == 200
    assert not grammar_of(server)


async def test_a_regular_expression_is_not_combined_with_tools(server):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    found = await ask(server, guided_regex="a", tools=[tool])
    assert found.status == 400
    assert re.search("'guided_regex' can't be combined with tools", found.json["error"]["message"])


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("name", ["grammar", "regex", "guided_regex", "ebnf"])
async def test_a_text_that_is_empty_is_no_form(server, path, name):
    """SillyTavern sends `grammar` as one if nothing is set."""
    found = await ask(server, path, **{name: ""})
    assert found.status == 200, found.text
    assert not grammar_of(server)


async def test_completions_follow_response_format(server):
    """As vLLM's do."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": YES}}
    assert (await ask(server, response_format=form)).status == 200
    expected = grammar_of(server)
    assert (await ask(server, "/v1/completions", response_format=form)).status == 200
    assert grammar_of(server) == expected
    assert names(await ask(server, "/v1/completions", response_format=form, regex="a"), "regex", "/v1/completions")


@pytest.mark.parametrize(("path", "own"), [("/v1/responses", "text.format"), ("/v1/messages", "output_config.format")])
async def test_other_dialects_name_their_own_instead(server, path, own):
    found = await ask(server, path, response_format={"type": "json_object"})
    assert names(found, "response_format", path)
    assert f"it is {own} in this API" in found.json["error"]["message"]
