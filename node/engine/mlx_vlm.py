"""mlx-vlm's models: the second source of model classes, installed without the packages that it depends on.

Its `__init__` would import them all; the models themselves need MLX, NumPy, Pillow and each other.
"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType
from typing import Any

from node.core.errors import ModelUnsupported

VERSION = "0.7.10"
"""The one with which the tests compare."""
_HINT = f"Install it on each node, without what it depends on: pip install --no-deps mlx-vlm=={VERSION}"


def vlm_model(model_type: str) -> Any:
    """mlx-vlm's package of a model type. Raises ModelUnsupported if mlx-vlm is not installed, or in another version."""
    try:
        found = distribution("mlx-vlm")
    except PackageNotFoundError:
        raise ModelUnsupported("Pictures need mlx-vlm, which is not installed.", hint=_HINT) from None
    if found.version != VERSION:
        raise ModelUnsupported(f"Pictures need mlx-vlm {VERSION}; {found.version} is installed.", hint=_HINT)
    if "mlx_vlm" not in sys.modules:
        package = ModuleType("mlx_vlm")
        package.__path__ = [str(found.locate_file("mlx_vlm"))]
        sys.modules["mlx_vlm"] = package
    try:
        return importlib.import_module(f"mlx_vlm.models.{model_type}")
    except ImportError as error:
        raise ModelUnsupported(f"mlx-vlm's {model_type} cannot be imported: {error}", hint=_HINT) from error
