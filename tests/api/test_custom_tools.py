"""Tools with free text for arguments: with a grammar or without, in chat and in Responses."""

import json
import re

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from api.chat.channels import Glyph
from api.chat.constraint import make_reader
from api.chat.custom_tools import INPUT, input_of
from tests.api.families import make
from tests.api.test_agent_tools import use_of
from tests.api.test_chat import MODEL, USER
from tests.api.test_responses import ask, events_of, kinds
from tests.api.test_strict_tools import BOUND, drawn, families, fits, grammar_of, grammars
from tests.strict import ChatChunk, strictly
from tests.text.test_constraint import DEMO, constraints_of

__all__ = ["families", "grammars"]  # fixtures

PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Of codex's `apply_patch`."""
TEXT = '*** Begin Patch\n*** Update File: a.py\n@@ def f():\n-    return "a\\n"}\n+    return {"a": 大}\n*** End Patch'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def grammar(definition, syntax="lark"):
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def custom(name, form=None):
    return {"type": "custom", "custom": {"name": name, "description": "Does it.", **({"format": form} if form else {})}}


APPLY = custom("apply_patch", grammar(PATCH))
NOTE = custom("note", {"type": "text"})
DATE = custom("date", grammar(r"[0-9]{4}-[0-9]{2}/[0-9]{2}", "regex"))
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
NAMED = {"type": "custom", "custom": {"name": "apply_patch"}}
BY_FORM = f'<tool_call>\n{{"name": "apply_patch", "arguments": {TEXT}</tool_call>'
AS_FUNCTION = '<tool_call>\n{"name": "note", "arguments": {"input": "so \\"it\\" is"}}\n</tool_call>'


@pytest.fixture(scope="module")
def constraints(tokenizer):
    return constraints_of(DEMO, tokenizer.vocab_size)


def joined(chunks):
    calls = {}
    for chunk in chunks:
        strictly(ChatChunk, chunk)
        for delta in chunk["choices"][0]["delta"].get("tool_calls", []):
            if delta["index"] not in calls:
                assert set(delta) == {"index", "id", "type", delta["type"]}
                calls[delta["index"]] = {name: delta[name] for name in ("id", "type", delta["type"])}
            else:
                whole = calls[delta["index"]]
                for name, piece in delta[whole["type"]].items():
                    whole[whole["type"]][name] += piece
    return list(calls.values())


@pytest.mark.parametrize(
    ("choice", "tools", "text", "name", "said"),
    [
        (NAMED, [WEATHER, APPLY], TEXT, "apply_patch", TEXT),
        ("required", [APPLY], TEXT, "apply_patch", TEXT),
        ("required", [WEATHER, APPLY], f'{{"name": "apply_patch", "arguments": {TEXT}', "apply_patch", TEXT),
        ("required", [NOTE, WEATHER], '{"name": "note", "arguments": ', "note", ""),
        ({"type": "custom", "custom": {"name": "note"}}, [NOTE], "", "note", ""),
        ("auto", [WEATHER, APPLY], BY_FORM, "apply_patch", TEXT),
        (None, [APPLY, NOTE], BY_FORM, "apply_patch", TEXT),
        (None, [WEATHER, NOTE], AS_FUNCTION, "note", 'so "it" is'),
    ],
)
async def test_calls_plain_and_streamed(server, constraints, choice, tools, text, name, said):
    server.backend.say(text)
    one = {"parallel_tool_calls": False} if choice == "required" and tools == [APPLY] else {}
    answer = (await server.chat(tools=tools, tool_choice=choice, **one)).json
    strictly(ChatCompletion, answer)
    (plain,) = answer["choices"]
    assert plain["finish_reason"] == "tool_calls"
    (made,) = plain["message"]["tool_calls"]
    assert made == {"id": made["id"], "type": "custom", "custom": {"name": name, "input": said}}
    assert made["id"].startswith("call_")
    if bound := server.backend.requests[-1].grammar:
        assert fits((server.backend.model.tokenizer, constraints), bound, text)
        assert fits((server.backend.model.tokenizer, constraints), bound, text.replace("***", "**")) == (
            "***" not in text
        )
    chunks = (await server.chat(tools=tools, tool_choice=choice, **one, stream=True)).events
    (streamed,) = joined(chunks)
    assert {**streamed, "id": made["id"]} == made
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_call_of_a_function_beside_a_custom_tool(server):
    for choice, text in (("required", f"{ROME}\n{ROME}"), ("auto", f"<tool_call>\n{ROME}\n</tool_call>" * 2)):
        server.backend.say(text)
        (plain,) = (await server.chat(tools=[APPLY, WEATHER], tool_choice=choice)).json["choices"]
        assert [made["function"]["name"] for made in plain["message"]["tool_calls"]] == ["weather"] * 2


