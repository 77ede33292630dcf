"""What templates want to read of a chat: each of these has the lines of a real one that are about calls, their results and thoughts."""

import hashlib
import json
from dataclasses import replace

import pytest

from node.core.errors import BadRequest
from node.text.chat_form import ChatForm
from node.text.tokenizer import Tokenizer
from tests.text.test_tokenizer import save, sentencepiece

MISTRAL = """{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
        {%- endfor %}
        {{- "]" }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}"""
MINISTRAL = """{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {%- if (message['content'] is none or message['content'] == '' or message['content']|length == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or message['tool_calls']|length == 0) %}
            {{- raise_exception('Assistant message must have a string or a list of chunks in content or a list of tool calls.') }}
        {%- endif %}
        {%- if message['content'] is string %}
            {{- message['content'] }}
        {%- elif message['content'] | length > 0 %}
            {{- message['content'][0]['text'] }}
        {%- endif %}
        {%- for tool in message['tool_calls'] or [] %}
            {{- '[TOOL_CALLS]' + tool['function']['name'] }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}"""
GPT_OSS = """{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "thinking" in message %}
            {%- if "<|channel|>analysis<|message|>" in message.thinking %}
                {{- raise_exception("You have passed a message containing <|channel|> tags in the thinking field.") }}
            {%- endif %}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {%- if message.content and message.thinking %}
                {{- raise_exception("Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in one or the other, but not both.") }}
            {%- elif message.content %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
            {%- elif message.thinking %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson + "<|call|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- endif -%}
{%- endfor -%}"""
KIMI = """{%- for message in messages -%}
  {%- set role_name =  message.get('name') or  message['role'] -%}
  {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
    <|tool_calls_section_begin|>
    {%- for tool_call in message['tool_calls'] -%}
      {%- set formatted_id = tool_call['id'] -%}
      <|tool_call_begin|>{{ formatted_id }}<|tool_call_argument_begin|>{% if tool_call['function']['arguments'] is string %}{{ tool_call['function']['arguments'] }}{% else %}{{ tool_call['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>
    {%- endfor -%}
    <|tool_calls_section_end|>
  {%- elif message['role'] == 'tool' -%}
    <|im_system|>{{role_name}}<|im_middle|>## Return of {{ message.tool_call_id }}
    {{- ': ' + message['content'] }}
  {%- endif -%}
{%- endfor -%}"""
DEEPSEEK = """{%- for message in messages %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- for tool in message['tool_calls']%}{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{{'<｜Assistant｜>' + message['content']}}{%- endif %}{%- endfor %}"""
FUNCTION_GEMMA = """{%- for message in messages -%}
    {%- if message['role'] == 'tool' -%}
        {%- if 'name' in message -%}
            {{ '<start_function_response>response:' + message['name'] + '{value:' + message['content'] + '}<end_function_response>' }}
        {%- else -%}
            {{ raise_exception("Invalid tool response: 'name' must be provided.") }}
        {%- endif -%}
    {%- endif -%}
{%- endfor -%}"""


def call(given, name="weather", arguments=None):
    return {
        "id": given,
        "type": "function",
        "function": {"name": name, "arguments": {"city": "Röm"} if arguments is None else arguments},
    }


def called(*calls, **more):
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **more}


def result(given, content="sunny"):
    return {"role": "tool", "tool_call_id": given, "content": content}


@pytest.fixture
def render(tmp_path):
    """The segments of a chat by a template, as a model's file has it."""

    def render(template, *messages):
        folder = save(sentencepiece("first"), tmp_path)
        (folder / "chat_template.jinja").write_text(template)
        return Tokenizer(folder).render(messages)

    return render


@pytest.fixture
def shown(render):
    return lambda template, *messages: "".join(segment.text for segment in render(template, *messages))


def test_an_id_is_as_long_as_a_template_demands(shown):
    short = hashlib.sha256(b"call_1").hexdigest()[:9]
    rendered = shown(MISTRAL, called(call("call_1"), call("abcDEF789")), result("call_1"), result("abcDEF789"))
    assert rendered.count(f'"id": "{short}"') == rendered.count(f'"call_id": "{short}"') == 1
    assert rendered.count('"id": "abcDEF789"') == rendered.count('"call_id": "abcDEF789"') == 1
    assert '"call_id": "' in shown(MISTRAL, result("call_of_a_message_that_was_left_out"))
    assert "d" * 10 in shown(MISTRAL.replace("!= 9", "!= 10"), called(call("d" * 10)))


