"""A gateway on a real socket, with a scripted backend."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import aiohttp
import ollama
import openai
import pytest
from aiohttp import web

from api.app import create_app
from api.http.connections import ConnectionLimits
from api.http.server import ApiServer
from api.http.stream import StreamTiming
from node.core.commands import Command, DrainNode, KeepModel, LoadModel, UnloadModel
from node.core.errors import ModelNotFound, PippinError
from node.core.evaluation import EvaluateRequest, Evaluation, Score
from node.core.generation import GenerateRequest, PromptProgress, TokenEvent
from node.core.guesses import Prediction
from node.core.logs import RecentLines
from node.core.models import ModelDescription, ModelEntry
from node.core.pool import Pool
from node.core.reports import NodeMetrics, RingTraffic
from node.core.response_ids import Ask
from node.core.views import NodeState
from node.gateway.disk import Pulled
from node.gateway.peers import Peers
from node.model.hub_search import HubModel
from node.model.picture_form import PictureForm
from node.model.short_names import untagged
from node.text.encoder import check_length
from node.text.grammars import Grammars
from node.text.pictures import Pictures
from node.text.tokenizer import Tokenizer
from tests.api import paged
from tests.browser import Tab
from tests.strict import check_answer

DEMO = Path(__file__).parents[2] / "node" / "builtin" / "pippin-demo"
MODEL = paged.MODEL


@dataclass
class ScriptedModel:
    """A model whose texts are encoded in this process."""

    id: str
    context: int
    tokenizer: Tokenizer
    revision: str = ""
    sampling: dict[str, float] = field(default_factory=dict)
    """What its authors propose."""
    pool: Pool = field(default_factory=lambda: Pool("text", 4, 256))
    pictures: PictureForm | None = None

    @property
    def encoder(self) -> Self:
        return self

    async def encode(
        self, text: str, *, context: int, param: str, bos: bool = True, truncate: bool = False
    ) -> list[int]:
        if truncate:
            return (await self.pool.run(self.tokenizer.encode, text, bos=bos))[:context]
        check_length(len(text), context, self.tokenizer.max_token_chars, param=param)
        return await self.pool.run(self.tokenizer.encode, text, bos=bos)

    async def work(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self.pool.run(function, *args)

    async def encode_prediction(self, text: str, *, most: int) -> list[int]:
        return (await self.pool.run(self.tokenizer.encode_prediction, text))[:most]

    async def encode_fim(self, prefix: str, suffix: str, *, context: int, param: str) -> list[int]:
        check_length(len(prefix) + len(suffix), context, self.tokenizer.max_token_chars, param=param)
        return await self.pool.run(self.tokenizer.encode_fim, prefix, suffix)

    async def encode_pieces(self, pieces: Sequence[tuple[str, bool]], *, context: int) -> list[int]:
        return await self.pool.run(self.tokenizer.encode_pieces, pieces)

    async def encode_chat(self, messages: Any, tools: Any, more: Any, *, context: int) -> list[int]:
        return await self.pool.run(self.tokenizer.encode_chat, messages, tools, more)


class ScriptedPeers(Peers):
    """Knows nodes by a letter, of which their ids consist."""

    def __init__(self, backend: "ScriptedBackend", node: str = "a", **answers: Callable[..., Any]) -> None:
        """`answers`: about responses, of other nodes."""

        async def response(peer: str, ask: Ask, response_id: str) -> bytes:
            answer: bytes = await answers[peer](ask, response_id)
            return answer

        def events(peer: str, response_id: str, first: int) -> AsyncGenerator[bytes, None]:
            made: AsyncGenerator[bytes, None] = answers[peer].__self__.own_events(response_id, first)
            return made

        infos = [SimpleNamespace(id=each * 53, name=each) for each in (node, *answers)]
        view = SimpleNamespace(
            peers=[SimpleNamespace(report=SimpleNamespace(info=info), state=NodeState.ALIVE) for info in infos]
        )
        book = SimpleNamespace(address_of=lambda node: node[0])
        agent: Any = SimpleNamespace(info=infos[0], view=lambda: view, book=book)
        client: Any = SimpleNamespace(response=response, events=events)
        super().__init__(agent, client, backend.recent)
        self.log = backend.log  # type: ignore[method-assign]


@dataclass
class ScriptedBackend:
    """Answers each request with the tokens of `script`, which may depend on the request, and ends as a driver does."""

    model: ScriptedModel
    grammars: Grammars
    script: Callable[[GenerateRequest], Sequence[int]] = lambda request: []
    refusal: PippinError | None = None
    """Raised instead of the first token."""
    failure: tuple[int, Exception] | None = None
    """Raised instead of the token at a position."""
    pause_at: int | None = None
    """Position before which the answer waits for `go_on`."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[GenerateRequest] = field(default_factory=list)
    drained: tuple[str, bool] | None = None
    held: dict[str, Any] = field(default_factory=lambda: {"schema": 1, "models": [], "short_names": {}})
    """What GET /cluster/models answers."""
    on_hub: Sequence[HubModel] = ()
    loaded: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number of nodes and context, by the name of each model loaded for good."""
    kept: dict[str, float] = field(default_factory=dict)
    """Seconds that each model may be idle."""
    placed: list[dict[str, Any]] = field(default_factory=list)
    """Models of the status."""
    shown: Any = None
    """The status, if it is another one."""
    aliases: Sequence[str] = ()
    """Other names of the model."""
    pictures: Pictures | None = None
    for_pictures: Sequence[str] = ()
    """Models that take pictures."""
    fills_in: bool = False
    """Whether it is described as a model that fills in."""
    evaluated: list[EvaluateRequest] = field(default_factory=list)
    recent: RecentLines = field(default_factory=RecentLines)
    """The log of every node."""
    logs_of: list[str] = field(default_factory=list)
    running: int = 0
    state: str = "ok"
    cached: int = 0
    awaited: str = ""
    progress: Sequence[PromptProgress] = ()
    """Of each prompt."""
    """How far the load is."""

    @property
    def models(self) -> Self:
        return self

    open_models = router = commands = disk = monitor = models

    def __post_init__(self) -> None:
        self.peers = ScriptedPeers(self)

    def say(self, text: str) -> None:
        """Answer with this text and the end token."""
        tokens = self.model.tokenizer.encode(text)
        self.script = lambda request: [*tokens, *self.model.tokenizer.eos]

    def entries(self) -> list[ModelEntry]:
        first = ModelEntry(self.model.id, 1_700_000_000, "pippin", revision="1", bytes=1000, model=self.model.id)
        plain = ModelEntry("plain", 1_700_000_000, "pippin", model="plain")
        return [first, plain, *(replace(first, id=alias) for alias in self.aliases)]

    async def told(self, entry: ModelEntry) -> ModelEntry:
        """As if the files of the first model only were here."""
        if entry.model != self.model.id:
            return entry
        quantization = {"bits": 4, "group_size": 64}
        config = {"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 8, "quantization": quantization}
        more = {"context": self.model.context, "takes_pictures": self.model.pictures is not None}
        return replace(entry, config=config, parameters=1_836_000, **more)

    async def ready_for_pictures(self) -> Sequence[str]:
        return self.for_pictures

    def known(self, name: str) -> ModelEntry | None:
        plain = untagged(name)
        return next((entry for entry in self.entries() if plain in (entry.id, f"short-{entry.id}")), None)

    async def open(self, model_id: str, client: str) -> ScriptedModel:
        if untagged(model_id) != self.model.id:
            raise ModelNotFound(f"The model '{model_id}' does not exist.", param="model")
        return self.model

    async def describe(self, name: str) -> ModelDescription:
        entry = self.known(name)
        if entry is None:
            raise ModelNotFound(f"There is no model '{name}' here.", param="model")
        if entry.model != MODEL:
            entry = replace(entry, config={"model_type": "llama", "torch_dtype": "float32"}, context=self.model.context)
            return ModelDescription(entry, "", embeds=False)
        template = "{% for tool in tools %}…{% endfor %}{% if enable_thinking %}<think>{% endif %}"
        licensed, sampling = "Do as you like.", self.model.sampling
        return ModelDescription(await self.told(entry), template, True, licensed, sampling, self.fills_in)

    def loading(self, model_id: str) -> str:
        return self.awaited

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | PromptProgress, None]:
        self.requests.append(request)
        self.asked.set()
        if self.refusal:
            raise self.refusal
        for progress in self.progress:
            yield progress
        self.running += 1
        self.idle.clear()
        try:
            tokens, prediction = list(self.script(request)), Prediction(request.prediction)
            for position in range(request.max_tokens):
                if position == self.pause_at:
                    self.paused.set()
                    await self.go_on.wait()
                if self.failure and position == self.failure[0]:
                    raise self.failure[1]
                event = self._event(request, position, tokens[position])
                prediction.take(event.token)
                yield replace(event, accepted_prediction_tokens=prediction.accepted)
                if event.finish:
                    return
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    def _event(self, request: GenerateRequest, position: int, token: int) -> TokenEvent:
        finish = "stop" if token in request.stop_tokens else "length" if position + 1 == request.max_tokens else None
        if request.sampling.logprobs is None:
            return TokenEvent(position, token, finish=finish, cached_tokens=0 if position else self.cached)
        likeliest = [(token, -0.25), *((10 + rank, -2.0 - rank) for rank in range(request.sampling.logprobs))]
        return TokenEvent(position, token, -0.25, likeliest[: request.sampling.logprobs], finish)

    async def evaluate(self, request: EvaluateRequest) -> Evaluation:
        """In place n the token t has the log-probability -n. The embedding is the length and the first token. The longer a text,
        the likelier is the first token after it.
        """
        self.evaluated.append(request)
        self.asked.set()
        if self.refusal:
            raise self.refusal
        if self.pause_at is not None:
            await self._stay()
        if request.among:
            first = len(request.prompt) / 4096
            return Evaluation(among=[first, 1 - first])
        if request.top is None:
            return Evaluation(embedding=[float(len(request.prompt)), request.prompt[0] / 4096, -0.5])
        candidates = [(10 + rank, -0.5 - rank) for rank in range(request.top)]
        return Evaluation([Score(-float(place), candidates) for place in range(1, len(request.prompt))])

    async def _stay(self) -> None:
        self.running += 1
        self.idle.clear()
        self.paused.set()
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    def status(self) -> dict[str, Any]:
        if self.shown is not None:
            return self.shown
        return {"cluster": "home", "nodes": []} | ({"models": self.placed} if self.placed else {})

    def overview(self) -> dict[str, Any]:
        return self.held

    def log(self, node: str, lines: int, *, follow: bool) -> AsyncGenerator[list[str], None]:
        if self.refusal:
            raise self.refusal
        self.logs_of.append(node)
        return self.recent.read(lines, follow=follow)

    async def run(self, command: Command) -> Command:
        if self.refusal:
            raise self.refusal
        match command:
            case LoadModel(model, wish):
                self.loaded[model] = (wish.stages, wish.context)
            case UnloadModel(model):
                command = UnloadModel(untagged(model))
                if command.model not in self.loaded:
                    raise ModelNotFound(f"{command.model} is not loaded.", param="model")
                del self.loaded[command.model]
            case KeepModel(model, keep_s):
                self.kept[untagged(model)] = keep_s
            case DrainNode(node, draining):
                self.drained = (node, draining)
        return command

    async def pull(self, name: str, client: str) -> AsyncGenerator[Pulled, None]:
        if self.refusal:
            raise self.refusal
        yield Pulled(name, 1, 4)
        if self.failure:
            raise self.failure[1]
        yield Pulled(name, 4, 4)

    async def search(self, text: str, client: str) -> list[HubModel]:
        if self.refusal:
            raise self.refusal
        return [model for model in self.on_hub if text in model.id]

    async def about(self, model: str, client: str) -> HubModel:
        for found in await self.search(model, client):
            return found
        raise ModelNotFound(f"There is no model {model!r} on the hub.")

    async def remove(self, name: str, *, not_fetched: bool = False) -> tuple[str, int]:
        if self.refusal and not not_fetched:
            raise self.refusal
        return name, 4

    def metrics(self) -> NodeMetrics:
        return NodeMetrics((RingTraffic("r1", running=self.running),), kv_bytes=1000, memory_bytes=5000, lag_s=0.25)

    def health(self) -> dict[str, Any]:
        return {"status": self.state}


@dataclass
class Server:
    """The gateway under test, with helpers for requests."""

    port: int
    backend: ScriptedBackend
    http: aiohttp.ClientSession
    app: web.Application
    ollama_port: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> "Answered":
        """Post `body` as JSON, or raw `data`."""
        kwargs = {
            "data": io.BytesIO(json.dumps(body).encode()),
            "headers": {"Content-Type": "application/json"},
            **kwargs,
        }
        async with self.http.post(f"{self.url}{path}", **kwargs) as response:
            return Answered(response.status, dict(response.headers), await response.read())

    async def chat(self, content: Any = "Hello", **body: Any) -> "Answered":
        messages = [{"role": "user", "content": content}]
        return await self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **body})

    async def ask_ollama(self, path: str = "/api/chat", **body: Any) -> "Answered":
        """Send a request to Ollama's API, not to be streamed unless the body says so."""
        good = {"messages": [{"role": "user", "content": "Hello"}]} if path == "/api/chat" else {}
        return await self.post(path, {"model": MODEL, "stream": False, **good, **body})

    async def complete(self, prompt: Any = "Once", **body: Any) -> "Answered":
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt, **body})

    async def raw(self, data: bytes) -> bytes:
        """Send bytes and read until the server closes, so `data` should ask for `Connection: close`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; its shape is checked."""
        assert set(self.json) == {"error"}
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert isinstance(error["type"], str)
        assert error["code"] is None or isinstance(error["code"], str)
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a stream without its end, which is checked."""
        *blocks, end = self.body.decode().split("\n\n")
        assert end == ""
        assert blocks.pop() == "data: [DONE]"
        return [json.loads(block.removeprefix("data: ")) for block in blocks if not block.startswith(":")]


def bytes_of(token: str) -> bytes:
    """The bytes of a token in OpenAI's notation, as programs read it."""
    part = token.removeprefix("bytes:")
    return token.encode() if part == token else part.encode().decode("unicode_escape").encode("latin-1")


