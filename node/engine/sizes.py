"""Bounds on the numbers of a config.json, which may be anyone's, before a model is built of it."""

from collections.abc import Mapping
from typing import Any

def check_sizes(config: Mapping[str, Any]) -> None:
    pass
