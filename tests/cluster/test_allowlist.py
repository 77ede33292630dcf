"""`--allow-model`, at the gateway that gets a request and at the head."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.cluster.allowlist import Allowlist
from node.cluster.control_service import ControlService
from node.core.errors import ModelNotAllowed
from node.core.models import HeldModel, ModelVersion
from node.core.nodes import Memory, NodeInfo
from node.core.reports import NodeReport
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.core.views import ClusterView
from node.gateway.model_index import ModelIndex
from node.gateway.model_names import ModelNames
from node.gateway.open_models import OpenModels
from node.gateway.router import Router

INFO = NodeInfo("me", 1, "mini-1", "home", "1", 1, ("10.0.0.1",), 1, 2)
PLACED, PRELOADED, HELD = "org/placed", "org/preloaded", "mlx-community/Qwen3-8B-4bit"
RING = Ring("r", ModelVersion(PLACED), (StageSpec("me", 0, 4),), 512, 4, fence=Fence(1, 1))
REPORT = NodeReport(
    INFO, Memory(1, 1), models=tuple(map(HeldModel, (HELD, "org/held", PRELOADED))), preload=(PRELOADED,)
)

CATALOGUE: Any = SimpleNamespace(match=lambda name, held: name, created=lambda model: 1)


def agent() -> Any:
    placement = Placement(Fence(1, 1), "me", (RING,))
    return SimpleNamespace(info=INFO, head="me", placement=placement, alive=lambda: [REPORT])


@pytest.mark.parametrize(
    ("pattern", "model", "matches"),
    [
        ("mlx-community/*", "mlx-community/Qwen3-8B-4bit", True),
        ("MLX-Community/*", "mlx-community/qwen3-8B-4bit", True),
        ("*qwen3*", "mlx-community/Qwen3-8B-4bit", True),
        ("qwen3-8b", "mlx-community/Qwen3-8B-4bit", True),
        ("mlx-community/Qwen3-?B-4bit", "mlx-community/Qwen3-8B-4bit", True),
        ("mlx-community/Qwen3-[48]B-4bit", "mlx-community/Qwen3-8B-4bit", True),
        ("*", "a/b", True),
        ("qwen3-8b", "evil/Qwen3-8B-4bit", False),
        ("mlx-community/*", "evil/mlx-community/x", False),
        ("mlx-community", "mlx-community/Qwen3-8B-4bit", False),
        ("nothing", "org/held", False),
        ("nothing", PLACED, True),
        ("nothing", PRELOADED, True),
    ],
)
def test_patterns(pattern: str, model: str, matches: bool) -> None:
    allowlist = Allowlist(agent(), ["something-else", pattern])
    if matches:
        allowlist.check(model)
    else:
        with pytest.raises(ModelNotAllowed, match="--allow-model"):
            allowlist.check(model)


def test_without_patterns_all_models_are_allowed() -> None:
    Allowlist(agent(), []).check("any/thing")


async def test_the_head_loads_nothing_else_whoever_asks() -> None:
    asked: list[str] = []

    async def want(model: str) -> None:
        asked.append(model)

    head: Any = SimpleNamespace(want=want)
    nothing: Any = None
    service = ControlService(agent(), head, Allowlist(agent(), ["mlx-community/*"]), *[nothing] * 5)
    await service.want(HELD)
    await service.want(PLACED)
    with pytest.raises(ModelNotAllowed):
        await service.want("org/held")
    assert asked == [HELD, PLACED]


async def test_the_gateway_opens_nothing_else() -> None:
    asked: list[str] = []

    async def want(model: str) -> None:
        asked.append(model)
        raise NotImplementedError

    here, nothing = agent(), cast("Any", None)
    here.view = lambda: ClusterView("me", 1, "me", (), Placement())
    names: Any = ModelNames(here, CATALOGUE, nothing)
    router = Router(here, nothing, nothing, want)
    opened = OpenModels(here, names, Allowlist(here, ["mlx-community/*"]), router, nothing, nothing, nothing, nothing)
    with pytest.raises(ModelNotAllowed, match="mini-1"):
        await opened.open("org/held", "a")
    assert asked == []
    with pytest.raises(NotImplementedError):
        await opened.open(HELD, "a")
    assert asked == [HELD]


def test_only_what_may_be_used_is_listed() -> None:
    for patterns, listed in (
        ((), {HELD, "org/held", PRELOADED, PLACED}),
        (("mlx-community/*",), {HELD, PRELOADED, PLACED}),
        (("nothing",), {PRELOADED, PLACED}),
    ):
        here, nothing = agent(), cast("Any", None)
        names, allowlist = ModelNames(here, CATALOGUE, nothing), Allowlist(here, patterns)
        models = ModelIndex(here, CATALOGUE, names, allowlist, nothing, nothing, 1)
        assert {model.id for model in models.entries()} == listed
