"""What becomes of a parameter that is not followed: metadata of its field, which the schema obeys and the documents list."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import with_info_after_validator_function

from api.http.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Ignored:
    """Checked, and of no effect on the answer's text."""

    but: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Refused (`unsupported`), unless it is empty."""

    why: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any, info: ValidationInfo) -> Any:
        if value:
            reason = f": {self.why}" if self.why else ""
            raise Unsupported(f"'{info.field_name}' is not supported{reason}.", param=info.field_name)
        return value


IGNORED = Ignored()
RETURNED = Ignored("returned unchanged")
WIDTH = Refused("an embedding is as wide as the model's hidden states")


def not_followed(schema: type[BaseModel]) -> dict[str, Ignored | Refused]:
    """The marks of a schema's fields that have one."""
    fields = schema.model_fields.items()
    return {name: each for name, field in fields for each in field.metadata if isinstance(each, Ignored | Refused)}
