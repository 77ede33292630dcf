"""Tokenizers and chat templates of strangers: each is used, or refused as broken within limits."""

import asyncio
import json
import random
import re
import shutil
import threading
import time
from dataclasses import replace

import pytest

from node.core.errors import BadRequest, ContextExceeded, ModelBroken, ModelChanged, Overloaded
from node.core.pool import Pool
from node.text import sandboxed_encoder as limits
from node.text.sandboxed_encoder import SandboxedEncoder, TokenizerProcesses
from tests.text.test_chat_form import DEEPSEEK, MISTRAL, called, result
from tests.text.test_chat_form import call as call_of
from tests.text.test_constraint import DEMO

MB = 2**20
HELLO = [{"role": "user", "content": "Hello <|im_end|> there"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% if b > 99999 %}x{% endif %}{% endfor %}{% endfor %}"
DOUBLING = (
    "{% set ns = namespace(x='x' * 1024) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
)


@pytest.fixture
def files(tmp_path):
    """Write the demo model's small files, some of them changed: JSON, text, or a function of the original JSON."""

    def files(**changed):
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO / name, tmp_path)
        shutil.copy(DEMO / "chat_template.jinja", tmp_path)
        for key, change in changed.items():
            name = "chat_template.jinja" if key == "template" else f"{key}.json"
            if callable(change):
                content = json.loads((tmp_path / name).read_text())
                change(content)
                (tmp_path / name).write_text(json.dumps(content))
            else:
                (tmp_path / name).write_bytes(change if isinstance(change, bytes) else change.encode())
        return tmp_path

    return files


@pytest.fixture
async def opened(sandbox_server):
    made = []

    async def opened(directory):
        processes = TokenizerProcesses(sandbox_server, directory, Pool("text", 2, 10))
        made.append(processes)
        await processes.open()
        return SandboxedEncoder(processes, "a")

    yield opened
    for processes in made:
        await processes.close()


async def test_tokens_are_those_of_the_tokenizer(opened):
    encoder = await opened(DEMO)
    tokenizer = encoder.tokenizer
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for messages in (HELLO, [*HELLO, {"role": "assistant", "content": "Well, I"}]):
        for given in (None, tools):
            expected = tokenizer.encode_chat(messages, given)
            assert await encoder.encode_chat(messages, given, {}, context=2048) == expected
    assert await encoder.encode("Hello <|im_end|> äöü", context=2048, param="x") == tokenizer.encode(
        "Hello <|im_end|> äöü"
    )
    pieces = [("<|im_start|>", False), ("Hi <|im_end|>", True)]
    assert await encoder.encode_pieces(pieces, context=2048) == tokenizer.encode_pieces(pieces)
    assert await encoder.encode("", context=2048, param="x") == tokenizer.encode("")
    expected = tokenizer.encode_prediction("Hello <|im_end|> there")
    assert await encoder.encode_prediction("Hello <|im_end|> there", most=2048) == expected
    assert await encoder.encode_prediction("", most=2048) == []


async def test_what_a_person_typed_is_no_control_token_there_either(opened):
    encoder = await opened(DEMO)
    control = encoder.tokenizer.control_strings[0].text
    plain = await encoder.encode_chat([{"role": "user", "content": "x"}], None, {}, context=2048)
    typed = await encoder.encode_chat([{"role": "user", "content": f"x{control}"}], None, {}, context=2048)
    count = [[token in encoder.tokenizer.control for token in tokens].count(True) for tokens in (plain, typed)]
    assert count[0] == count[1] > 0


