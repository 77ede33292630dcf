"""Real nodes for the tests: processes, each with a log, that tests ask over HTTP. They are always
ended by their pid.
"""

import atexit
import contextlib
import functools
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import hypothesis
import pytest

from node.text.grammars import Grammars
from node.text.sandbox import SandboxServer
from tests.browser import PROGRAM, Chromium, Tab
from tests.patience import PATIENCE_S
from tests.preloaded import ForkedNode, Preloaded
from tests.strict import check_answer, check_stream

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
MODEL = "pippin-demo"
GONE = ("failed", "left", "refused")
ENGINE = "tests/engine/"
Found = TypeVar("Found")

# Machines may be slow and busy, so a slow draw is no failure. `--hypothesis-profile long` searches far longer.
hypothesis.settings.register_profile("short", deadline=None, suppress_health_check=hypothesis.HealthCheck)
hypothesis.settings.register_profile("long", hypothesis.settings.get_profile("short"), max_examples=3_000)
hypothesis.settings.load_profile("short")


# Programs that tests start get these signals, though a shell's background job ignores SIGINT, and nohup SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

os.environ["PIPPIN_CONFIG"] = os.devnull  # no test reads the configuration of this machine's user
os.environ.setdefault("MLX_ENABLE_TF32", "0")  # an M5 computes float32 with fewer bits by default
NODE_ENVIRONMENT = {"PIPPIN_DEVICE": os.environ.get("PIPPIN_DEVICE", "cpu")}
"""Of nodes and of stock mlx-lm. On Metal, texts of kernels for prompts and for answers may differ in near ties, and a
prompt has too few chunks for a node to be lost between them. tests/engine runs on MLX's own choice, Metal on a Mac.
"""
if device := os.environ.get("PIPPIN_DEVICE"):
    from node.engine.device import choose_device  # here, as MLX takes a while to import

    choose_device(device)


@pytest.fixture(scope="session")
def sandbox_server() -> Iterator[SandboxServer]:
    server = SandboxServer()
    yield server
    server.close()


@pytest.fixture
async def grammars(sandbox_server: SandboxServer) -> AsyncIterator[Grammars]:
    grammars = Grammars(sandbox_server)
    yield grammars
    await grammars.end()


@pytest.fixture(scope="session")
def picture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that takes pictures."""
    folder = tmp_path_factory.mktemp("models") / "tiny-mistral3"
    command = [
        sys.executable,
        str(ROOT / "scripts" / "make_model.py"),
        "--preset",
        "tiny-mistral3",
        "--out",
        str(folder),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if PROGRAM is None:
        pytest.skip("no Chromium, in which the page is tested; on Debian: apt-get install chromium")
    chromium = Chromium(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()


@pytest.fixture
async def tab(chromium: Chromium) -> AsyncIterator[Tab]:
    async with chromium.tab() as tab:
        yield tab


_shown: list["Node"] = []
"""Nodes whose logs are shown when a test fails."""


def until(ask: Callable[[], Found], what: str) -> Found:
    """Ask again and again; return the first result that is true. Failed connections and assertions count as false.
    Asking takes at most a fifth of the time, as other tests need the processor, too.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        last: Any = None
        began = time.monotonic()
        try:
            if found := ask():
                return found
        except (OSError, http.client.HTTPException, AssertionError, ValueError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S} s: {what} ({last!r})")
        time.sleep(min(max(0.05, 4 * (time.monotonic() - began)), 0.5))


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The assistant's text."""
        assert self.status == 200, self.body
        return self.json["choices"][0]["message"]["content"]

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.json) == {"error"}, self.body
        return self.json["error"]