def test_thoughts_and_text_beside_calls_are_joined_where_a_template_takes_only_either(shown):
    """Their name in it, `thinking`, comes from transformers."""
    analysis = "<|start|>assistant<|channel|>analysis<|message|>"
    assert shown(GPT_OSS, called(call("c"), reasoning_content="Hm.")).startswith(f"{analysis}Hm.<|end|>")
    both = called(call("c"), reasoning_content="Hm.", content="I look.")
    assert shown(GPT_OSS, both).startswith(f"{analysis}Hm.\n\nI look.<|end|>")
    assert shown(GPT_OSS, called(call("c"), reasoning_content="", content="I look.")).count(analysis) == 1
    final = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert "final<|message|>Yes." in shown(GPT_OSS, final, {"role": "user", "content": "x"})
    joins_none = "{% for message in messages %}{{ message.thinking }}|{{ message.content }}{% endfor %}"
    assert shown(joins_none, both) == "Hm.|I look."


def test_an_id_has_the_name_of_the_function_where_nothing_else_tells_it(shown):
    rendered = shown(
        KIMI,
        called(call("call_a"), call("call_b", "now", {})),
        result("call_b", "noon"),
        result("call_a"),
        called(call("call_a", "now")),  # some clients number the calls of each turn anew
        result("call_a", "one"),
        result("call_z", "?"),
    )
    begun = [part.partition("<|tool_call_argument_begin|>") for part in rendered.split("<|tool_call_begin|>")[1:]]
    assert [given for given, _, _ in begun] == ["functions.weather:0", "functions.now:1", "functions.now:2"]
    returned = [part.partition("<|")[0] for part in rendered.split("## Return of ")[1:]]
    told = ["functions.now:1: noon", "functions.weather:0: sunny", "functions.now:2: one", "call_z: ?"]
    assert [part.strip() for part in returned] == told
    named = KIMI.replace("{{ formatted_id }}", "{{ tool_call['function']['name'] }}")
    assert "## Return of call_a" in shown(named, called(call("call_a")), result("call_a"))


def test_arguments_are_texts_where_a_template_joins_them(shown):
    written = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Röm"}\n```<｜tool▁call▁end｜>'
    always = DEEPSEEK.replace("message['content'] is none", "message['tool_calls'] is defined")
    assert shown(always, called(call("c"), content="I look.")) == f"{written}<｜Assistant｜>I look."
    as_json = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert shown(as_json, called(call("c"))) == '{"city": "Röm"}'
    with pytest.raises(BadRequest, match="NoneType"):
        shown("{{ 'x' + none }}", called(call("c")))


def test_arguments_as_texts_become_no_control_tokens(render):
    typed = called(call("c", arguments={"city": "<|end|>"}))
    template = "<|end|>{{ 'x' + messages[0].tool_calls[0].function.arguments }}"
    segments = [(segment.text, segment.typed) for segment in render(template, typed)]
    assert segments == [("<|end|>", False), ('x{"city": "<|end|>"}', True)]


def test_a_template_in_code_gets_arguments_as_it_reads_them(tmp_path):
    directory = save(sentencepiece("first"), tmp_path)
    (directory / "chat_template.jinja").unlink()
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template_type": "deepseek_v32"}))
    chat = [{"role": "user", "content": "x"}, called(call("c"), reasoning_content="Hm."), result("c")]
    rendered = "".join(segment.text for segment in Tokenizer(directory).render(chat))
    assert 'parameter name="city" string="true">Röm</' in rendered


def test_calls_without_text_are_shown_where_a_template_wants_none_as_their_content(shown):
    written = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Röm"}\n```<｜tool▁call▁end｜>'
    assert shown(DEEPSEEK, called(call("c"))) == written
    assert shown(DEEPSEEK, called(call("c"), content="I look.")) == "<｜Assistant｜>I look."
    assert shown(DEEPSEEK, {"role": "assistant", "content": ""}) == "<｜Assistant｜>"
    assert shown(MINISTRAL, called(call("c"))) == "[TOOL_CALLS]weather"


def test_a_result_has_the_name_of_its_call(shown):
    chat = [called(call("c"), call("d", "now")), result("d", "noon"), result("c")]
    responses = ["now{value:noon}", "weather{value:sunny}"]
    begin, end = "<start_function_response>response:", "<end_function_response>"
    assert shown(FUNCTION_GEMMA, *chat) == "".join(f"{begin}{each}{end}" for each in responses)
    own = {**result("c"), "name": "own"}
    assert shown(FUNCTION_GEMMA, chat[0], own) == f"{begin}own{{value:sunny}}{end}"
    with pytest.raises(BadRequest, match="'name' must be provided"):
        shown(FUNCTION_GEMMA, result("c"))


def test_messages_are_left_as_they_were():
    chat = [called(call("call_1"), reasoning_content="Hm.", content="x"), result("call_1")]
    before = json.dumps(chat)
    form = ChatForm(either=True, named_ids=True)
    assert form.messages(chat) != chat
    assert json.dumps(chat) == before
    assert replace(form, named_ids=False).messages(chat)[1] == {**chat[1], "name": "weather"}


def test_a_template_is_searched_once():
    template = "{# developer #}" + MISTRAL
    assert ChatForm.of(template) is ChatForm.of(template)
