"""Tools of a chat request, validated as OpenAI does, in today's format and the older one (`functions`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from api.chat.custom_tools import NAME, CustomTool
from api.chat.message import StrictModel
from api.http.limits import MAX_TOOLS
from node.core.errors import BadRequest
from node.text.grammar import Function

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

Mode = Literal["none", "auto", "required"]


def _is_object_schema(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("type", "object") != "object":
        raise PydanticCustomError("parameters", 'Input should be a JSON schema of type "object"')
    if not isinstance(value.get("properties", {}), dict):
        raise PydanticCustomError("parameters", '"properties" should be an object')
    return value


class FunctionTool(StrictModel):
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_is_object_schema)] | None = None
    strict: bool | None = None
    _given: dict[str, Any] = PrivateAttr()

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        tool = validate(given)
        tool._given = given  # noqa: SLF001
        return tool

    @property
    def for_template(self) -> dict[str, Any]:
        """The tool as it was sent, in the same order, but always with `parameters`, on which templates may rely."""
        given = {key: value for key, value in self._given.items() if value is not None}
        return {"type": "function", "function": given if self.parameters else {**given, "parameters": NO_PARAMETERS}}

    @property
    def function(self) -> Function:
        return Function(self.name, {**NO_PARAMETERS, **(self.parameters or {})}, strict=bool(self.strict))


class Tool(StrictModel):
    type: Literal["function"]
    function: FunctionTool


class Custom(StrictModel):
    type: Literal["custom"]
    custom: CustomTool


def _tool(value: Any) -> FunctionTool | CustomTool:
    if isinstance(value, Mapping) and value.get("type") == "custom":
        return Custom.model_validate(value).custom
    return Tool.model_validate(value).function


AnyTool = Annotated[FunctionTool | CustomTool, PlainValidator(_tool)]


@dataclass(frozen=True, slots=True)
class CallsWanted:
    """Which calls a request allows or requires. `names`: of these tools; None: of all."""

    mode: Mode
    names: Sequence[str] | None = None
    one: bool = False
    """Allow a single call only."""
    kind: type[FunctionTool | CustomTool] | None = None
    """Of the tool that is named; None: any."""


def _tool_choice(value: Any) -> CallsWanted:
    match value:
        case "none" | "auto" | "required":
            return CallsWanted(value)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return CallsWanted("required", [name], one=True, kind=FunctionTool)
        case {"type": "custom", "custom": {"name": str(name)}} | {"type": "custom", "name": str(name)}:
            return CallsWanted("required", [name], one=True, kind=CustomTool)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            if len(tools) > MAX_TOOLS:
                why = f"Input should allow at most {MAX_TOOLS} tools, not {len(tools)}"
                raise PydanticCustomError("tool_choice", why)
            return CallsWanted(mode, [_allowed_name(tool) for tool in tools])
    raise PydanticCustomError(
        "tool_choice", 'Input should be "none", "auto", "required", or an object that names a tool'
    )


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
        case {"type": "custom", "custom": {"name": str(name)}} | {"type": "custom", "name": str(name)}:
            return name
    raise PydanticCustomError(
        "tool_choice", "Each of the allowed tools should be a function or a custom tool, with its name"
    )


def _function_call(value: Any) -> CallsWanted:
    match value:
        case "none" | "auto":
            return CallsWanted(value, one=True)
        case {"name": str(name)}:
            return CallsWanted("required", [name], one=True)
    raise PydanticCustomError("function_call", 'Input should be "none", "auto", or an object that names a function')


ToolChoice = Annotated[CallsWanted, BeforeValidator(_tool_choice)]
FunctionCallChoice = Annotated[CallsWanted, BeforeValidator(_function_call)]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and which calls it allows or requires."""

    tools: Sequence[FunctionTool | CustomTool] = ()
    """Empty if no calls are allowed."""
    mode: Mode = "none"
    names: Sequence[str] = ()
    """Names of the tools that may be called."""
    many: bool = True
    legacy: bool = False
    """The request is in the older format, `functions`, and so is its answer."""

    @property
    def for_template(self) -> list[dict[str, Any]]:
        return [tool.for_template for tool in self.tools]

    @property
    def callable(self) -> list[tuple[int, Function]]:
        """The functions that may be called, each with its index among the request's tools."""
        return [(index, tool.function) for index, tool in enumerate(self.tools) if tool.name in self.names]

    @property
    def custom(self) -> frozenset[str]:
        """Names of the tools whose calls have a text instead of arguments."""
        return frozenset(tool.name for tool in self.tools if isinstance(tool, CustomTool))


def tool_use(
    tools: Sequence[FunctionTool | CustomTool], choice: CallsWanted | None, *, many: bool, legacy: bool
) -> ToolUse:
    """Raises BadRequest for duplicate names, a choice of unknown tools, or a required call without tools."""
    param, chooser = ("functions", "function_call") if legacy else ("tools", "tool_choice")
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"Invalid '{param}': the name '{twice}' is given twice.", param=param)
    choice = choice or CallsWanted("auto")
    if not tools and choice.mode == "required":
        raise BadRequest(f"'{chooser}' requires a call, but there are no '{param}'.", param=chooser)
    known = [tool.name for tool in tools if choice.kind is None or isinstance(tool, choice.kind)]
    if unknown := next((name for name in choice.names or () if name not in known), None):
        kind = "custom tool" if choice.kind is CustomTool else "function"
        raise BadRequest(f"Invalid '{chooser}': there is no {kind} '{unknown}' in '{param}'.", param=chooser)
    if not tools or choice.mode == "none" or choice.names == []:
        return ToolUse(legacy=legacy)
    wanted = names if choice.names is None else list(dict.fromkeys(choice.names))
    many = many and not choice.one and not legacy
    return ToolUse(tools, choice.mode, wanted, many=many, legacy=legacy)
