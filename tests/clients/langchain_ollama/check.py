"""LangChain's chat model, completion model and embeddings for Ollama."""

import asyncio
import math

from harness import HELLO, KNOWN, MODEL, URL, run
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from pydantic import BaseModel, Field

GIVEN = {"base_url": URL.removesuffix("/v1"), "model": MODEL}


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def plain_and_streamed() -> None:
    """It asks whether the model is there first."""
    chat = ChatOllama(**GIVEN, temperature=0, validate_model_on_init=True)
    answer = chat.invoke("Hello")
    assert answer.content == HELLO
    assert answer.response_metadata["done_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 5
    assert "".join(part.content for part in chat.stream("Hello")) == HELLO
    assert chat.invoke("Hello", stop=["Pippin"]).content == HELLO.split("Pippin")[0]


def at_once() -> None:
    chat = ChatOllama(**GIVEN, temperature=0, num_predict=200)
    answers = asyncio.run(chat.abatch(list(KNOWN["texts"])))
    assert [answer.content for answer in answers] == list(KNOWN["texts"].values())


def completions() -> None:
    model = OllamaLLM(**GIVEN, temperature=0)
    assert model.invoke("Hello") == "".join(model.stream("Hello")) == HELLO


def structured_output() -> None:
    chat = ChatOllama(**GIVEN, temperature=0, num_predict=300)
    assert isinstance(chat.with_structured_output(Person, method="json_schema").invoke("Hello"), Person)


def embeddings() -> None:
    one, other = OllamaEmbeddings(**GIVEN).embed_documents(["Hello", "Good evening"])
    assert abs(math.hypot(*one) - 1) < 1e-3
    assert one != other


if __name__ == "__main__":
    run(plain_and_streamed, at_once, completions, structured_output, embeddings)
