"""POST /v1/rerank: how well documents answer a query, in the shape of Jina, Cohere and vLLM."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from aiohttp import web
from pydantic import BeforeValidator, Field

from api.chat.env import Env, known_model
from api.chat.generation import new_id, run_concurrently
from api.chat.message import StrictModel, Whole
from api.chat.schema import ModelName
from api.http.callers import CLIENT
from api.http.limits import MAX_INPUTS
from node.core.errors import ContextExceeded, ModelUnsupported
from node.core.evaluation import EvaluateRequest
from node.text.reranking import BEGIN, END, INSTRUCTION, Judgement, is_reranker, question
from node.text.sandboxed_encoder import OpenModel


def _text(value: Any) -> Any:
    return value["text"] if isinstance(value, dict) and "text" in value else value


class RerankRequest(StrictModel):
    model: ModelName
    query: str
    documents: Annotated[list[Annotated[str, BeforeValidator(_text)]], Field(min_length=1, max_length=MAX_INPUTS)]
    top_n: Whole | None = Field(default=None, ge=1)
    return_documents: bool = True
    instruction: str = INSTRUCTION
    truncate: bool = False


async def create(env: Env, request: web.Request) -> web.Response:
    body = await env.read(request, RerankRequest)
    model = await env.gateway.open_models.open(body.model, request[CLIENT])
    judgement = await _judgement(env, body.model, model)
    name, among = new_id("rerank"), (judgement.yes, judgement.no)
    asked = [
        EvaluateRequest(f"{name}-{index}", model.id, tuple(prompt), None, request[CLIENT], model.revision, among)
        for index, prompt in enumerate(await _prompts(model, body))
    ]
    found = await run_concurrently([partial(env.evaluate, each) for each in asked])
    scores = [evaluation.among[0] for evaluation in found]
    best_first = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    texts = [{"document": {"text": text}} if body.return_documents else {} for text in body.documents]
    results = [{"index": index, "relevance_score": scores[index], **texts[index]} for index in best_first]
    tokens = sum(len(each.prompt) for each in asked)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    meta = {"tokens": {"input_tokens": tokens}}  # Cohere's
    return web.json_response({"id": name, "model": model.id, "results": results, "usage": usage, "meta": meta})


async def _judgement(env: Env, name: str, model: OpenModel) -> Judgement:
    """Raises ModelUnsupported for a model that is no reranker: what it says would look like scores."""
    config = (await env.gateway.models.told(known_model(env, name))).config
    judgement = model.tokenizer.judgement
    if judgement is None or not is_reranker(model.id, config):
        raise ModelUnsupported(
            f"{model.id} is no reranker: it was not trained to judge documents.",
            hint="Use a model such as mlx-community/Qwen3-Reranker-0.6B-mxfp8, or compare embeddings (/v1/embeddings).",
        )
    return judgement


async def _prompts(model: OpenModel, body: RerankRequest) -> Sequence[list[int]]:
    """The tokens of each document's prompt. With `truncate`, the end of a document that is too long is left out.

    Raises BadRequest, ContextExceeded.
    """
    encode = partial(model.encoder.encode, context=model.context, param="documents", bos=False)
    begin, end = await encode(BEGIN), await encode(END)
    room = model.context - len(begin) - len(end)
    without = await model.encoder.encode_prediction(question(body.query, "", body.instruction), most=room + 1)
    if len(without) > room:
        raise ContextExceeded(f"The query leaves no room in a context of {model.context} tokens.", param="query")

    async def prompt(index: int) -> list[int]:
        text = question(body.query, body.documents[index], body.instruction)
        tokens = await model.encoder.encode_prediction(text, most=room + 1)
        if len(tokens) > room and not body.truncate:
            raise ContextExceeded(
                f"This model's maximum context length is {model.context} tokens, but document {index} leaves no room for "
                f"the judgement: with the query it has more than {room}.",
                hint="Divide it, or send 'truncate': true.",
                param="documents",
            )
        return [*begin, *tokens[:room], *end]

    return await run_concurrently([partial(prompt, index) for index in range(len(body.documents))])
