"""POST /api/pull and DELETE /api/delete, and the requests for what Pippin does not do."""

from contextlib import aclosing

from aiohttp import web

from api.chat.env import STREAM, Env, fetch_model
from api.http.errors import Unsupported
from api.http.stream import EventStream
from api.ollama.answer import Lines
from api.ollama.models import digest
from api.ollama.schema import ModelRequest

BEGIN, END = {"status": "pulling manifest"}, {"status": "success"}
REFUSED = {
    "/api/create": "Models are made by other programs, such as mlx-lm's `mlx_lm.convert`.",
    "/api/copy": "Start a node with a model's folder, which may have any name.",
    "/api/push": "Use the Hugging Face hub's own program, `hf upload`.",
    "/api/blobs/{digest}": "Put the model's folder where a node looks for models: see its --models-dir.",
}
"""What to do instead, by path."""


async def pull(env: Env, request: web.Request) -> web.StreamResponse:
    """Fetch a model to this node's disk. An unknown model is a plain error: nothing is sent before it is found."""
    body = await env.read(request, ModelRequest)
    model = body.wanted
    async with aclosing(fetch_model(env, request, model)) as progress:
        if not body.stream:
            async for _ in progress:
                pass
            return web.json_response(END)
        events = request[STREAM] = EventStream(request, env.timing, Lines(lambda: BEGIN))
        about = {"status": f"pulling {model}", "digest": f"sha256:{digest(model)}"}
        async with events.kept_alive():
            async for each in progress:
                if not events.response.prepared:
                    await events.send(BEGIN)
                await events.send(about | {"total": each.bytes, "completed": each.done})
            await events.send(END)
        return events.response


async def delete(env: Env, request: web.Request) -> web.Response:
    await env.gateway.disk.remove((await env.read(request, ModelRequest)).wanted)
    return web.Response()


async def refuse(hint: str, request: web.Request) -> web.StreamResponse:
    raise Unsupported(f"{request.path} is not supported.", hint=hint)
