"""A hub on localhost for the real huggingface_hub client, and small models of random bytes."""

import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

LAYERS = 4
LAYER_BYTES = 3_000


def safetensors(tensors: Mapping[str, int]) -> bytes:
    """A safetensors file with random tensors of the given lengths."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, nbytes in tensors.items():
        header[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [at, at + nbytes]}
        at += nbytes
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + os.urandom(at)


def model_files() -> dict[str, bytes]:
    """A model of four layers in three files: the embedding with layer 0, layers 1 and 2, layer 3 with norm and head."""
    parts: list[dict[str, int]] = [
        {"model.embed_tokens.weight": 5_000, **layer(0)},
        {**layer(1), **layer(2)},
        {**layer(3), "model.norm.weight": 100, "lm_head.weight": 4_000},
    ]
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    return {
        "config.json": json.dumps({"model_type": "llama", "num_hidden_layers": LAYERS}).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "chat_template.jinja": b"{{ messages }}",
        "README.md": b"# A model",
        "modeling_evil.py": b"raise SystemExit",
        "model.safetensors.index.json": json.dumps({"weight_map": index}).encode(),
        **{name: safetensors(part) for name, part in zip(names, parts, strict=True)},
    }


def layer(number: int) -> dict[str, int]:
    prefix = f"model.layers.{number}"
    return {f"{prefix}.mlp.up_proj.weight": LAYER_BYTES - 500, f"{prefix}.self_attn.q_proj.weight": 500}


@pytest.fixture
def make_model() -> Callable[..., Path]:
    def make(directory: Path, files: Mapping[str, bytes] | None = None) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in (model_files() if files is None else files).items():
            (directory / name).write_bytes(content)
        return directory

    return make


@pytest.fixture
def make_safetensors() -> Callable[[Mapping[str, int]], bytes]:
    return safetensors


PARAMETERS = {"BF16": 100, "U32": 50}
"""What the hub says of a model's weights."""
HEADER = " bytes=0-100000"
"""Range that a reader of headers requests."""


class FakeHub:
    """The hub's protocol as far as downloads need it. `log` lists the requests, as `METHOD path`."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {"org/model": model_files()}
        self.gated: set[str] = set()
        self.breaks: dict[str, int] = {}
        """Files whose next download breaks off after this many bytes."""
        self.stalls: dict[str, int] = {}
        """Files whose next download sends this many bytes, and the rest only when `stalled` is set."""
        self.stalled = threading.Event()
        self.silent: set[str] = set()
        """Repositories whose weights send nothing until `stalled` is set; their headers come."""
        self.silenced = threading.Semaphore(0)
        """Released by each download that gets nothing."""
        self.sends_parts = True
        """Whether it supports Range."""
        self.status = 200
        self.found: object = None
        """What a search answers instead."""
        self.log: list[str] = []
        self.url = ""

    @staticmethod
    def commit(files: Mapping[str, bytes]) -> str:
        return hashlib.sha1(b"".join(files.values())).hexdigest()

    def fetched(self) -> list[str]:
        """Weight files of which more than the header was read, in order."""
        found = (re.fullmatch(r"GET \S+/([\w.-]+\.safetensors)( bytes=.*)?", line) for line in self.log)
        return [match[1] for match in found if match and match[2] != HEADER]

    def begins(self, name: str) -> list[int]:
        """First byte of each request for a file, except for requests for headers."""
        found = (re.fullmatch(rf"GET \S+/{re.escape(name)} bytes=(\d+)-(\d*)", line) for line in self.log)
        return [int(match[1]) for match in found if match and not match[0].endswith(HEADER)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.respond()

    def do_GET(self) -> None:
        self.respond()

    def respond(self) -> None:
        path = self.path.partition("?")[0]
        hub = self.server.hub
        hub.log.append(" ".join(filter(None, [self.command, path, self.headers.get("Range")])))
        if hub.status != 200:
            return self.send(hub.status, b"{}")
        if path == "/api/models":
            return self.search()
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/\w+)?", path):
            return self.info(match[1])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/\w+/(.+)", path):
            return self.file(match[1], match[2])
        return self.send(404, b"{}")

    def search(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        found = [repo for repo in self.server.hub.repos if asked["search"][0].lower() in repo.lower()]
        assert (asked["filter"], asked["expand"]) == (["mlx"], ["downloads", "safetensors"])
        answer = [{"id": repo, "downloads": 7, "safetensors": {"parameters": PARAMETERS}} for repo in found]
        return self.send(200, json.dumps(self.server.hub.found or answer).encode())

    def info(self, repo: str) -> None:
        hub = self.server.hub
        files = hub.repos.get(repo)
        if files is None:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
        body = {"id": repo, "sha": hub.commit(files), "siblings": siblings, "tags": [], "downloads": 7}
        body["safetensors"] = {"parameters": PARAMETERS, "total": sum(PARAMETERS.values())}
        return self.send(200, json.dumps(body).encode())

    def file(self, repo: str, name: str) -> None:
        hub = self.server.hub
        files = hub.repos.get(repo)
        if files is None:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if repo in hub.gated and self.headers.get("Authorization") != "Bearer good":
            return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        commit = {"X-Repo-Commit": hub.commit(files)}
        if name not in files:
            return self.send(404, b"{}", {"X-Error-Code": "EntryNotFound", **commit})
        content = files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes", **commit}
        is_weights = name.endswith(".safetensors") and f" {self.headers.get('Range')}" != HEADER
        if repo in hub.silent and is_weights and self.command == "GET":
            hub.silenced.release()
            hub.stalled.wait(60)
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span and hub.sends_parts:
            start, end = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            return self.send(206, content[start : end + 1], headers, name)
        return self.send(200, content, headers, name)

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, name: str = "") -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        hub, is_header = self.server.hub, f" {self.headers.get('Range')}" == HEADER
        if not is_header and (keep := hub.breaks.pop(name, None)) is not None:
            self.wfile.write(body[:keep])
            self.close_connection = True
        elif not is_header and (keep := hub.stalls.pop(name, None)) is not None:
            self.wfile.write(body[:keep])
            hub.stalled.wait(60)
            self.close_connection = True
        else:
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub


@contextlib.contextmanager
def running_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it on localhost; afterwards nothing listens there."""
    with Server(hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield hub
        hub.stalled.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    with running_hub(FakeHub()) as hub:
        yield hub
