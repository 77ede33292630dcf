"""Drains a node, and waits until it holds nothing any more."""

import time
from collections.abc import Callable
from typing import Any

from node.cli.client import Api, StatusFailed
from node.cli.wait import POLL_S

Json = dict[str, Any]


def drain(
    api: Api,
    node: str,
    timeout: float,
    tell: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Drain a node, given its name or id. Returns what it still holds at the timeout; empty if nothing, as soon as that
    is so.

    `tell` is called with each change, and with an empty text at the end. Raises StatusFailed if the cluster refuses.
    """
    api.drain(node, draining=True)
    deadline, told = clock() + timeout, ""
    while True:
        try:
            left = held(api.status(), node)
        except StatusFailed as error:
            left = str(error).rstrip(".")
        if left and left != told:
            tell(f"waiting: {left}")
        told = left
        if not left or clock() + POLL_S > deadline:
            tell("")
            return left
        pause(POLL_S)


def held(status: Json, name: str) -> str:
    """What the node still holds, in words; empty if it is drained, or was stopped and has no layers placed on it."""
    for node in status["nodes"]:
        is_done = node["state"] == "drained" or (node["state"] == "left" and not node["layers"])
        if name in (node["id"], node["name"]) and not is_done:
            layers = [f"{each['start']}-{each['end'] - 1} of {each['model']}" for each in node["layers"]]
            return f"{node['name']} is {node['state']}" + (f" and holds layers {', '.join(layers)}" if layers else "")
    return ""
