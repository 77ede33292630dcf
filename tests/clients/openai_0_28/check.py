"""The official package before its rewrite, which many older programs still use."""

import asyncio

import openai
from harness import ASK, HELLO, KNOWN, MODEL, URL, refused, run

openai.api_base = URL
openai.api_key = "any"


def models() -> None:
    assert MODEL in [model["id"] for model in openai.Model.list()["data"]]
    assert openai.Model.retrieve(MODEL)["id"] == MODEL


def plain_and_streamed() -> None:
    answer = openai.ChatCompletion.create(model=MODEL, messages=ASK, temperature=0)
    assert answer["choices"][0]["message"]["content"] == HELLO
    chunks = openai.ChatCompletion.create(model=MODEL, messages=ASK, temperature=0, stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == HELLO


def without_waiting() -> None:
    async def ask() -> str:
        chunks = await openai.ChatCompletion.acreate(model=MODEL, messages=ASK, temperature=0, stream=True)
        return "".join([chunk["choices"][0]["delta"].get("content", "") async for chunk in chunks])

    assert asyncio.run(ask()) == HELLO


def completions() -> None:
    answer = openai.Completion.create(model=MODEL, prompt="1, 2, 3,", max_tokens=8, temperature=0)
    chunks = openai.Completion.create(model=MODEL, prompt="1, 2, 3,", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == answer["choices"][0]["text"]


def refusals() -> None:
    for wrong in ({"model": "nothing"}, {"temperature": 9}):
        asked = {"model": MODEL, "messages": ASK, **wrong}
        error = refused(openai.InvalidRequestError, lambda asked=asked: openai.ChatCompletion.create(**asked))
        assert error.user_message


def scoring() -> None:
    known = KNOWN["scores"][1]
    answer = openai.Completion.create(
        model=MODEL, prompt=known["context"] + known["continuation"], max_tokens=0, echo=True, logprobs=1
    )
    told = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert all(abs(mine - theirs) < 1e-3 for mine, theirs in zip(told, known["logprobs"], strict=True))


if __name__ == "__main__":
    run(models, plain_and_streamed, without_waiting, completions, refusals, scoring)