class Events:
    """A streamed answer while it arrives."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.text = ""
        self.finish: str | None = None
        self.usage: dict[str, Any] | None = None
        self._response = response
        self._body = b""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the chunks. The stream must end with a finish reason and `[DONE]`, and contain nothing but chunks."""
        while line := self._response.readline():
            self._body += line
            if not line.startswith(b"data: "):
                assert line == b"\n" or line.startswith(b": "), line
            elif line == b"data: [DONE]\n":
                assert self.finish, "the stream ended without a finish reason"
                check_stream("/chat/completions", self._body + self._response.readline())
                return
            else:
                yield self._take(json.loads(line.removeprefix(b"data: ")))
        raise AssertionError(f"the stream broke off after {self.text!r}")

    def rest(self) -> str:
        """Read to the end; return the whole text."""
        for _ in self:
            pass
        return self.text

    def _take(self, chunk: dict[str, Any]) -> dict[str, Any]:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.finish = choice["finish_reason"] or self.finish
        self.usage = chunk.get("usage") or self.usage
        return chunk


@dataclass
class Node:
    """One `node` process."""

    name: str
    process: subprocess.Popen[bytes] | ForkedNode
    log: Path
    host: str = "127.0.0.1"
    connect: Callable[..., socket.socket] = socket.create_connection
    """Connects to the node: a node in another network namespace is reachable only from there."""
    ended: bool = False
    port: int = 0

    # --- the process --------------------------------------------------------------------------------------------------

    @property
    def written(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def loads(self) -> int:
        """How many loads it has begun. A node that starts before the others may load the whole model first."""
        return len(re.findall(r" loading \S+ layers", self.written))

    def started(self) -> "Node":
        """Wait until the node takes requests."""

        def find() -> re.Match[str] | None:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
            return re.search(r"API on https?://\S*:(\d+)/v1", self.written)

        self.port = int(until(find, f"{self.name} starts")[1])
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Interrupt twice, so that the node ends without draining."""
        for number in (signal.SIGINT, signal.SIGINT):
            if self.process.poll() is None:
                self.signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.kill()
        self.ended = True

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @contextlib.contextmanager
    def request(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        """`body` is sent as JSON unless it is bytes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        connection._create_connection = self.connect
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"Connection": "close", "Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def get(self, path: str) -> Answer:
        return self._ask("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self._ask("POST", path, body)

    def delete(self, path: str, body: Any) -> Answer:
        return self._ask("DELETE", path, body)

    def _ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request; check its answer against OpenAI's types."""
        with self.request(method, path, body) as response:
            answer = Answer(response.status, dict(response.headers), response.read())
        check_answer(method, path, answer.status, answer.headers.get("Content-Type", ""), answer.body)
        return answer

    def chat(self, content: Any = "Hello", **body: Any) -> Answer:
        return self.post("/v1/chat/completions", chat_body(content, **body))

    @contextlib.contextmanager
    def stream(self, content: Any = "Hello", **body: Any) -> Iterator[Events]:
        with self.request("POST", "/v1/chat/completions", chat_body(content, stream=True, **body)) as response:
            assert response.status == 200, response.read()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield Events(response)

    def streamed(self, content: Any = "Hello", **body: Any) -> str:
        with self.stream(content, **body) as events:
            return events.rest()

    def command(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `cluster`, which asks this node."""
        whole = self.command_line(*arguments)
        return subprocess.run(whole, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def command_line(self, name: str, *arguments: str) -> list[str]:
        return [str(BIN / "cluster"), name, "--api", self.url, *arguments]

    # --- the cluster as it sees it ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        answer = self.get("/cluster/status")
        assert answer.status == 200, answer.body
        return answer.json

    def own(self) -> dict[str, Any]:
        """Its own entry in its status."""
        return next(node for node in self.status()["nodes"] if node["name"] == self.name and node["state"] not in GONE)

    def warning(self, code: str) -> str:
        """Text of the warning; empty if its status has none with this code."""
        return next((each["text"] for each in self.status()["warnings"] if each["code"] == code), "")

    def state_of(self, other: "Node") -> str:
        """State of another node as this one sees it; empty if it never heard of it."""
        return next((node["state"] for node in self.status()["nodes"] if node["name"] == other.name), "")

    def metric(self, name: str, label: str = "") -> int:
        """The sum of a metric over its labels, or of those samples that have one label."""
        lines = self.get("/metrics").body.decode().splitlines()
        samples = [line for line in lines if re.match(rf"{name}[ {{]", line) and label in line]
        return round(sum(float(sample.rpartition(" ")[2]) for sample in samples))

    def answered(self) -> int:
        """Tokens of all answers that it has sent, whole or not."""
        return self.metric("pippin_tokens_total", 'kind="answer"')

    def running(self) -> int:
        """Number of requests that run in rings or wait for one."""
        requests = [model["requests"] for model in self.status()["models"]]
        return sum(each["running"] + each["queued"] for each in requests)


def chat_body(content: Any, **body: Any) -> dict[str, Any]:
    """A greedy request, unless `body` says otherwise."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0, **body}


@functools.cache
def _preloaded() -> Preloaded:
    preloaded = Preloaded()
    atexit.register(preloaded.close)
    return preloaded


@contextlib.contextmanager
def under_way(asked: Sequence[tuple[Node, Mapping[str, Any]]], tokens: int) -> Iterator[list[Future[str]]]:
    """Run streams at once, each from a node; enter the body when each has some tokens. Yields their texts."""
    begun = threading.Semaphore(0)

    def read(node: Node, stream: Mapping[str, Any]) -> str:
        with node.stream(**stream) as events:
            for count, _ in enumerate(events, start=1):
                if count == tokens:
                    begun.release()
            return events.text

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(read, *each) for each in asked]
        for _ in asked:
            assert begun.acquire(timeout=PATIENCE_S), [answer.exception(0) for answer in answers if answer.done()]
        yield answers


@dataclass
class Cluster:
    """Nodes that find each other. The cluster's name is unique, because all tests share one machine's multicast."""

    directory: Path
    name: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:12]}")
    nodes: list[Node] = field(default_factory=list)

    def launch(
        self,
        *options: str,
        name: str = "",
        program: Sequence[str] = (),
        host: str = "127.0.0.1",
        environment: Mapping[str, str] = MappingProxyType({}),
        preloaded: Preloaded | None = None,
        **reached: Any,
    ) -> Node:
        """Start one more process; it may not take requests yet. An empty `host` means all addresses.

        It is forked, unless it runs another program, or has variables that are read while Python or a module starts; or
        on a Mac, where Metal does not survive a fork.
        """
        environment = {**NODE_ENVIRONMENT, **environment}
        name = name or f"n{len(self.nodes) + 1}"
        arguments = ["--name", name, "--cluster", self.name, "--api-port", "0", *options]
        arguments += ["--data-dir", str(self.directory / name), *(["--host", host] if host else [])]
        log = self.directory / f"{name}-{len(self.nodes)}.log"
        log.touch()
        process: subprocess.Popen[bytes] | ForkedNode
        if sys.platform == "darwin" or program or not all(variable.startswith("PIPPIN_") for variable in environment):
            # No test uses the hub, nor files that this machine's user has fetched from it.
            hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(self.directory / "hub")}
            whole = {**os.environ, **hub, **environment}
            with log.open("wb") as file:
                command = [*(program or (str(BIN / "node"),)), *arguments]
                process = subprocess.Popen(command, stdout=file, stderr=file, env=whole)
        else:
            process = (preloaded or _preloaded()).start(arguments, environment, log)
        node = Node(name, process, log, **({"host": host} if host else {}), **reached)
        self.nodes.append(node)
        _shown.append(node)
        return node

    def start(self, count: int, *options: str) -> list[Node]:
        """Start nodes at the same time. They take requests, but may not have found each other yet."""
        return [node.started() for node in [self.launch(*options) for _ in range(count)]]

    def agreed(self, *nodes: Node) -> dict[str, Any]:
        """Wait until exactly these nodes are here, with one head and one term; return their status."""
        return until(lambda: _agree(nodes), f"{_names(nodes)} agree on a head and a term")[0]

    def ready(self, *nodes: Node, stages: int | None = None) -> dict[str, Any]:
        """Wait until these nodes agree and all wanted models are served, the first by so many stages; return their status."""

        def are_ready() -> dict[str, Any]:
            seen = _agree(nodes)
            assert {status["state"] for status in seen} == {"ready"}, [status["state"] for status in seen]
            assert stages is None or {_stages(status) for status in seen} == {stages}, seen[0]["models"]
            return seen[0]

        return until(are_ready, f"{_names(nodes)} are ready")

    def node(self, status: dict[str, Any], node_id: str) -> Node:
        """The node with this id: of several processes that had its name, the last."""
        name = next(node["name"] for node in status["nodes"] if node["id"] == node_id)
        return next(node for node in reversed(self.nodes) if node.name == name)

    def head(self, status: dict[str, Any]) -> Node:
        return self.node(status, status["head"])

    def ring(self, status: dict[str, Any]) -> list[Node]:
        """The nodes of the first ring, its driver first."""
        return [self.node(status, stage["node"]) for stage in status["models"][0]["rings"][0]["stages"]]

    def close(self) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.signal(signal.SIGINT)
        for node in self.nodes:
            node.end()


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(node.name for node in nodes)


