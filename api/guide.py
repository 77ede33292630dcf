"""How the answers of a chat request are to be made and read: the grammar that they follow, and what reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.reader import CallReader, FamilyReader, Reader
from api.tools import ToolUse
from node.engine.grammars import Grammars
from node.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A `response_format` that is not plain text."""

    schema: Mapping[str, Any]
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Guide:
    """`grammar` "": the answer is free, and may call tools and think in the way of its model's family."""

    use: ToolUse
    grammar: str = ""

    def template_kwargs(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A grammar leaves no room for thoughts, so the template shall not ask for any, unless it was told to."""
        return {"enable_thinking": False, **given} if self.grammar else dict(given)

    def reader(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> Reader | None:
        """A new one for each answer; None when an answer can be nothing but text."""
        use = self.use
        if self.grammar:
            if not use.tools:
                return None
            return CallReader(use.names, only=use.names[0] if _has_no_head(use) else None)
        dialect = tokenizer.dialect
        if not any(dialect.markers(tools=bool(use.tools)).values()):
            return None
        channel = dialect.channel_after(prompt)
        return FamilyReader(tokenizer, channel=channel, tools=use.for_template, names=use.names, many=use.many)


async def make_guide(grammars: Grammars, use: ToolUse, form: JsonFormat | None) -> Guide:
    """Raises BadRequest for a schema that can't be followed."""
    return Guide(use, await _grammar(grammars, use, form))


async def _grammar(grammars: Grammars, use: ToolUse, form: JsonFormat | None) -> str:
    """Calls that are demanded come before a form that is; where both are possible the model chooses."""
    answer = await grammars.json(form.schema, strict=form.strict, param="response_format") if form else ""
    if use.mode != "required" and not (use.tools and form):
        return answer
    param = "functions" if use.legacy else "tools"
    for index, function in use.callable:
        place = f"{param}[{index}].parameters" if use.legacy else f"{param}[{index}].function.parameters"
        arguments = await grammars.json(function.parameters, strict=function.strict, param=place)
    if _has_no_head(use):
        return arguments
    functions = [function for _, function in use.callable]
    return await grammars.calls(
        functions, many=use.many, param=param, answer=form.schema if form and use.mode == "auto" else None
    )


def _has_no_head(use: ToolUse) -> bool:
    """One call of one function must come: its arguments are all there is to say."""
    return use.mode == "required" and not use.many and len(use.names) == 1
