"""Shared by all clients' checks. Standard library only, because each runs in its own environment."""

import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL = os.environ["CLIENT_URL"]
"""URL of the API, with /v1."""
MODEL = "pippin-demo"
KNOWN: dict[str, Any] = json.loads(Path(os.environ["CLIENT_KNOWN"]).read_text())
"""Results of stock mlx-lm for this model; see known.py."""
HELLO: str = KNOWN["texts"]["Hello"]
ASK = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": WEATHER}}


def is_weather(value: Any) -> bool:
    """Whether the tool accepts it."""
    return set(value) == {"city", "days"} and value["city"] in ("Paris", "Rome") and value["days"] >= 1


def post(path: str, body: Any, **headers: str) -> Any:
    """Send a request without any client, for comparison."""
    request = urllib.request.Request(
        URL + path, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def refused(kind: type[Exception] | tuple[type[Exception], ...], ask: Callable[[], Any]) -> Exception:
    """Return the error that the client raises, which must be of the given kind."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError("nothing was raised")


def run(*checks: Callable[[], None]) -> None:
    """Run all checks and print a line of JSON for each. The exit code is 0 if all passed."""
    failed = 0
    only = sys.argv[1:]
    for check in checks:
        if only and check.__name__ not in only:
            continue
        begin, why = time.monotonic(), ""
        try:
            check()
        except Exception as error:  # noqa: BLE001 whatever a client raises is its verdict
            failed += 1
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        verdict = {"check": check.__name__, "why": why, "seconds": round(time.monotonic() - begin, 2)}
        sys.stdout.write(json.dumps(verdict) + "\n")
    sys.exit(1 if failed else 0)
