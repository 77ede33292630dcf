"""Waits for a cluster: polls a node's status until nothing is missing, or until a timeout."""

import re
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from node.cli.client import TIMEOUT_S, Api, Json, KeyRefused, RequestRefused, StatusFailed, Untrusted
from node.cli.table import node_names
from node.core.errors import ModelNotFound, NoCapacity, error_from
from node.core.usage import nearest
from node.core.warning_codes import Code

POLL_S = 0.25
SETTLED_S = 10.0
"""Time in which nodes that are started together have found each other: until then a refusal may pass."""
ABSENT = ("suspect", "failed", "left", "refused")
"""States of nodes that do not count as here."""


def wait(
    api: Api,
    missing: Callable[[Json], str],
    timeout: float,
    report: Callable[[str], None],
    refused: Callable[[Json], str] = lambda _: "",
    patience: Callable[[Json], float] = lambda _: SETTLED_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until `missing(status)` is empty. Returns an empty text, or at the timeout (seconds) the text of `missing`.

    `report` is called with each change, and with an empty text at the end. A node that does not answer counts as
    missing: scripts start with `node & cluster wait`. Raises KeyRefused, Untrusted, and RequestRefused with `refused(status)` once that has been
    there for `patience(status)` seconds: to wait does not help.
    """
    deadline = clock() + timeout
    reported, open_at, patient_s = None, clock(), SETTLED_S
    while True:
        left = deadline - clock()
        why = ""
        try:
            status = api.status(timeout=max(0.1, min(TIMEOUT_S, left)))
            lack, why, patient_s = missing(status), refused(status), patience(status)
        except (KeyRefused, Untrusted):
            raise
        except StatusFailed as error:
            lack = str(error).rstrip(".")
        if not why:
            open_at = clock()
        elif lack and clock() - open_at >= patient_s:
            report("")
            raise RequestRefused(why)
        if lack and lack != reported:
            report(f"waiting: {lack}")
        reported = lack
        if not lack or clock() + POLL_S > deadline:
            report("")
            return lack
        pause(POLL_S)


class Target(NamedTuple):
    """State to wait for: a number of nodes, and this model, or without one all models that the cluster wants."""

    nodes: int = 1
    model: str | None = None
    unknown: str = ""
    """Why no node will load the model, though it is not refused: see `unknown`."""

    def missing(self, status: Json) -> str:
        """Describe what is missing; empty if nothing is."""
        here = sum(node["state"] not in ABSENT for node in status["nodes"])
        if here < self.nodes:
            return f"{here} of {self.nodes} nodes are here"
        if not status["head"]:
            return "no head is elected yet"
        states = {model["id"]: model["state"] for model in status["models"]}
        if self.model is not None:
            wanted = ", ".join(sorted(states)) or "no model"
            states = {self.model: states.get(self.model, f"not wanted by this cluster ({wanted} is)")}
        lacking = [f"{model} is {state}" for model, state in states.items() if state != "ready"]
        if not lacking and self.model is None and status["state"] not in ("ready", "idle"):
            lacking = [f"the cluster is {status['state']}"]
        return with_reason(lacking, status, self.model)

    def refused(self, status: Json) -> str:
        """Why what is missing will not come by itself, as far as the cluster knows; empty if it may."""
        if not status["head"] or sum(node["state"] not in ABSENT for node in status["nodes"]) < self.nodes:
            return ""
        if self.unknown:
            return self.unknown
        errors = [model.get("error") for model in status["models"] if self.model in (None, model["id"])]
        return " ".join(
            f"{each['message']} {each['hint']}".strip() for each in errors if each and _is_final(each["code"])
        )


def _is_final(code: str) -> bool:
    """Whether a refusal lasts until somebody does something. The head tries again what a hub or a node did not answer."""
    return code == NoCapacity.code or error_from(code, "").retry_after is None


def model_id(api: Api, name: str, status: Json) -> str:
    """Id of the model that a name means: a wanted one's id, its last part, or the beginning of one of them alone; else the
    model of a short name, as the node knows it. The name itself if it means none, or several.
    """
    ids, name = [str(model["id"]) for model in status["models"]], name.strip()
    parts = {model: {model.lower(), model.lower().rpartition("/")[2]} for model in ids}
    if name in ids:
        return name
    if same := [model for model in ids if name.lower() in parts[model]]:
        return same[0]
    begun = [model for model in ids if any(part.startswith(name.lower()) for part in parts[model])]
    if len(begun) == 1:
        return begun[0]
    try:
        return str(api.ask("GET", f"/v1/models/{quote(name, safe='')}", timeout=TIMEOUT_S)["id"])
    except RequestRefused:
        return name


def target_of(api: Api, nodes: int, name: str, status: Json, hub_lacks: Callable[[str], str]) -> Target:
    """A number of nodes, and the model that a name means. `hub_lacks`: as the function, asked of an id that no node has."""
    model = model_id(api, name, status)
    is_wanted = model in [wanted["id"] for wanted in status["models"]]
    return Target(nodes, model, "" if is_wanted else unknown(api, model, hub_lacks))


def hub_lacks(api: Api, model: str) -> str:
    """What the hub says if it has no model of this id; empty where it has one, or is not reached."""
    try:
        api.ask("GET", f"/cluster/hub?model={quote(model, safe='')}")
    except RequestRefused as error:
        return str(error) if error.why == ModelNotFound.code else ""
    except StatusFailed:
        pass
    return ""


def unknown(api: Api, name: str, hub_lacks: Callable[[str], str] = lambda _: "") -> str:
    """Why a name can be of no model, with one that is like it; empty for a model that is here, and for a short name
    or an id, which a node may fetch unless `hub_lacks` it.
    """
    found = api.ask("GET", "/cluster/models")
    here = [model["id"] for model in found["models"]]
    if name in here:
        return ""
    if "/" in name:
        return hub_lacks(name)
    shorts = [*found["short_names"], *(model.rpartition("/")[2] for model in found["short_names"].values())]
    if any(_plain(short).startswith(_plain(name)) for short in shorts):
        return ""
    others = [other for model in found["models"] for other in (*model["short_names"], *model.get("aliases", []))]
    similar = nearest(name, [*here, *(model.rpartition("/")[2] for model in here), *others, *shorts])
    hint = f"Did you mean {similar}?" if similar else f"There are {', '.join(here)}." if here else "No node has one."
    return f"There is no model {name!r} here. {hint}"


def check_name(api: Api, name: str) -> None:
    """Raises StatusFailed if a name can be of no model: before a person has typed what would be for it."""
    try:
        api.ask("GET", f"/v1/models/{quote(name, safe='')}", timeout=TIMEOUT_S)
    except RequestRefused as error:
        if error.why == ModelNotFound.code and (why := unknown(api, name)):
            raise StatusFailed(why) from error


def _plain(name: str) -> str:
    """Short names may be written with other separators, and as in Ollama's lists."""
    return re.sub(r"[-_:\s]", "", name.lower())


def until_settled(status: Json) -> float:
    """Seconds for which a refusal may still pass: none once the youngest node has been there for SETTLED_S, by its clock and
    this machine's. One for want of memory keeps all of them, as a further node may just be about to join.
    """
    if any((model.get("error") or {}).get("code") == NoCapacity.code for model in status["models"]):
        return SETTLED_S
    now = time.time()  # also for a node of an older version, which does not say since when it has run
    started = [node.get("started_at", now) for node in status["nodes"] if node["state"] not in ABSENT]
    return min(SETTLED_S, max(0.0, SETTLED_S - now + max(started, default=now)))


def with_reason(lacking: list[str], status: Json, model: str | None = None) -> str:
    """What is lacking, and the errors that are why; without errors, instead of what is loading, the load that takes longest.

    `model`: leave out what is said of others alone.
    """
    others = {each["id"] for each in status["models"]} - {model} if model else set()
    about = []
    for each in status["warnings"]:
        words = {word.strip(".,:;()`'") for word in _said(each).split()}
        if model in words or not others & words:
            about.append(each)
    errors = [_said(each) for each in about if each["severity"] == "error"]
    loads = [each for each in about if each["code"] == Code.LOADING]
    if not lacking or errors or not loads:
        return "; ".join(lacking + errors) if lacking else ""
    shares = {
        node["id"]: min((each["progress"] for each in node.get("loads", ())), default=1.0) for node in status["nodes"]
    }
    last = min(loads, key=lambda each: shares.get(each["node"], 1.0))
    count = len({each["node"] for each in loads}) - 1
    more = f" (and {count} more {'node' if count == 1 else 'nodes'})" if count else ""
    return "; ".join([*(each for each in lacking if not each.endswith(" is loading")), f"{_said(last)}{more}"])


def _said(warning: Json) -> str:
    return f"{warning['text']} {warning['hint']}".strip(" .")


def in_memory(status: Json, model: str) -> str:
    """Describe the layers of a model that nodes hold; empty if there are none."""
    names = node_names(status["nodes"])
    holders = [
        names[node["id"]]
        for node in status["nodes"]
        if node["state"] not in ABSENT
        and any(layer["model"] == model for layer in node["layers"] + node.get("idle", []))
    ]
    return f"{model} is in the memory of {', '.join(holders)}" if holders else ""


def undrained(status: Json, node_id: str) -> str:
    """Describe the state of a node and the layers that it holds; empty once it is drained, or stopped without layers."""
    for node in status["nodes"]:
        is_done = node["state"] == "drained" or (node["state"] == "left" and not node["layers"])
        if node["id"] == node_id and not is_done:
            layers = [f"{each['start']}-{each['end'] - 1} of {each['model']}" for each in node["layers"]]
            return f"{node['name']} is {node['state']}" + (f" and holds layers {', '.join(layers)}" if layers else "")
    return ""
