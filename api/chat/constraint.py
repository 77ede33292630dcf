"""Constrains the answers of a chat request to a format or to tool calls, and parses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.chat.reader import CallReader, FamilyReader, Reader
from api.chat.tools import ToolUse
from node.text.grammars import Grammars
from node.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A `response_format` other than plain text."""

    schema: Mapping[str, Any]
    strict: bool = False


def make_reader(use: ToolUse, grammar: str, tokenizer: Tokenizer, prompt: Sequence[int]) -> Reader | None:
    """The reader of one answer; None if the answer can be nothing but text.

    `grammar`: of the answer; empty: it may have reasoning and tool calls in the format of the model's family.
    """
    if grammar:
        only = use.names[0] if _has_no_head(use) else None
        return CallReader(use.names, only=only) if use.tools else None
    dialect = tokenizer.dialect
    if not any(dialect.markers(tools=bool(use.tools)).values()):
        return None
    channel = dialect.channel_after(prompt)
    return FamilyReader(tokenizer, channel=channel, tools=use.for_template, names=use.names, many=use.many)


async def make_grammar(grammars: Grammars, use: ToolUse, form: JsonFormat | None, client: str) -> str:
    """Make the grammar of an answer for a client; empty: none is needed. Raises BadRequest for a schema that has no grammar.

    Required calls take precedence over a required format; if both are possible, the model chooses.
    """
    answer = ""
    if form:
        answer = await grammars.json(form.schema, strict=form.strict, param="response_format", client=client)
    if use.mode != "required" and not (use.tools and form):
        return answer
    param = "functions" if use.legacy else "tools"
    for index, function in use.callable:
        place = f"{param}[{index}].parameters" if use.legacy else f"{param}[{index}].function.parameters"
        arguments = await grammars.json(function.parameters, strict=function.strict, param=place, client=client)
    if _has_no_head(use):
        return arguments
    functions = [function for _, function in use.callable]
    schema = form.schema if form and use.mode == "auto" else None
    return await grammars.calls(functions, many=use.many, param=param, client=client, answer=schema)


def _has_no_head(use: ToolUse) -> bool:
    """Whether exactly one call of one known function is required: the answer is then only its arguments."""
    return use.mode == "required" and not use.many and len(use.names) == 1