async def test_a_call_that_is_cut_off(server):
    server.backend.say(f'{{"name": "apply_patch", "arguments": {TEXT}')
    (plain,) = (await server.chat(tools=[APPLY, WEATHER], tool_choice="required", max_tokens=40)).json["choices"]
    assert plain["finish_reason"] == "length"
    (made,) = plain["message"]["tool_calls"]
    assert TEXT.startswith(made["custom"]["input"])


def test_the_input_of_a_call_that_is_cut_anywhere():
    whole = json.dumps({INPUT: 'a "text"\n'})
    found = [input_of(whole[:end], ended=False) for end in range(len(whole) + 1)]
    assert found == sorted(found, key=len)
    assert all('a "text"\n'.startswith(each) for each in found)
    assert found[-1] == 'a "text"\n'
    assert input_of('{"a": 1}', ended=True) == '{"a": 1}'


async def test_the_model_sees_a_function_with_one_text(server, tokenizer):
    await server.chat(tools=[APPLY, NOTE])
    said = f"The input of the tool, which follows this grammar in Lark's syntax:\n{PATCH}"
    functions = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Does it.",
                "parameters": {
                    "type": "object",
                    "properties": {"input": {"type": "string", "description": what}},
                    "required": ["input"],
                },
            },
        }
        for name, what in (("apply_patch", said), ("note", "The input of the tool."))
    ]
    assert list(server.backend.requests[-1].prompt) == tokenizer.encode_chat(
        [{"role": "user", "content": "Hello"}], functions
    )


async def test_calls_and_their_outputs_go_back(server):
    """As those of a function with one text."""
    calls = (
        {"id": "call_1", "type": "custom", "custom": {"name": "note", "input": 'so "it" is'}},
        {"id": "call_1", "type": "function", "function": {"name": "note", "arguments": '{"input": "so \\"it\\" is"}'}},
    )
    for call in calls:
        result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "done"}]}
        history = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
        body = {"model": MODEL, "messages": history, "tools": [NOTE]}
        assert (await server.post("/v1/chat/completions", body)).status == 200
    one, other = server.backend.requests
    assert one.prompt == other.prompt
    item = {"type": "custom_tool_call", "call_id": "call_1", "name": "note", "input": 'so "it" is'}
    output = {
        "type": "custom_tool_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_text", "text": "done"}],
    }
    user = {"role": "user", "content": "Hello"}
    assert (await ask(server, [user, item, output], tools=[flat(NOTE)])).status == 200
    assert server.backend.requests[-1].prompt == one.prompt


def around(tokenizer, name):
    """What comes before the text of a call of `date` in the family's form, and behind it."""
    call, form = BOUND[name].call, tokenizer.call_form
    parts = (*form.stop, *form.unquote, *form.tail, *form.end)
    closing = "".join(tokenizer.spell([each]) for each in parts if isinstance(each, int))
    if form.value:
        of_text = tokenizer.dialect.form
        opening = "".join(of_text.opening).replace("{number}", "3").replace("{kind}", "string")
        return f"{of_text.mark}{of_text.head}date{opening}", closing
    start = call[: call.index("{", call.index("arguments") if "arguments" in call else 0)]
    return start.replace("weather", "date"), closing if name in ("qwen", "kimi k2") else ""


@pytest.mark.parametrize("name", BOUND)
async def test_a_call_that_a_model_may_make_is_bound(families, grammars, name):
    """In the form of each family, up to the end of the answer or the tokens that close a call."""
    tokenizer, _ = families[name]
    made = await grammar_of(grammars, tokenizer, WEATHER, DATE)
    family = BOUND[name].call
    start, end = around(tokenizer, name)
    for before in ("", "Let me see. "):
        assert fits(families[name], made, f"{before}{start}2026-11/27{end}")
        assert not fits(families[name], made, f"{before}{start}2026-11-27{end}")
        assert not fits(families[name], made, f"{before}{start}2026-11/27{end} more")
    assert fits(families[name], made, family)
    begin = tokenizer.encode(start, bos=False)
    for seed in range(3):
        written = tokenizer.spell(drawn(families[name], made, begin, seed)[len(begin) :])
        assert re.fullmatch(r"[0-9]{4}-[0-9]{2}/[0-9]{2}", written.removesuffix(end))


@pytest.mark.parametrize("name", BOUND)
async def test_a_bound_call_is_read(server, tmp_path, name):
    server.backend.model.tokenizer = make(BOUND[name], tmp_path)
    start, end = around(server.backend.model.tokenizer, name)
    server.backend.say(f"{start}2026-11/27{end}")
    (plain,) = (await server.chat(tools=[WEATHER, DATE])).json["choices"]
    (made,) = plain["message"]["tool_calls"]
    assert made["custom"] == {"name": "date", "input": "2026-11/27"}
    assert not plain["message"]["content"]


