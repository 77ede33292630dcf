"""How gpt-oss writes answers (OpenAI's harmony format), which mlx-lm does not know: messages, each with a header.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import json
import re
from typing import Any

CONTROLS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>")
"""A vocabulary that has all of them is of this family."""
OPENING = "<|channel|>final<|message|>"
"""The header of an answer, for one that shall begin at once."""
TURNS = {
    "header": [
        ("<|channel|>analysis<|message|>", "reasoning"),
        (" to=functions.", "tool"),
        ("<|message|>", "normal"),
    ],
    "reasoning": [("<|end|>", "header")],
    "normal": [("<|end|>", "header")],
    "tool": [("<|call|>", "header"), ("<|end|>", "header")],
}

CALL = re.compile(r"(?P<name>[\w-]+).*?<\|message\|>(?P<arguments>.*)", re.DOTALL)


def parse_tool_call(text: str, _tools: Any = None) -> dict[str, Any]:
    """As mlx-lm's parsers: what stands between " to=functions." and the end of the message. Raises ValueError."""
    found = CALL.fullmatch(text)
    if found is None:
        raise ValueError("no name, or no message")
    return {"name": found["name"], "arguments": json.loads(found["arguments"])}