def _agree(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """The status of each; fails unless exactly these are here, with one head and one term."""
    seen = [node.status() for node in nodes]
    here = [{node["name"]: node["id"] for node in status["nodes"] if node["state"] not in GONE} for status in seen]
    assert all(names.keys() == {node.name for node in nodes} for names in here), here
    heads = {(status["head"], status["term"]) for status in seen}
    assert len(heads) == 1, heads
    head = seen[0]["head"]
    assert head in here[0].values()
    assert [node["id"] for node in seen[0]["nodes"] if "head" in node["roles"]] == [head]
    return seen


def _stages(status: dict[str, Any]) -> int:
    """Of the first ring of the first model; 0 without a ring, or while it loads and a former one still serves."""
    rings = [ring for model in status["models"] for ring in model["rings"]]
    return len(rings[0]["stages"]) if rings and rings[0]["state"] == "ready" else 0


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One test's own nodes."""
    with running_cluster(tmp_path) as cluster:
        yield cluster


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process, and all of tests/engine, which share the models of a process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return ENGINE if nodeid.startswith(ENGINE) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    _shown[:] = [node for node in _shown if not node.ended]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the nodes' logs to the report of a failure."""
    report: Any = yield
    if report.failed:
        report.sections += [(f"log of {node.name}", node.written[-6000:]) for node in _shown]
    return report


_STOCK = """
import json, os, sys
import mlx_lm
from node.engine.device import choose_device
choose_device(os.environ.get("PIPPIN_DEVICE", ""))
model, tokenizer = mlx_lm.load(sys.argv[1])
texts = {}
for content, max_tokens, messages in json.load(sys.stdin):
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    texts[content] = mlx_lm.generate(model, tokenizer, prompt, max_tokens=max_tokens)
json.dump(texts, sys.stdout)
"""

PROMPTS = {
    "Hello": 64,
    "Count from 1 to 100": 300,
    "Count from 1 to 20": 128,
    "What is the capital of France?": 64,
    "Tell me a story.": 200,
    "What is 7 plus 8?": 64,
    "Repeat after me: apple banana 🙂 orange": 64,
    "Count from 10 to 1": 64,
    "Who are you?": 64,
}
"""Each with the maximum number of tokens of its answer."""
DIALOG = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "My name is Clara."},
    {"role": "assistant", "content": "Nice to meet you, Clara! 😊"},
    {"role": "user", "content": "What is my name?"},
]


@pytest.fixture(scope="session")
def stock() -> dict[str, str]:
    """Stock mlx-lm's answers, by prompt, and as "dialog"."""
    asked = [(content, most, [{"role": "user", "content": content}]) for content, most in PROMPTS.items()]
    return stock_texts(ROOT / "node" / "builtin" / MODEL, [*asked, ("dialog", 64, DIALOG)])


def stock_texts(model: Path, asked: Sequence[tuple[str, int, Sequence[Mapping[str, str]]]]) -> dict[str, str]:
    """Stock mlx-lm's greedy answers to (name, maximum of tokens, messages), by name."""
    texts: dict[str, str] = printed("-c", _STOCK, str(model), given=asked)
    return texts


def printed(*arguments: str, given: Any = None) -> Any:
    """The JSON that a program in Python prints, which is given JSON: MLX must not share a process with the tests' threads."""
    command, environment = [sys.executable, *arguments], os.environ | NODE_ENVIRONMENT
    done = subprocess.run(
        command,
        env=environment,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
