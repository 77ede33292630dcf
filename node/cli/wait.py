"""Waits for a cluster: polls it until nothing is missing, or the time is up."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from node.cli.client import TIMEOUT_S, Api, StatusFailed

Json = dict[str, Any]

POLL_S = 0.25
_ABSENT = ("suspect", "failed", "left", "refused")


class Wish(NamedTuple):
    """What to wait for: a number of nodes, and this model, or without one all that the cluster wants."""

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
    """Wait until nothing is missing. Returns what is still missing at the timeout, or an empty text.

    `tell` is called with each change, and with an empty text at the end. A node that does not answer yet counts as
    missing: scripts start with `node & cluster wait`.
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
    """What is missing, in words; empty if nothing is."""
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
    """The cluster's own explanations: errors, and the progress of loads."""
    wanted = [
        warning for warning in status["warnings"] if warning["severity"] == "error" or warning["code"] == "loading"
    ]
    return [f"{warning['text']} {warning['hint']}".strip(" .") for warning in wanted]
