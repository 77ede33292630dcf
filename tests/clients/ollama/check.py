"""Ollama's official package for Python."""

import asyncio
import json
import math

import ollama
from harness import ASK, HELLO, KNOWN, MODEL, TOOL, URL, WEATHER, is_weather, refused, run

HOST = URL.removesuffix("/v1")
GREEDY = {"temperature": 0}
client = ollama.Client(host=HOST)


def models() -> None:
    (listed,) = (model for model in client.list().models if model.model == f"{MODEL}:latest")
    shown = client.show(MODEL)
    assert listed.details == shown.details
    assert all((shown.details.family, shown.details.quantization_level, shown.license))
    assert shown.modelfile.startswith(f"FROM {MODEL}\n")
    assert "completion" in shown.capabilities
    assert shown.modelinfo["llama.context_length"] == 16384
    assert shown.details.parameter_size == "1.84M"
    (running,) = (model for model in client.ps().models if model.model == f"{MODEL}:latest")
    assert running.details == shown.details


def context() -> None:
    """Of a conversation with /api/generate, as older programs have it."""
    first = client.generate(MODEL, "Hello", options=GREEDY)
    assert first.response == HELLO
    second = client.generate(MODEL, "Hello", context=first.context, options=GREEDY)
    assert second.prompt_eval_count > len(first.context)
    assert list(second.context)[: len(first.context)] == list(first.context)


def thoughts() -> None:
    """The model has none."""
    found = refused(ollama.ResponseError, lambda: client.chat(MODEL, ASK, think=True))
    assert (found.status_code, found.error) == (400, f'"{MODEL}" does not support thinking')


def plain_and_streamed() -> None:
    answer = client.chat(MODEL, ASK, options=GREEDY)
    assert answer.message.content == HELLO
    assert (answer.done_reason, answer.done) == ("stop", True)
    parts = list(client.chat(f"{MODEL}:latest", ASK, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == HELLO
    assert parts[-1].eval_count == answer.eval_count > 0
    assert parts[-1].total_duration >= parts[-1].eval_duration > 0


def generated() -> None:
    assert client.generate(MODEL, "Hello", options=GREEDY).response == HELLO
    assert "".join(part.response for part in client.generate(MODEL, "Hello", options=GREEDY, stream=True)) == HELLO
    raw = client.generate(MODEL, "1, 2, 3,", raw=True, options={**GREEDY, "num_predict": 8})
    assert (raw.eval_count, raw.done_reason) == (8, "length")


def stopped() -> None:
    answer = client.chat(MODEL, ASK, options={**GREEDY, "stop": ["Pippin"]})
    assert answer.message.content == HELLO.split("Pippin")[0]


def at_once() -> None:
    async def ask(content: str) -> str:
        message = {"role": "user", "content": content}
        parts = await ollama.AsyncClient(host=HOST).chat(
            MODEL, [message], options={**GREEDY, "num_predict": 200}, stream=True
        )
        return "".join([part.message.content async for part in parts])

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, KNOWN["texts"]))

    assert asyncio.run(ask_all()) == list(KNOWN["texts"].values())


def errors() -> None:
    error = refused(ollama.ResponseError, lambda: client.chat("nothing", ASK))
    assert error.status_code == 404
    error = refused(ollama.ResponseError, lambda: client.chat(MODEL, ASK, options={"top_p": 2}))
    assert error.status_code == 400
    assert "options.top_p" in error.error
    refused(ollama.ResponseError, lambda: client.copy(MODEL, "other"))


def tools() -> None:
    """The model decides whether to call, so that the answer may be either."""
    answer = client.chat(MODEL, ASK, tools=[TOOL], options=GREEDY)
    assert answer.message.content or is_weather(answer.message.tool_calls[0].function.arguments)


def structured_output() -> None:
    answer = client.chat(MODEL, ASK, format=WEATHER, options={**GREEDY, "num_predict": 100})
    assert is_weather(json.loads(answer.message.content))
    answer = client.generate(MODEL, "Hello", format="json", options={**GREEDY, "num_predict": 300})
    assert answer.done_reason == "length" or isinstance(json.loads(answer.response), dict)


def log_probabilities() -> None:
    answer = client.chat(MODEL, ASK, options=GREEDY, logprobs=True, top_logprobs=2)
    parts = len("👋".encode())  # tokens that have a byte of it each
    assert "".join(each.token for each in answer.logprobs) == HELLO.replace("👋", "\ufffd" * parts)
    assert all(each.top_logprobs[0].logprob == each.logprob <= 0 for each in answer.logprobs)


def embeddings() -> None:
    one, other = client.embed(MODEL, ["Hello", "Good evening"]).embeddings
    assert abs(math.hypot(*one) - 1) < 1e-3
    assert one != other
    assert list(client.embeddings(MODEL, "Hello").embedding) == list(one)


def loading() -> None:
    assert client.generate(MODEL, "", keep_alive="5m").done_reason == "load"


if __name__ == "__main__":
    run(
        *(models, plain_and_streamed, generated, stopped, at_once, errors, tools, structured_output),
        *(log_probabilities, embeddings, loading, context, thoughts),
    )
