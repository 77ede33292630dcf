"""Texts as vectors."""

from collections.abc import Sequence
from functools import partial

from api.chat.env import Env
from api.chat.generation import new_id, run_concurrently
from api.chat.prompt import encode_text
from node.core.errors import ContextExceeded
from node.core.evaluation import EvaluateRequest
from node.text.sandboxed_encoder import OpenModel


async def embed(env: Env, model: OpenModel, texts: Sequence[Sequence[int]], client: str) -> list[Sequence[float]]:
    """The embeddings of texts, given as tokens. `client`: name of the caller."""
    name = new_id("embd")
    asked = [
        EvaluateRequest(f"{name}-{index}", model.id, tuple(tokens), client=client, revision=model.revision)
        for index, tokens in enumerate(texts)
    ]
    found = await run_concurrently([partial(env.evaluate, each) for each in asked])
    return [evaluation.embedding for evaluation in found]


async def tokens_to_embed(model: OpenModel, text: str | list[int]) -> Sequence[int]:
    """Raises BadRequest, ContextExceeded."""
    tokens = await encode_text(model, text, param="input")
    if len(tokens) > model.context:
        raise ContextExceeded(
            f"This model's maximum context length is {model.context} tokens, but an input has {len(tokens)} tokens.",
            param="input",
        )
    return tokens
