"""OpenAI's harmony format, in which gpt-oss writes answers: messages, each with a header. mlx-lm does not support it.

    <|channel|>analysis<|message|>thoughts<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>answer<|return|>

Source: https://cookbook.openai.com/articles/openai-harmony.
"""

import json
import re
from typing import Any

CONTROLS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>")
"""Control tokens by which a vocabulary of this family is recognized."""
OPENING = "<|channel|>final<|message|>"
"""Header of the text, to make an answer begin without reasoning."""
TRANSITIONS = {
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
    """Parse the text from " to=functions." to the end of the message, as mlx-lm's parsers do. Raises ValueError."""
    found = CALL.fullmatch(text)
    if found is None:
        raise ValueError("no name, or no message")
    return {"name": found["name"], "arguments": json.loads(found["arguments"])}
