"""HELM's own client classes for OpenAI, with their imports; HELM's other dependencies (torch, spacy) are not needed."""

import json
import math
from typing import Any

from harness import HELLO, KNOWN, MODEL, URL, is_weather, run
from harness import WEATHER as SCHEMA
from helm.benchmark.model_metadata_registry import TEXT_MODEL_TAG, ModelMetadata, register_model_metadata
from helm.clients.openai_client import OpenAIClient, OpenAILegacyCompletionsClient
from helm.common.cache import BlackHoleCacheConfig
from helm.common.request import Request, RequestResult
from helm.common.response_format import ResponseFormat

register_model_metadata(
    ModelMetadata(f"pippin/{MODEL}", "pippin", MODEL, "built in", "open", "2026-01-01", tags=[TEXT_MODEL_TAG])
)


def _ask(kind: type[OpenAIClient], **request: Any) -> RequestResult:
    client = kind(cache_config=BlackHoleCacheConfig(), api_key="any", base_url=URL)
    asked = Request(model=f"pippin/{MODEL}", model_deployment=f"pippin/{MODEL}", **request)
    result = client.make_request(asked)
    assert result.success, result.error
    return result


def chat() -> None:
    (answer,) = _ask(OpenAIClient, prompt="Hello", temperature=0).completions
    assert answer.text == HELLO
    (cut,) = _ask(OpenAIClient, prompt="Hello", temperature=0, stop_sequences=["Pippin"]).completions
    assert cut.text == HELLO.split("Pippin")[0]
    several = _ask(OpenAIClient, prompt="Hello", temperature=1, num_completions=3).completions
    assert len(several) == 3


def completions() -> None:
    """Sends `best_of`, `logprobs` and `stop: null`."""
    (answer,) = _ask(OpenAILegacyCompletionsClient, prompt="1, 2, 3,", temperature=0, max_tokens=8).completions
    assert answer.text
    assert "".join(token.text for token in answer.tokens) == answer.text
    assert math.isfinite(answer.logprob)
    assert answer.logprob < 0


def several_candidates() -> None:
    """HELM sends `top_k_per_token` as `best_of`, too, so more answers are generated than returned."""
    (answer,) = _ask(
        OpenAILegacyCompletionsClient, prompt="1, 2, 3,", temperature=0.5, max_tokens=8, top_k_per_token=3
    ).completions
    assert answer.text


def scoring() -> None:
    """HELM's request for the likelihood of a text."""
    for known in KNOWN["scores"]:
        text = known["context"] + known["continuation"]
        (answer,) = _ask(
            OpenAILegacyCompletionsClient, prompt=text, temperature=0, max_tokens=0, echo_prompt=True
        ).completions
        assert answer.text == text
        assert abs(answer.logprob - sum(known["logprobs"])) < 1e-2


def structured_output() -> None:
    (answer,) = _ask(
        OpenAIClient, prompt="Hello", temperature=0, max_tokens=300, response_format=ResponseFormat(json_schema=SCHEMA)
    ).completions
    assert is_weather(json.loads(answer.text))


def embeddings() -> None:
    made = _ask(OpenAIClient, prompt="Hello", embedding=True)
    assert abs(math.hypot(*made.embedding) - 1) < 1e-3


if __name__ == "__main__":
    run(chat, completions, several_candidates, scoring, structured_output, embeddings)