async def test_a_text_far_longer_than_the_context_is_refused_before_anything_is_made_of_it(opened):
    encoder = await opened(DEMO)
    most = 100 * encoder.tokenizer.max_token_chars
    begun = time.monotonic()
    for asked in (
        lambda text: encoder.encode(text, context=100, param="prompt"),
        lambda text: encoder.encode_pieces([(text, True)], context=100),
        lambda text: encoder.encode_chat([{"role": "user", "content": text}], None, {}, context=100),
    ):
        with pytest.raises(
            ContextExceeded, match=rf"context length is 100 tokens.* {30 * MB}|{30 * MB + 1}|\d{{8}} char"
        ):
            await asked("x" * 30 * MB)
        with pytest.raises(ContextExceeded, match=r"context length is 100 tokens, but the text has \d+ tokens"):
            await asked("x" * (most // 2))
        assert await asked("x")
    assert time.monotonic() - begun < 60


async def test_an_error_says_how_much_of_a_long_chat_are_tools(opened):
    encoder = await opened(DEMO)
    chat = [{"role": "user", "content": "Hello"}]
    tools = [{"type": "function", "function": {"name": f"tool_{k}", "description": "a " * 30}} for k in range(8)]
    alone = len(await encoder.encode_chat(chat, None, {}, context=300))
    with pytest.raises(ContextExceeded) as caught:
        await encoder.encode_chat(chat, tools, {}, context=300)
    said = r"is 300 tokens, but the text has (\d+) tokens, of which (\d+) are its 8 tools\."
    whole, of_tools = map(int, re.findall(said, str(caught.value))[0])
    assert whole > 300
    assert whole - of_tools == alone
    # So many that they are not even made into tokens.
    with pytest.raises(ContextExceeded) as caught:
        await encoder.encode_chat(chat, tools, {}, context=50)
    said = r"but the text has (\d+) characters, of which (\d+) are its 8 tools\."
    whole, of_tools = map(int, re.findall(said, str(caught.value))[0])
    assert whole > 50 * encoder.tokenizer.max_token_chars
    assert whole - of_tools < 50


async def test_a_prediction_is_cut_before_anything_is_made_of_it(opened):
    encoder = await opened(DEMO)
    words = "one two three " * 100
    assert await encoder.encode_prediction(words, most=5) == encoder.tokenizer.encode_prediction(words)[:5]
    assert await encoder.encode_prediction(words, most=0) == []
    begun = time.monotonic()
    assert len(await encoder.encode_prediction("x" * 30 * MB, most=100)) == 100
    cut = await encoder.encode(words, context=5, param="x", truncate=True)
    assert cut == encoder.tokenizer.encode(words)[:5]
    assert len(await encoder.encode("x" * 30 * MB, context=100, param="x", truncate=True)) == 100
    assert await encoder.encode("Hi", context=100, param="x", truncate=True) == encoder.tokenizer.encode("Hi")
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(("template", "shown"), [(MISTRAL, '"call_id": "'), (DEEPSEEK, '{"city": "Röm"}')])
async def test_calls_and_results_are_in_the_form_of_the_template(opened, files, template, shown):
    encoder = await opened(files(template=template))
    chat = [called(call_of("call_1")), result("call_1")]
    assert shown in encoder.tokenizer.decode(await encoder.encode_chat(chat, None, {}, context=2048))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        pytest.param(LOOP, "it took more than 2 s", marks=pytest.mark.slow),
        (DOUBLING, "MemoryError|memory|context length"),
        ("{{ 'x' * 10 ** 12 }}", "MemoryError|memory"),
    ],
)
async def test_a_template_without_end_is_a_broken_model_and_the_next_request_is_answered(
    opened, files, monkeypatch, template, reason
):
    monkeypatch.setattr(limits, "BOUNDS", replace(limits.BOUNDS, seconds=2.0, memory=512 * MB))
    encoder = await opened(files(template="{% if messages[0].content == 'harm' %}" + template + "{% endif %}ok"))
    for _ in range(2):
        with pytest.raises((ModelBroken, BadRequest), match=reason):
            await encoder.encode_chat([{"role": "user", "content": "harm"}], None, {}, context=2048)
        assert encoder.tokenizer.decode(await encoder.encode_chat(HELLO, None, {}, context=2048)) == "ok"


async def test_a_template_that_takes_exponential_time_to_be_compiled(opened, files, monkeypatch):
    monkeypatch.setattr(limits, "BOUNDS", replace(limits.BOUNDS, seconds=2.0, memory=512 * MB))
    encoder = await opened(
        files(template="{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}" + "{{ 2 ** 2 ** 2 ** 99 ** 99 }}")
    )
    with pytest.raises((ModelBroken, BadRequest)):
        await encoder.encode_chat(HELLO, None, {}, context=2048)
    assert await encoder.encode("x", context=10, param="x")