@pytest.mark.parametrize("name", BOUND)
async def test_a_text_may_end_with_what_spells_the_tokens_of_its_end(families, grammars, name):
    tokenizer, _ = families[name]
    end = tokenizer.call_form.stop or tokenizer.call_form.unquote
    text = "a" + (tokenizer.call_form.text_end if any(isinstance(piece, int) for piece in end) else "")
    reader = make_reader(
        use_of([WEATHER, DATE], "auto").tool_use, await grammar_of(grammars, tokenizer, WEATHER, DATE), tokenizer, ()
    )
    start, closing = around(tokenizer, name)
    symbols = [*tokenizer.symbols(start), *text, *tokenizer.symbols(closing)]
    parts = reader.push(Glyph(symbol, place) for place, symbol in enumerate(symbols))
    parts.add(reader.finish())
    assert [(call.name, call.arguments) for call in parts.calls] == [("date", text)]
    assert not parts.text


# --- Responses ---


def flat(tool):
    """The tool as Responses write it."""
    given = dict(tool["custom"])
    if given.get("format", {}).get("type") == "grammar":
        given["format"] = {"type": "grammar", **given["format"]["grammar"]}
    return {"type": "custom", **given}


SHELL = {
    "type": "function",
    "name": "shell",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}},
}
CODEX = {"tools": [SHELL, flat(APPLY), {"type": "web_search"}], "store": False, "parallel_tool_calls": False}
"""What codex sends beside the input."""


@pytest.mark.parametrize(
    ("choice", "text"), [("auto", f"I patch.{BY_FORM}"), ({"type": "custom", "name": "apply_patch"}, TEXT)]
)
async def test_responses_plain_and_streamed(server, choice, text):
    server.backend.say(text)
    body = {**CODEX, "tool_choice": choice}
    plain = strictly(Response, (await ask(server, **body)).json)
    made = plain.output[-1]
    assert (made.type, made.name, made.input) == ("custom_tool_call", "apply_patch", TEXT)
    assert made.call_id.startswith("call_")
    assert [tool.type for tool in plain.tools] == ["function", "custom", "web_search"]
    events = events_of(await ask(server, **body, stream=True))
    assert kinds(events)[-3:] == ["custom_tool_call_input.done", "output_item.done", "completed"]
    last = events[-1]["response"]["output"][-1]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == events[-3]["input"] == last["input"] == TEXT


async def test_a_custom_call_that_is_cut_is_not_whole_in_responses(server):
    server.backend.say(TEXT)
    named = {"type": "custom", "name": "apply_patch"}
    response = (await ask(server, **{**CODEX, "tool_choice": named}, max_output_tokens=5)).json
    (made,) = response["output"]
    assert (response["status"], made["type"], made["status"]) == ("incomplete", "custom_tool_call", "incomplete")
    assert made["input"]
    assert TEXT.startswith(made["input"])


async def test_a_conversation_with_custom_calls_goes_on(server, tokenizer):
    server.backend.say(BY_FORM)
    first = (await ask(server, tools=[flat(APPLY)])).json
    (made,) = first["output"]
    output = {"type": "custom_tool_call_output", "call_id": made["call_id"], "output": "Success"}
    server.backend.say("Done.")
    second = await ask(server, [output], tools=[flat(APPLY)], previous_response_id=first["id"])
    assert second.json["output"][0]["content"][0]["text"] == "Done."
    again = await ask(server, [{"role": "user", "content": "Hello"}, made, output], tools=[flat(APPLY)])
    assert again.status == 200
    assert len({request.prompt for request in server.backend.requests[1:]}) == 1
    text = tokenizer.spell(server.backend.requests[-1].prompt)
    assert json.dumps({"input": TEXT}, ensure_ascii=False) in text
    items = (await server.http.get(f"{server.url}/v1/responses/{second.json['id']}/input_items")).status
    assert items == 200


@pytest.mark.parametrize(
    "definition",
    [
        "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "start: r0\n" + "\n".join(f"r{number}: r{number + 1} r{number + 1}" for number in range(2000)) + '\nr2000: "a"',
        'start: "' + "a" * 9000 + '"',
        'start: "a"\n}\nstart: "b"',
        "start: @other",
        "start: nothing",
    ],
)
async def test_a_hostile_grammar_is_refused_and_harms_nobody(server, definition):
    for choice, tools in (
        ("required", [custom("f", grammar(definition))]),
        ("auto", [WEATHER, custom("f", grammar(definition))]),
    ):
        refused = await server.chat(tools=tools, tool_choice=choice)
        where = f"tools[{len(tools) - 1}].custom.format.grammar.definition"
        assert (refused.status, refused.error["param"]) == (400, where)
        assert "can't be followed: " in refused.error["message"] or "forces a text" in refused.error["message"]
    server.backend.say(TEXT)
    assert (await server.chat(tools=[APPLY], tool_choice=NAMED)).status == 200
