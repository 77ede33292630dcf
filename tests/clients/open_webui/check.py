"""Open WebUI's server, with a node as both of its connections: lists, answers, and a chat with its own tools."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import ASK, HELLO, MODEL, URL, run

PROGRAM = Path(os.environ["CLIENT_ENVIRONMENT"]) / "bin" / "open-webui"
LONG = os.environ["CLIENT_AGENT_MODEL"]
"""A model of random weights with room for Open WebUI's tools, of more than 8,000 tokens."""
START_S = 300.0


class Server:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._token = ""

    def ask(self, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=240) as response:
            return json.load(response)

    def sign_in(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._token:
            try:
                self._token = self.ask("/api/v1/auths/signin", {"email": "", "password": ""})["token"]
            except (urllib.error.URLError, OSError):
                assert time.monotonic() < deadline, "Open WebUI does not start"
                time.sleep(1)

    def chat(self, model: str, **more: Any) -> Any:
        return self.ask("/api/chat/completions", {"model": model, "stream": False, "messages": ASK, **more})


@contextlib.contextmanager
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        settings = {
            "OPENAI_API_BASE_URLS": URL,
            "OPENAI_API_KEYS": "any",
            "OLLAMA_BASE_URLS": URL.removesuffix("/v1"),
            "DATA_DIR": directory,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "any",
            "OFFLINE_MODE": "true",
            "RAG_EMBEDDING_ENGINE": "openai",
            "PYTHONPATH": "",
        }
        command = [str(PROGRAM), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            asked = Server(port)
            asked.sign_in()
            yield asked
        finally:
            process.terminate()
            process.wait(30)


def both_connections() -> None:
    with server() as webui:
        owners = {each["id"]: each["owned_by"] for each in webui.ask("/api/models")["data"]}
        names = {MODEL: "openai", f"{MODEL}:latest": "ollama"}
        assert owners.items() >= names.items(), owners
        for name in names:
            assert webui.chat(name)["choices"][0]["message"]["content"] == HELLO
            legacy = webui.chat(name, session_id="s", params={"function_calling": "legacy"})
            assert legacy["choices"][0]["message"]["content"] == HELLO
            with_tools = webui.chat(name, session_id="s")
            assert with_tools["choices"][0]["message"]["content"] == HELLO
        # With a session, as of a browser, Open WebUI sends its own tools.
        for name in (LONG, f"{LONG}:latest"):
            answer = webui.chat(name, session_id="s", max_tokens=8)
            assert answer["usage"]["prompt_tokens"] > 4000, answer


if __name__ == "__main__":
    run(both_connections)
