"""Formats the models of a cluster for people: those that nodes hold, those that are loaded, and the short names."""

import json
import signal
import sys
from collections.abc import Sequence

from node.cli.client import Api, Json, RequestRefused
from node.cli.table import aligned, context_length, findings, node_names, requests, shown
from node.cli.terminal import complain, printable, progress
from node.core.errors import ModelNotFetched
from node.core.units import format_bytes
from node.core.warning_codes import Code

_NOT_LOADED = (Code.NO_CAPACITY, Code.MODEL_REFUSED, Code.LOAD_FAILED)


def held(models: Json, status: Json) -> str:
    """`models`: of GET /cluster/models."""
    names = node_names(status["nodes"])
    rows = [
        (
            model["id"],
            format_bytes(model["bytes"]) if model["bytes"] else "",
            model["state"],
            "yes" if model["fits"] else "no",
            ", ".join(names.get(node, node) for node in model["nodes"]) or "-",
            ", ".join([*model["short_names"], *model.get("aliases", [])]),
        )
        for model in models["models"]
    ]
    reasons = [f"! {model['id']}  {model['reason']}" for model in models["models"] if model["reason"]]
    reasons += [f"! {model['id']}  {model['reason']}" for model in models.get("unusable", [])]
    lines = aligned([("MODEL", "SIZE", "STATE", "FITS", "HELD BY", "OTHER NAMES"), *rows])
    kv = []
    for node in status["nodes"]:
        if node.get("kv_on_disk"):
            uncopied = f" ({format_bytes(node['kv_uncopied'])} to be copied)" if node.get("kv_uncopied") else ""
            kv.append(f"{node['name']} {format_bytes(node['kv_on_disk'])}{uncopied}")
    lines += ["", f"KV of earlier sessions on disks: {', '.join(kv)}"] if kv else []
    return "\n".join(map(printable, [*lines, *([""] if reasons else []), *reasons]))


def loaded(wanted: Sequence[Json], models: Json, status: Json) -> str:
    """`wanted`: models of the status that have rings, or could not be loaded. Below them, why not."""
    names = node_names(status["nodes"])
    sizes = {model["id"]: model["bytes"] for model in models["models"]}
    rows = [
        (
            model["id"],
            model["state"],
            format_bytes(sizes[model["id"]]) if sizes.get(model["id"]) else "",
            context_length(model["context"]) if model["context"] else "-",
            "; ".join(_stages(ring, names, model["state"]) for ring in model["rings"]) or "-",
            shown(requests, model),
            shown(lambda each: format(each["tokens_per_second"], ".1f"), model),
        )
        for model in wanted
    ]
    head = ("MODEL", "STATE", "SIZE", "CONTEXT", "LAYERS", "REQUESTS", "TOK/S")
    lines = list(map(printable, aligned([head, *rows])))
    why = [warning for warning in status["warnings"] if warning["code"] in _NOT_LOADED]
    return "\n".join([*lines, *(["", findings(why, status["nodes"])] if why else [])])


def _stages(ring: Json, names: dict[str, str], state: str) -> str:
    """First and last layer of each stage, both inclusive, as people count; and the ring's state if it is not the model's."""
    stages = ", ".join(f"{names.get(s['node'], s['node'])} {s['start']}-{s['end'] - 1}" for s in ring["stages"])
    return stages if ring["state"] == state else f"{stages} ({ring['state']})"


def short_names(models: Json) -> str:
    return "\n".join(map(printable, aligned([("SHORT NAME", "MODEL"), *models["short_names"].items()])))


def remove(api: Api, path: str, *, yes: bool) -> Json | None:
    """What a node has deleted; what Pippin did not fetch, only with `yes` or if the user says so. None: the user does not.

    Raises NoNode, StatusFailed, RequestRefused: without a terminal nobody can be asked.
    """
    try:
        return api.ask("DELETE", path, {"not_fetched": yes})
    except RequestRefused as error:
        if error.why != ModelNotFetched.code or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        complain(str(error))
    print("Delete it all the same? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    return api.ask("DELETE", path, {"not_fetched": True}) if answer in ("y", "yes") else None


def prove(model: str) -> int:
    """Have a process that may die try the model; it prints what it found. Returns the exit code."""
    import subprocess  # noqa: PLC0415 - no other command starts a program

    command = [sys.executable, "-P", "-m", "node.engine.proof", model]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - this very program
    if code < 0:
        complain(f"the process that ran it was ended by {signal.Signals(-code).name}: no node should load it")
    return 1 if code < 0 else code


def fits(model: str, *, as_json: bool) -> int:
    """Show on which Macs a model fits, or each one that has a short name if it is empty. Returns the exit code."""
    import subprocess  # noqa: PLC0415 - as above

    command = [sys.executable, "-P", "-m", "node.cluster.fits", *([model] if model else [])]
    found: list[Json] = []
    tell = progress()
    # Ctrl-C is for this process, which then ends the other one.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as child:  # noqa: S603 - as above
        try:
            assert child.stdout
            for line in child.stdout:
                found.append(json.loads(line))
                tell(f"models computed: {len(found)}")
        except BaseException:
            child.kill()
            raise
    tell("")
    if found:
        print(json.dumps(found, indent=2) if as_json else fits_table(found))
    return child.returncode


def fits_table(found: Sequence[Json]) -> str:
    """`found`: what `node.cluster.fits` writes."""
    heads = ["MODEL", "WEIGHTS", *(macs(fit["macs"]) for fit in found[0]["fits"])]
    rows = [
        [next(iter(each["short_names"]), each["model"]), format_bytes(each["bytes"]), *map(fit, each["fits"])]
        for each in found
    ]
    legend = "Context on Macs of so many GB; 32k/2: on two of these Macs; -: it does not fit."
    return "\n".join([*map(printable, aligned([heads, *rows])), "", legend])


def macs(sizes: Sequence[int]) -> str:
    """Such as 3x16."""
    return f"{len(sizes)}x{sizes[0]}" if len(sizes) > 1 else str(sizes[0])


def fit(found: Json) -> str:
    """Such as 32k/2; a model that needs no second Mac leaves it idle, or to a replica."""
    if not found["stages"]:
        return "-"
    return context_length(found["context"]) + (f"/{found['stages']}" if found["stages"] > 1 else "")
