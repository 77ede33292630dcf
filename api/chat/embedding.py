"""Texts as vectors."""

from collections.abc import Sequence
from functools import partial

from api.chat.env import Env
from api.chat.generation import new_id, run_concurrently
from api.chat.prompt import encode_text
from node.core.errors import ContextExceeded
from node.core.evaluation import EvaluateRequest
from node.text.sandboxed_encoder import OpenModel


async def embed(
    env: Env, model: OpenModel, texts: Sequence[str | list[int]], client: str, *, truncate: bool = False
) -> tuple[list[Sequence[float]], int]:
    """The embeddings of texts, and the number of all their tokens. `client`: name of the caller.

    `truncate`: of each text, embed what fits into the context. Raises BadRequest, ContextExceeded.
    """
    name, asked = new_id("embd"), []
    for index, text in enumerate(texts):
        tokens: Sequence[int] = ()
        if truncate and isinstance(text, str):
            tokens = await model.encoder.encode(text, context=model.context, param="input", truncate=True)
        tokens = tokens or await encode_text(model, text, param="input")
        if len(tokens) > model.context:
            most = f"This model's maximum context length is {model.context} tokens"
            raise ContextExceeded(f"{most}, but an input has {len(tokens)} tokens.", param="input")
        request_id = f"{name}-{index}"
        asked.append(EvaluateRequest(request_id, model.id, tuple(tokens), client=client, revision=model.revision))
    found = await run_concurrently([partial(env.evaluate, each) for each in asked])
    return [evaluation.embedding for evaluation in found], sum(len(each.prompt) for each in asked)
