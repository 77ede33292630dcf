"""`suffix`: the text between two others, in legacy completions and in Ollama's /api/generate."""

import pytest

from tests.api.conftest import MODEL
from tests.text.test_fim import FAMILIES, make


@pytest.fixture
def coder(server, tmp_path):
    """A server with a model like Qwen's coders."""
    server.backend.model.tokenizer = make(tmp_path, FAMILIES["qwen"][0], bos=False)
    server.backend.say("return 1")
    return server


def end_with(server, text, end):
    tokenizer = server.backend.model.tokenizer
    (token,) = tokenizer.encode(end)
    server.backend.script = lambda request: [*tokenizer.encode(text), token, *tokenizer.encode("never")]


async def test_a_completion_with_a_suffix(coder):
    tokenizer = coder.backend.model.tokenizer
    end_with(coder, "return 1", "<|fim_pad|>")
    answer = (await coder.complete("def f(): ", suffix="\n\nf()", max_tokens=50)).json
    assert answer["choices"] == [{"index": 0, "text": "return 1", "logprobs": None, "finish_reason": "stop"}]
    (request,) = coder.backend.requests
    assert list(request.prompt) == tokenizer.encode_fim("def f(): ", "\n\nf()")
    assert request.stop_tokens == tokenizer.fim.ends | tokenizer.eos
    assert answer["usage"]["prompt_tokens"] == len(request.prompt)


async def test_a_streamed_completion_with_a_suffix(coder):
    end_with(coder, "return 1", "<|file_sep|>")
    async with coder.client() as client:
        stream = await client.completions.create(
            model=MODEL, prompt=["a", "b"], suffix="c", stream=True, max_tokens=50, logprobs=1
        )
        chunks = [chunk async for chunk in stream]
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in mine) == "return 1"
        assert mine[-1].finish_reason == "stop"
    assert {request.prompt[1] for request in coder.backend.requests} == {
        coder.backend.model.tokenizer.encode(text)[0] for text in "ab"
    }


async def test_without_a_suffix_the_marks_are_text_as_ever(coder):
    coder.backend.say("a<|fim_pad|>b")
    answer = (await coder.complete("<|fim_prefix|>a", suffix="", max_tokens=50)).json
    assert answer["choices"][0]["text"] == "a<|fim_pad|>b"
    (request,) = coder.backend.requests
    assert request.stop_tokens == coder.backend.model.tokenizer.eos
    assert list(request.prompt) == coder.backend.model.tokenizer.encode("<|fim_prefix|>a")


async def test_ollama_fills_in(coder):
    """As its Python client asks; a system message is not for a model that fills in."""
    end_with(coder, "return 1", "<|fim_middle|>")
    for body in ({"stream": False}, {"stream": False, "system": "Be brief."}):
        body |= {"prompt": "def f(): ", "suffix": "\n\nf()", "options": {"temperature": 0, "num_predict": 128}}
        answer = (await coder.ask_ollama("/api/generate", **body)).json
        assert (answer["response"], answer["done_reason"]) == ("return 1", "stop")
        assert "context" not in answer
    tokenizer = coder.backend.model.tokenizer
    for request in coder.backend.requests:
        assert list(request.prompt) == tokenizer.encode_fim("def f(): ", "\n\nf()")
        assert request.max_tokens == 128


async def test_a_raw_prompt_of_ollama_has_its_suffix_in_it(coder):
    text = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    await coder.ask_ollama("/api/generate", prompt=text, suffix="b", raw=True)
    await coder.ask_ollama("/api/generate", prompt="a", suffix="b")
    raw, filled = coder.backend.requests
    assert raw.prompt == filled.prompt


async def test_of_a_long_file_what_is_next_to_the_answer_stays(coder):
    coder.backend.model.context = 200
    before, after = "x" * 400 + "def f(", ")\n" + "y" * 400
    answer = await coder.ask_ollama("/api/generate", prompt=before, suffix=after)
    assert answer.status == 200
    tokenizer = coder.backend.model.tokenizer
    written = tokenizer.spell(coder.backend.requests[0].prompt)
    assert "xdef f(<|fim_suffix|>)\ny" in written
    assert len(coder.backend.requests[0].prompt) < 200
    refused = await coder.ask_ollama("/api/generate", prompt=before, suffix=after, truncate=False)
    assert refused.status == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [300, 301], "suffix": "a"}, "suffix"),
        ({"prompt": "a", "suffix": "b", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": 5}, "suffix"),
        ({"prompt": "a" * 2100, "suffix": "b" * 3000}, "prompt"),
    ],
)
async def test_what_cannot_be_done_is_named(coder, body, param):
    response = await coder.complete(**body)
    assert (response.status, response.error["param"]) == (400, param)
    assert coder.backend.requests == []


async def test_a_model_without_marks_is_named(server):
    response = await server.complete("a", suffix="b")
    assert (response.status, response.error["code"], response.error["param"]) == (400, "unsupported", "suffix")
    assert MODEL in response.error["message"]
