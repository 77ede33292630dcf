"""The routes of Ollama's API."""

from collections.abc import Callable, Iterator
from functools import partial

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api.chat.env import Env
from api.ollama import disk, embedding, models
from api.ollama.generation import Generations


def ollama_routes(env: Env, check_change: Callable[[web.BaseRequest], None]) -> Iterator[tuple[str, str, Handler]]:
    """Method, path and handler of each. `check_change`: see Generations."""
    generations = Generations(env, check_change)
    yield hdrs.METH_POST, "/api/chat", generations.chat
    yield hdrs.METH_POST, "/api/generate", generations.generate
    yield hdrs.METH_POST, "/api/embed", partial(embedding.create, env)
    yield hdrs.METH_POST, "/api/embeddings", partial(embedding.create_older, env)
    yield hdrs.METH_GET, "/api/tags", partial(models.tags, env)
    yield hdrs.METH_GET, "/api/ps", partial(models.ps, env)
    yield hdrs.METH_POST, "/api/show", partial(models.show, env)
    yield hdrs.METH_GET, "/api/version", models.version
    yield hdrs.METH_POST, "/api/pull", partial(disk.pull, env)
    yield hdrs.METH_DELETE, "/api/delete", partial(disk.delete, env)
    for path, hint in disk.REFUSED.items():
        yield hdrs.METH_POST, path, partial(disk.refuse, hint)
