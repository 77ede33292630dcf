"""Programs that speak Ollama's API: their requests as their sources write them, and what they read of the answers.

Open WebUI 0.12.4, and the chat of VS Code, which finds models by Ollama's API and asks them by OpenAI's.
"""

import json
import urllib.request
from datetime import datetime
from typing import Any

from harness import ASK, HELLO, MODEL, TOOL, URL, WEATHER, is_weather, post, run

HOST = URL.removesuffix("/v1")
AGENT = {"Content-Type": "application/json", "User-Agent": "Python/3.12 aiohttp/3.13"}


def get(path: str) -> Any:
    with urllib.request.urlopen(HOST + path, timeout=60) as response:
        return json.load(response)


def send(path: str, body: Any, **headers: str) -> tuple[Any, list[Any]]:
    """The headers of the answer, and the objects in its lines."""
    request = urllib.request.Request(HOST + path, json.dumps(body).encode(), AGENT | headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.headers, [json.loads(line) for line in response]


def lines(path: str, body: Any) -> list[Any]:
    headers, told = send(path, body)
    assert headers["Content-Type"].startswith("application/x-ndjson")
    return told


def plain(path: str, body: Any) -> Any:
    _, (told,) = send(path, body)
    return told


def webui_lists() -> None:
    """It looks a model up by the name in the list, and asks for its time of expiry."""
    assert tuple(map(int, get("/api/version")["version"].split("."))) >= (0, 1, 33)
    names = {model["model"]: model for model in get("/api/tags")["models"]}
    assert names[f"{MODEL}:latest"]["details"]["format"]
    loaded = {model["model"]: model["expires_at"] for model in get("/api/ps")["models"]}
    assert datetime.fromisoformat(loaded[f"{MODEL}:latest"]).timestamp() > 0


def webui_chats() -> None:
    options = {"temperature": 0.0, "num_ctx": 4096, "num_predict": 200, "stop": None, "mirostat": 0, "use_mmap": True}
    *parts, last = lines(
        "/api/chat",
        {"model": f"{MODEL}:latest", "messages": ASK, "stream": True, "options": options, "keep_alive": "5m"},
    )
    assert "".join(part["message"]["content"] for part in parts) == HELLO
    assert last["done_reason"] == "stop"
    assert all(last[name] > 0 for name in ("prompt_eval_count", "eval_count", "eval_duration", "total_duration"))


def webui_goes_on_after_a_call() -> None:
    """It sends the index beside the function, null for an id, and results by id alone."""
    call = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": {"city": "Rome", "days": 1}}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call], "content": ""},
        {"role": "tool", "content": "Sunny.", "tool_call_id": "call_1"},
    ]
    body = {"model": f"{MODEL}:latest", "messages": messages, "tools": [TOOL], "stream": True}
    assert lines("/api/chat", body)[-1]["done"]


def webui_asks_for_titles() -> None:
    body = {"model": f"{MODEL}:latest", "messages": ASK, "stream": False, "options": {"temperature": 0}}
    assert plain("/api/chat", body)["message"]["content"] == HELLO


def webui_embeds() -> None:
    body = {"model": MODEL, "input": ["Hello", "Good evening"], "truncate": True}
    assert len(plain("/api/embed", body)["embeddings"]) == 2


def vs_code() -> None:
    """It asks for models by the names in the list, also by OpenAI's API, and reads the context from their facts."""
    assert tuple(map(int, get("/api/version")["version"].split("."))) >= (0, 6, 4)
    name = next(model["model"] for model in get("/api/tags")["models"] if model["model"].startswith(MODEL))
    shown = plain("/api/show", {"model": name})
    facts = shown["model_info"]
    assert facts["general.basename"] == MODEL
    assert facts[f"{facts['general.architecture']}.context_length"] == 16384
    assert "tools" in shown["capabilities"]
    answer = post("/chat/completions", {"model": name, "messages": ASK, "temperature": 0})
    assert answer["choices"][0]["message"]["content"] == HELLO


def obsidian() -> None:
    """A plug-in in a desktop program: the origin is the program's."""
    body = {"model": MODEL, "prompt": "Hello", "format": WEATHER, "stream": False}
    headers, (answer,) = send("/api/generate", body, Origin="app://obsidian.md")
    assert headers["Access-Control-Allow-Origin"] == "app://obsidian.md"
    assert is_weather(json.loads(answer["response"]))


if __name__ == "__main__":
    run(webui_lists, webui_chats, webui_goes_on_after_a_call, webui_asks_for_titles, webui_embeds, vs_code, obsidian)
