"""Tools with free text for arguments, `custom` ones at OpenAI. A model sees each as a function with one text, `input`."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError, from_json

from api.chat.message import INPUT, StrictModel
from node.text.grammar import Function

NAME = r"^[a-zA-Z0-9_-]{1,128}$"
"""Names of tools: OpenAI allows 64 characters, Anthropic 128, which names of MCP tools need."""


class InputGrammar(StrictModel):
    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1)


class InputFormat(StrictModel):
    type: Literal["text", "grammar"] = "text"
    grammar: InputGrammar | None = None

    @model_validator(mode="after")
    def _has_its_grammar(self) -> Self:
        if self.type == "grammar" and self.grammar is None:
            raise PydanticCustomError("format", 'Input should have a "grammar"')
        return self


class CustomTool(StrictModel):
    name: str = Field(pattern=NAME)
    description: str | None = None
    format: InputFormat = InputFormat()

    @property
    def grammar(self) -> InputGrammar | None:
        """What the input must follow; None: any text."""
        return self.format.grammar if self.format.type == "grammar" else None

    @property
    def for_template(self) -> dict[str, Any]:
        what = "The input of the tool."
        if self.grammar:
            kind = {"lark": "follows this grammar in Lark's syntax", "regex": "matches this regular expression"}
            what = f"The input of the tool, which {kind[self.grammar.syntax]}:\n{self.grammar.definition}"
        parameters = {"type": "object", "properties": {INPUT: {"type": "string", "description": what}}}
        described = {"description": self.description} if self.description else {}
        function = {"name": self.name, **described, "parameters": {**parameters, "required": [INPUT]}}
        return {"type": "function", "function": function}

    @property
    def function(self) -> Function:
        if self.grammar is None:
            return Function(self.name, {}, free=("regex", "(?s:.*)"))
        kind = "grammar" if self.grammar.syntax == "lark" else "regex"
        return Function(self.name, {}, strict=True, free=(kind, self.grammar.definition))


def input_of(written: str, *, ended: bool) -> str:
    """The input of a call that a model wrote as a function's, with these arguments in JSON, which are cut off unless `ended`."""
    otherwise = written if ended else ""
    try:
        arguments = from_json(written, allow_partial="trailing-strings")
    except ValueError:
        return otherwise
    texts = [arguments[INPUT]] if INPUT in arguments else list(arguments.values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else otherwise
