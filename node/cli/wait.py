"""Waits for a cluster: asks again and again until nothing is missing, or the time is up."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from node.cli.client import TIMEOUT_S, Api, StatusFailed

Json = dict[str, Any]

POLL_S = 0.25
_ABSENT = ("suspect", "failed", "left", "refused")


class Wish(NamedTuple):
    """What to wait for: so many nodes, and either this model or, without one, all that the cluster wants."""

    nodes: int = 1
    model: str | None = None


def wait(
    api: Api,
    wish: Wish,
    timeout: float,
    tell: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """What is still missing when the time is up; empty as soon as nothing is.

    Every change of it is told, and an empty text at the end. A node that does not answer yet is one that is missing:
    `node & cluster wait` is how scripts start.
    """
    deadline = clock() + timeout
    told = None
    while True:
        left = deadline - clock()
        try:
            lack = missing(api.status(timeout=max(0.1, min(TIMEOUT_S, left))), wish)
        except StatusFailed as error:
            lack = str(error).rstrip(".")
        if lack and lack != told:
            tell(f"waiting: {lack}")
        told = lack
        if not lack or clock() + POLL_S > deadline:
            tell("")
            return lack
        pause(POLL_S)


def missing(status: Json, wish: Wish) -> str:
    """In words; empty if nothing is."""
    here = sum(node["state"] not in _ABSENT for node in status["nodes"])
    if here < wish.nodes:
        return f"{here} of {wish.nodes} nodes are here"
    if not status["head"]:
        return "no head is elected yet"
    states = {model["id"]: model["state"] for model in status["models"]}
    if wish.model is not None:
        states = {
            wish.model: states.get(wish.model, f"not wanted by this cluster ({', '.join(states) or 'no model'} is)")
        }
    lacking = [f"{model} is {state}" for model, state in states.items() if state != "ready"]
    if not lacking and wish.model is None and status["state"] not in ("ready", "idle"):
        lacking = [f"the cluster is {status['state']}"]
    return "; ".join(lacking + _reasons(status)) if lacking else ""


def _reasons(status: Json) -> list[str]:
    """What the cluster itself says of it: errors, and how far the loads are."""
    wanted = [
        warning for warning in status["warnings"] if warning["severity"] == "error" or warning["code"] == "loading"
    ]
    return [f"{warning['text']} {warning['hint']}".strip(" .") for warning in wanted]