def pattern(regex):
    return lambda content: content.update(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
    )


def doubling(content):
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
    }


@pytest.mark.parametrize(
    "broken",
    [
        {"tokenizer": ""},
        {"tokenizer": "{"},
        {"tokenizer": "[]"},
        {"tokenizer": "null"},
        {"tokenizer": '{"version": "1.0"}'},
        {"tokenizer": b"\xff\xfe\x00"},
        {"tokenizer": "[" * 100_000},
        {"tokenizer": pattern("(a+)+$(?<!x)((((")},
        {"tokenizer": lambda content: content["model"].update(type="Nothing")},
        {"tokenizer": lambda content: content["model"].update(vocab=[])},
        {"tokenizer": lambda content: content.update(added_tokens=5)},
        {"tokenizer_config": "{"},
        {"tokenizer_config": "[]"},
        {"tokenizer_config": "5"},
        {"tokenizer_config": lambda content: content.update(chat_template_type="no_such_type")},
        {"tokenizer_config": lambda content: content.update(tool_parser_type="no_such_type")},
        {"tokenizer_config": lambda content: content.update(tokenizer_class=5)},
        {"tokenizer_config": lambda content: content.update(eos_token=[1, 2])},
        {"generation_config": "["},
        {"generation_config": "[]"},
        {"generation_config": '{"eos_token_id": {"a": []}}'},
        {"generation_config": '{"eos_token_id": 1000000000000000000000000000000}'},
        {"template": "x" * (2**18 + 1)},
        {"template": b"\xff\xfe"},
        pytest.param({"tokenizer": doubling}, marks=pytest.mark.slow),
    ],
)
async def test_files_that_can_not_be_used_are_a_broken_model(opened, files, broken, monkeypatch):
    monkeypatch.setattr(limits, "BOUNDS", replace(limits.BOUNDS, memory=512 * MB))
    with pytest.raises(ModelBroken) as refused:
        await opened(files(**broken))
    assert len(refused.value.message) < 800


async def test_a_regular_expression_without_end_is_a_broken_model(opened, files):
    """The tokenizer panics, in its first test or with a certain text."""
    with pytest.raises(ModelBroken, match="tokenizer failed"):
        await opened(files(tokenizer=pattern("(a+)+b")))
    encoder = await opened(files(tokenizer=pattern("(z+)+b")))
    for _ in range(2):
        with pytest.raises(ModelBroken, match="tokenizer failed"):
            await encoder.encode("z" * 5000 + "c", context=2048, param="x")
    with pytest.raises(ModelBroken, match="tokenizer failed"):
        encoder.tokenizer.encode("z" * 5000 + "c")
    assert await encoder.encode("Hi", context=10, param="x")


async def test_a_template_without_end_whose_client_has_gone_harms_nobody_else(opened, files, monkeypatch):
    monkeypatch.setattr(limits, "BOUNDS", replace(limits.BOUNDS, seconds=1.0, memory=512 * MB))
    encoder = await opened(files(template="{% if messages[0].content == 'harm' %}" + LOOP + "{% endif %}ok"))
    asking = asyncio.create_task(encoder.encode_chat([{"role": "user", "content": "harm"}], None, {}, context=2048))
    await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.wait([asking])
    assert encoder.tokenizer.decode(await encoder.encode_chat(HELLO, None, {}, context=2048)) == "ok"


async def test_who_asks_what_is_closed_is_to_ask_again_and_starts_no_process(opened, files):
    encoder = await opened(files(template=LOOP))
    asking = [asyncio.create_task(encoder.encode_chat(HELLO, None, {}, context=2048)) for _ in range(3)]
    await asyncio.sleep(0.1)
    await encoder._processes.close()
    for each in asking:
        with pytest.raises(ModelChanged):
            await each
    assert not any(each.alive for each in encoder._processes._short._alive)


