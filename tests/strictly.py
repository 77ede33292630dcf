"""Validates data against the types of an official package: no missing and no additional fields."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

Fields = Mapping[type[BaseModel], frozenset[str]]


@dataclass(frozen=True)
class Strictness:
    """`always`: fields that the API always sends, maybe as null, but that may be missing in the package's types.
    `extras`: fields that the API does not have; the documentation explains them.
    """

    always: Fields
    extras: Fields

    def check(self, kind: Any, data: Any) -> Any:
        """Validate `data`, decoded from JSON, without conversions and without additional fields. Returns the object."""
        made = _adapter(kind).validate_json(json.dumps(data), strict=True)
        self._check_fields(made)
        return made

    def _check_fields(self, value: Any) -> None:
        if isinstance(value, BaseModel):
            name = type(value).__name__
            extra = set(value.model_extra or ()) - _named(self.extras, value)
            assert not extra, f"{name} has no {sorted(extra)}"
            missing = _named(self.always, value) - value.model_fields_set
            assert not missing, f"{name} needs {sorted(missing)}"
            for field in value.model_fields_set:
                self._check_fields(getattr(value, field))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for item in value:
                self._check_fields(item)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _named(fields: Fields, value: BaseModel) -> frozenset[str]:
    return frozenset[str]().union(*(names for kind, names in fields.items() if isinstance(value, kind)))
