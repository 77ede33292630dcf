"""Looks for models on the hub, as people do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi, errors
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

from node.core.errors import HubUnavailable
from node.model.download import STALL_S
from node.model.hub_errors import HUB_ERRORS, first_line
from node.model.safetensors_header import BITS

_MOST = 20
"""Models of one search."""
_ASKED = ("downloads", "safetensors")
_OTHERWISE = "Name a model by its id or a short name."


@dataclass(frozen=True, slots=True)
class HubModel:
    id: str
    bytes: int
    """Of its weights; 0 if the hub does not tell."""
    downloads: int
    """In the last month."""


def search(api: HfApi, text: str) -> list[HubModel]:
    """Models for MLX whose names have these words, the most used first. Raises HubUnavailable."""
    wanted: dict[str, Any] = {"search": text, "filter": "mlx", "sort": "downloads", "limit": _MOST, "expand": _ASKED}
    headers = build_hf_headers(token=api.token, library_name="pippin")
    try:
        response = get_session().get(f"{api.endpoint}/api/models", params=wanted, headers=headers, timeout=STALL_S)
        hf_raise_for_status(response)
        return [_found(model) for model in response.json()]
    except errors.OfflineModeIsEnabled as error:
        raise HubUnavailable("HF_HUB_OFFLINE forbids to search the hub.", hint=_OTHERWISE) from error
    except errors.HfHubHTTPError as error:
        raise HubUnavailable(f"The hub answers {error.response.status_code} to a search.", hint=_OTHERWISE) from error
    except (*HUB_ERRORS, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise HubUnavailable(f"The hub cannot be searched ({first_line(error)}).", hint=_OTHERWISE) from error


def about(api: HfApi, model_id: str) -> HubModel:
    """One model. Raises huggingface_hub's errors, also for what can be no id."""
    info = api.model_info(model_id, expand=["downloads", "safetensors"], timeout=STALL_S)
    counts = info.safetensors.parameters if info.safetensors else {}
    return HubModel(info.id, _bytes(counts), info.downloads or 0)


def _found(model: Any) -> HubModel:
    counts = (model.get("safetensors") or {}).get("parameters") or {}
    return HubModel(str(model["id"]), _bytes(counts), int(model.get("downloads") or 0))


def _bytes(counts: Mapping[str, int]) -> int:
    """`counts`: numbers of parameters by dtype."""
    return sum(count * BITS.get(dtype, 0) for dtype, count in counts.items()) // 8
