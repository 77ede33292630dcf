"""Which architectures Pippin runs."""

from collections.abc import Mapping
from typing import Any


def check_supported(config: Mapping[str, Any]) -> str:
    return str(config["model_type"])


def runs_alone(model_type: str) -> bool:
    return False
