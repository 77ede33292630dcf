"""Error objects as Ollama's clients expect them: `{"error": "..."}`."""

from typing import Any

from api.http.errors import shorten


def error_object(_status: int, message: str, **_: str | None) -> dict[str, Any]:
    """Error object for JSON. The message names what is wrong; Ollama has no field for the code and the parameter."""
    return {"error": shorten(message)}
