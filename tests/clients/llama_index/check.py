"""LlamaIndex's model for Ollama."""

import asyncio

from harness import HELLO, MODEL, URL, run
from llama_index.core.llms import ChatMessage
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel, Field

llm = Ollama(model=MODEL, base_url=URL.removesuffix("/v1"), temperature=0, request_timeout=60)
ASK = [ChatMessage(role="user", content="Hello")]


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def plain_and_streamed() -> None:
    assert llm.chat(ASK).message.content == HELLO
    assert "".join(part.delta or "" for part in llm.stream_chat(ASK)) == HELLO


def asynchronous() -> None:
    async def ask() -> str:
        return "".join([part.delta or "" async for part in await llm.astream_chat(ASK)])

    assert asyncio.run(ask()) == HELLO


def completions() -> None:
    assert llm.complete("Hello").text == HELLO
    assert "".join(part.delta or "" for part in llm.stream_complete("Hello")) == HELLO


def structured_output() -> None:
    made = Ollama(model=MODEL, base_url=URL.removesuffix("/v1"), temperature=0, additional_kwargs={"num_predict": 300})
    assert isinstance(made.as_structured_llm(Person).chat(ASK).raw, Person)


def context() -> None:
    """It asks for the context of the model if none is given."""
    assert llm.get_context_window() == 16384


if __name__ == "__main__":
    run(plain_and_streamed, asynchronous, completions, structured_output, context)