def strict_trace() -> aiohttp.TraceConfig:
    """Check each body that a test reads whole against OpenAI's types."""
    trace = aiohttp.TraceConfig()

    async def begun(_: aiohttp.ClientSession, context: Any, params: aiohttp.TraceRequestEndParams) -> None:
        context.response = params.response

    async def read(_: aiohttp.ClientSession, context: Any, params: aiohttp.TraceResponseChunkReceivedParams) -> None:
        response = context.response
        rest = params.chunk.removeprefix(b"\n")  # the test may have read the first line, a comment, on its own
        check_answer(params.method, params.url.path, response.status, response.content_type, rest)

    trace.on_request_end.append(begun)
    trace.on_response_chunk_received.append(read)
    return trace


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(DEMO)


@pytest.fixture
def backend(tokenizer: Tokenizer, grammars: Grammars) -> ScriptedBackend:
    backend = ScriptedBackend(ScriptedModel(MODEL, 2048, tokenizer), grammars)
    backend.say("Hello there!")
    return backend


@pytest.fixture
async def serve(backend: ScriptedBackend) -> AsyncIterator[Callable[..., Any]]:
    """Start gateways with the test's own settings."""
    servers: list[ApiServer] = []
    async with aiohttp.ClientSession(trace_configs=[strict_trace()]) as http:

        async def start(
            timing: StreamTiming | None = None,
            limits: ConnectionLimits | None = None,
            ollama_port: int | None = None,
            **settings: Any,
        ) -> Server:
            server = ApiServer(["127.0.0.1"], 0, limits, ollama_port=ollama_port)
            app = create_app(backend, timing=timing, ollama_port=server.ollama_port, **settings)
            await server.start(app)
            servers.append(server)
            return Server(server.port, backend, http, app, server.ollama_port)

        yield start
        backend.go_on.set()
    for server in servers:
        await server.stop()


@pytest.fixture
async def server(serve: Callable[..., Any]) -> Server:
    return await serve()


@pytest.fixture
async def ollama_client(server: Server) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=server.url) as client:
        yield client


@pytest.fixture
async def page(server: Server, tab: Tab) -> AsyncIterator[Tab]:
    """The page of a gateway whose cluster has two nodes, in a browser that has nothing to complain of at the end."""
    server.backend.shown = paged.TWO
    await tab.open(server.url)
    await tab.until("document.querySelector('#model').value")
    yield tab
    assert tab.complaints == []
