"""Constrains the answers of a chat request to a format or to tool calls, and parses them."""

import re
from collections.abc import Sequence

from api.chat.call_reader import CallReader
from api.chat.family_reader import FamilyReader
from api.chat.forms import Format, JsonFormat
from api.chat.reader import Reader
from api.chat.tools import ToolUse
from node.core.errors import BadRequest
from node.text.call_form import CallForm, pattern
from node.text.grammar import Function, split_mark
from node.text.grammars import Grammars
from node.text.tagged import arguments_of
from node.text.tokenizer import Tokenizer


def make_reader(use: ToolUse, grammar: str, tokenizer: Tokenizer, prompt: Sequence[int]) -> Reader | None:
    """The reader of one answer; None if the answer can be nothing but text.

    `grammar`: of the answer; if empty, or free up to a mark, it may have reasoning and tool calls in the format of the
    model's family.
    """
    if grammar and not split_mark(grammar)[0]:
        only = use.names[0] if _has_no_head(use) else None
        or_text = use.mode != "required"
        return CallReader(use.names, only=only, custom=use.custom, or_text=or_text) if use.tools else None
    dialect = tokenizer.dialect
    if not any(dialect.markers(tools=bool(use.tools)).values()):
        return None
    free: dict[re.Pattern[str], str] = {}
    if grammar and (form := dialect.form):
        head, opening = pattern(form.head), pattern("".join(map(str, form.opening)))
        free = {re.compile(head + re.escape(name) + opening): name for name in use.custom}
    return FamilyReader(
        tokenizer,
        channel=dialect.channel_after(prompt),
        tools=use.for_template,
        names=use.names,
        many=use.many,
        custom=use.custom,
        free=free,
        bound=bool(grammar) and dialect.begins_calls,
    )


async def make_grammar(
    grammars: Grammars, use: ToolUse, form: Format | None, client: str, calls: CallForm | None = None
) -> str:
    """Make the grammar of an answer for a client; empty: none is needed. `calls`: their form in the model's family. Raises
    BadRequest for a form that has no grammar.

    Required calls take precedence over a required format; if both are possible, the model chooses. Calls that may come
    in a text follow the grammar of `make_optional_grammar`.
    """
    answer = ""
    if isinstance(form, JsonFormat):
        answer = await grammars.json(form.schema, strict=form.strict, param=form.param, client=client)
    elif form:
        answer = await grammars.text(form.kind, form.text, param=form.param, client=client)
        if use.tools:
            raise BadRequest(f"'{form.param}' can't be combined with tools.", param=form.param)
    if use.mode != "required" and not (use.tools and form):
        return answer
    param = "functions" if use.legacy else "tools"
    for index, function in use.callable:
        arguments = await _arguments(grammars, use, index, function, client)
    if _has_no_head(use):
        return arguments
    functions = [function for _, function in use.callable]
    schema = form.schema if isinstance(form, JsonFormat) and use.mode == "auto" else None
    return await grammars.calls(functions, many=use.many, param=param, client=client, answer=schema, form=calls)


async def make_optional_grammar(grammars: Grammars, use: ToolUse, tokenizer: Tokenizer, client: str) -> str:
    """Make the grammar of an answer that may call tools of which one is `strict`: free up to the mark of the model's family.
    Empty: there is no such tool, or the family's form is not known. Raises BadRequest for a strict schema that has no
    grammar; the arguments of a tool that is not strict are then any object.
    """
    form = tokenizer.call_form
    can_follow = tokenizer.has_fixed_bytes and tokenizer.eos
    if form is None or not can_follow or not any(each.strict for _, each in use.callable):
        return ""
    functions = []
    param = "functions" if use.legacy else "tools"
    for index, function in use.callable:
        try:
            await _arguments(grammars, use, index, function, client)
            if form.value and not function.free:
                arguments_of(function.parameters)
            functions.append(function)
        except BadRequest as error:
            if function.strict:
                error.param = error.param or _param(use, index)
                raise
            functions.append(Function(function.name, {"type": "object"}))
    return await grammars.calls(functions, many=use.many, param=param, client=client, form=form, free=True)


async def _arguments(grammars: Grammars, use: ToolUse, index: int, function: Function, client: str) -> str:
    """The grammar of a call's arguments, or of its text. Raises BadRequest."""
    if function.free:
        kind, text = function.free
        param = f"tools[{index}].custom.format.grammar.definition"
        return await grammars.text(kind, text, param=param, client=client)
    return await grammars.json(function.parameters, strict=function.strict, param=_param(use, index), client=client)


def _param(use: ToolUse, index: int) -> str:
    return f"functions[{index}].parameters" if use.legacy else f"tools[{index}].function.parameters"


def _has_no_head(use: ToolUse) -> bool:
    """Whether exactly one call of one known function is required: the answer is then only its arguments."""
    return use.mode == "required" and not use.many and len(use.names) == 1