async def test_who_opens_what_is_closed_meanwhile_is_to_ask_again(sandbox_server):
    processes = TokenizerProcesses(sandbox_server, DEMO, Pool("text", 2, 10))
    opening = asyncio.create_task(processes.open())
    await asyncio.sleep(0)
    await processes.close()
    for each in (opening, processes.open()):
        with pytest.raises(ModelChanged) as told:
            await each
        assert told.value.hint == "Send the request again."


async def test_a_tokenizer_that_is_read_again_and_again_takes_no_more_threads(opened, files):
    broken = files(tokenizer="")
    threads = []
    for _ in range(4):
        with pytest.raises(ModelBroken):
            await opened(broken)
        threads.append(threading.active_count())
    assert threads[-1] == threads[0]


async def test_a_text_whose_client_has_gone_is_finished_and_the_next_waits_for_it(opened):
    encoder = await opened(DEMO)
    (sandbox,) = encoder._processes._short._alive
    asking = asyncio.create_task(encoder.encode("Hello " * 2000, context=20_000, param="x"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert await encoder.encode("Hi", context=10, param="x") == encoder.tokenizer.encode("Hi")
    assert encoder._processes._short._alive == [sandbox]
    assert sandbox.alive


LONG = "Hello " * (limits.LONG_TEXT // 6)


async def test_no_text_waits_for_another_clients_long_ones(opened):
    encoder = await opened(DEMO)
    asking = [asyncio.create_task(encoder.encode(3 * LONG, context=10**6, param="x")) for _ in range(5)]
    other = SandboxedEncoder(encoder._processes, "b")
    await other.encode(LONG, context=10**6, param="x")
    assert sum(each.done() for each in asking) <= 1, "clients take turns"
    for _ in range(10):
        assert await other.encode("Hi", context=10, param="x") == encoder.tokenizer.encode("Hi")
    assert not all(each.done() for each in asking)
    for each in asking[1:]:
        each.cancel()
    assert len(await asking[0]) == len(encoder.tokenizer.encode(3 * LONG))


async def test_the_process_for_long_texts_ends_when_there_are_none(opened, monkeypatch):
    monkeypatch.setattr(limits, "IDLE_S", 0.1)
    encoder = await opened(DEMO)
    for _ in range(2):
        assert await encoder.encode(LONG, context=10**6, param="x") == encoder.tokenizer.encode(LONG)
        (sandbox,) = encoder._processes._long._alive
        async with asyncio.timeout(30):
            while sandbox.alive:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
    assert encoder._processes._short._alive[0].alive


async def test_one_client_may_have_many_texts_waiting_and_another_one_too(opened, monkeypatch):
    monkeypatch.setattr(limits, "_MAX_WAITING", 2)
    encoder = await opened(DEMO)
    asking = [asyncio.create_task(encoder.encode("Hi", context=10, param="x")) for _ in range(5)]
    others = [asyncio.create_task(SandboxedEncoder(encoder._processes, "b").encode("Hi", context=10, param="x"))]
    told = await asyncio.gather(*asking, *others, return_exceptions=True)
    assert [type(each) for each in told] == [list] * 3 + [Overloaded] * 2 + [list]


async def test_tokens_are_those_of_the_tokenizer_on_both_sides_of_the_border(opened, monkeypatch):
    monkeypatch.setattr(limits, "LONG_TEXT", 150)
    encoder = await opened(DEMO)
    control = encoder.tokenizer.control_strings[0].text
    seeded = random.Random(1)
    for _ in range(300):
        parts = ("Hello", " there", "\n", "  ", "é", "日本", "\U0001f600", "12", "a" * 40, control, "\0", "'ll")
        text = "".join(seeded.choices(parts, k=seeded.randrange(40)))
        assert await encoder.encode(text, context=10**6, param="x") == encoder.tokenizer.encode(text)
        messages = [{"role": "user", "content": text}]
        expected = encoder.tokenizer.encode_chat(messages, None)
        assert await encoder.encode_chat(messages, None, {}, context=10**6) == expected
    assert encoder._processes._long._alive
