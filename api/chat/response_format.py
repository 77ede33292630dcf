"""OpenAI's own name of the form that an answer must have."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from api.chat.custom_tools import NAME
from api.chat.forms import JsonFormat
from api.chat.message import StrictModel
from node.core.errors import BadRequest


class JsonSchema(StrictModel):
    name: str = Field(pattern=NAME)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """Of a `json_object`, as llama.cpp and others have it."""

    @property
    def json_format(self) -> JsonFormat | None:
        """The format that the answer must have; None: any text."""
        if self.type == "text":
            return None
        if self.json_schema is None:
            return JsonFormat(self.schema_ or {"type": "object"})
        return JsonFormat(self.json_schema.schema_, strict=bool(self.json_schema.strict))

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            param = "response_format.json_schema"
            raise BadRequest(f"Missing required parameter: '{param}'.", param=param)
        return self
