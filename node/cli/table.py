"""Formats the cluster's status for people: a summary line, a line per model, a table of the nodes, the warnings."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from node.cli.client import Json
from node.cli.terminal import printable
from node.core.generation import PromptProgress
from node.core.node_names import shown_names
from node.core.units import format_bytes, format_duration, format_share
from node.core.warning_codes import Code

_MOST_TOLD = 3
"""Warnings of one code whose texts are shown."""
_SPARE = ("BANDWIDTH", "RTT", "LINK TO NEXT")
"""Columns that a narrow terminal does without, the first one first; at last it has MEMORY in short."""


def render(status: Json, width: int | None = None) -> str:
    """`width`: columns of the terminal, which the status fits. Of what is only information, but for loads, a line at the end
    has the codes.
    """
    names = node_names(status["nodes"])
    head = f"head {names.get(status['head'], status['head'])} (term {status['term']})" if status["head"] else "no head"
    summary = (f"cluster {status['cluster']}", status["state"].upper(), head, status["api"])
    lines = [line for parts in (summary, *map(_model, status["models"])) for line in _spaced(parts, width)]
    lines += ["", *_table(status, names, width)]
    text = "\n".join(map(printable, lines))
    warnings = status["warnings"]
    if not warnings:
        return text
    told = [each for each in warnings if each["severity"] != "info" or each["code"] == Code.LOADING]
    below = findings(told, status["nodes"]).splitlines()
    if untold := dict.fromkeys(each["code"] for each in warnings if each not in told):
        below.append(printable(f"- {', '.join(untold)}  `cluster doctor` tells more."))
    if width:
        below = [textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False) for line in below]
    return "\n".join([text, "", *below])


def findings(warnings: list[Json], nodes: Iterable[Json] = ()) -> str:
    """A line for each code; what is only information has another mark. `nodes`: of the status, as texts begin with their names."""
    names = {node["id"]: node["name"] for node in nodes}
    return "\n".join(_finding(alike, names) for alike in by_code(warnings))


def by_code(warnings: Iterable[Json]) -> list[list[Json]]:
    """Those of one code together, in the order in which the codes come."""
    found: dict[str, list[Json]] = {}
    for each in warnings:
        found.setdefault(each["code"], []).append(each)
    return list(found.values())


def _finding(alike: list[Json], names: Mapping[str, str]) -> str:
    """A line for the warnings of one code, mostly of several nodes: what they say, and the hint that they have in common."""
    nodes = list(dict.fromkeys(each["node"] for each in alike if each.get("node")))
    hints = {each.get("hint", "") for each in alike}
    told = [each["text"] if len(hints) == 1 else f"{each['text']} {each.get('hint', '')}".rstrip() for each in alike]
    who = f"{len(nodes)} nodes" if len(nodes) > 1 else ""
    if who and len(nodes) == len(alike) and all(each in names for each in nodes):
        same = {text.removeprefix(f"{names[each['node']]} ") for text, each in zip(told, alike, strict=True)}
        if len(same) == 1 and told[0] not in same:  # each says it of itself
            more = ", …" if len(nodes) > _MOST_TOLD else ""
            who, told = f"{who} ({', '.join(names[each] for each in nodes[:_MOST_TOLD])}{more})", list(same)
    parts = [f"{who}:"] if who else []
    parts += told[:_MOST_TOLD]
    parts += [f"And {len(told) - _MOST_TOLD} more."] if len(told) > _MOST_TOLD else []
    parts += hints if len(hints) == 1 else ()
    mark = "-" if alike[0]["severity"] == "info" else "!"
    return printable(f"{mark} {alike[0]['code']}  {' '.join(parts)}".rstrip())


def _model(model: Json) -> Sequence[str]:
    if model["state"] == "refused" or not model["rings"]:
        return (model["id"], model["state"])
    return (
        model["id"],
        "" if model["state"] == "ready" else model["state"],
        shown(_layers_on_nodes, model),
        f"context {shown(lambda each: context_length(each['context']), model)}",
        shown(requests, model),
        f"{shown(lambda each: format(each['tokens_per_second'], '.1f'), model)} tok/s",
        shown(_prompts, model),
        shown(_guesses, model),
        shown(_gain, model),
    )


def _layers_on_nodes(model: Json) -> str:
    nodes = len({stage["node"] for ring in model["rings"] for stage in ring["stages"]})
    copies = f" in {len(model['rings'])} rings" if len(model["rings"]) > 1 else ""
    return f"{model['layers']} layers{copies} on {nodes} {'node' if nodes == 1 else 'nodes'}"


def requests(model: Json) -> str:
    return f"{model['requests']['running']} running, {model['requests']['queued']} queued"


def _prompts(model: Json) -> str:
    prompts = model.get("prompts")
    if not (prompts and prompts["tokens"]):
        return ""
    return PromptProgress(prompts["done"], prompts["tokens"]).told(prompts["tokens_per_second"])


def _guesses(model: Json) -> str:
    guesses = [ring["guesses"] for ring in model["rings"]]
    made, right = (sum(each[name] for each in guesses) for name in ("made", "right"))
    named = {ring["draft"] for ring in model["rings"] if ring["draft"]}
    drafts = ", ".join(sorted(" (MTP layer)" if each == model["id"] else f" (draft {each})" for each in named))
    return f"{100 * right / made:.0f} % of guesses right{drafts}" if made else ""


def _gain(model: Json) -> str:
    """Why a model is on two nodes that fits on one."""
    gain = max((ring.get("gain") or 0.0 for ring in model["rings"]), default=0.0)
    return f"together as one stream is {gain:.1f} times as fast" if gain else ""


def _table(status: Json, names: dict[str, str], width: int | None) -> list[str]:
    """Lines of the node table. A refused node has no values for the columns; its row says why it has not joined. In a narrow
    terminal the columns about links are left out.
    """
    columns: dict[str, Callable[[Json], str]] = {
        "NODE": lambda node: names[node["id"]] + (" *" if node["id"] == status["head"] else ""),
        "STATE": lambda node: str(node["state"]),
        "LAYERS": partial(_layers, name_models=len(status["models"]) > 1),
        "MEMORY": _memory,
        "LINK TO NEXT": partial(_link, names=names),
        "RTT": lambda node: f"{node['link']['rtt_ms']:.1f} ms" if node["link"] else "",
        "BANDWIDTH": _bandwidth,
        "SEEN": _progress,
    }
    refused = [node for node in status["nodes"] if node["state"] == "refused"]
    here = [node for node in status["nodes"] if node not in refused]
    rows = [list(columns), *([shown(cell, node) for cell in columns.values()] for node in here)]
    rows += ([names[node["id"]], *[""] * (len(columns) - 1)] for node in refused)
    lines = aligned(rows)
    while width and max(map(len, lines)) > width and (spare := [name for name in _SPARE if name in rows[0]]):
        gone = rows[0].index(spare[0])
        rows = [row[:gone] + row[gone + 1 :] for row in rows]
        lines = aligned(rows)
    if width and max(map(len, lines)) > width:
        at = rows[0].index("MEMORY")
        for row, node in zip(rows[1:], here, strict=False):
            row[at] = shown(_memory_in_short, node)
        lines = aligned(rows)
    column = lines[0].index("STATE")
    version = here[0].get("version", "") if here else ""
    lines[len(here) + 1 :] = [f"{names[node['id']]:{column}}{_refusal(node, version)}" for node in refused]
    return [line if not width or len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _refusal(node: Json, version: str) -> str:
    if node.get("reason") == "secret":
        return "not joined: no common secret"
    if node.get("version", version) == version:
        return "not joined"  # the warnings have the reason
    return f"not joined: runs {node['version']}, cluster runs {version}"


# --- cells ----------------------------------------------------------------------------------------------------------


def shown(cell: Callable[[Json], str], of: Json) -> str:
    """What a cell shows of a node or a model; `-` if a field is missing, as in the status of a node of an older version."""
    try:
        return cell(of)
    except KeyError:
        return "-"


def node_names(nodes: list[Json]) -> dict[str, str]:
    """Names to show, by id."""
    return shown_names({node["id"]: node["name"] for node in nodes})


def _layers(node: Json, *, name_models: bool) -> str:
    """First and last layer, both inclusive, as people count."""
    spans = []
    for layer in node["layers"]:
        name = f" {layer['model'].rpartition('/')[2]}" if name_models else ""
        spans.append(f"{layer['start']}-{layer['end'] - 1}{name}")
    return ", ".join(spans) or "-"


def _memory(node: Json) -> str:
    """With layers, what is set aside for them, so that the rest is what errors call free; else what is in memory. And what is
    kept of layers that no ring needs.
    """
    memory = node["memory"]
    if memory["kv"]:
        kept = f", +{format_bytes(memory['kept'])} kept" if memory.get("kept") else ""
        return "{} + {} KV of {}".format(*(format_bytes(memory[name]) for name in ("weights", "kv", "usable"))) + kept
    return _memory_in_short(node)


def _memory_in_short(node: Json) -> str:
    """All that is set aside or kept, of what is usable."""
    memory = node["memory"]
    taken = memory["weights"] + memory["kv"] + memory.get("kept", 0) if memory["kv"] else memory["used"]
    return format_share(taken, memory["usable"]) if memory["usable"] else format_bytes(taken)


def _link(node: Json, names: dict[str, str]) -> str:
    link = node["link"]
    return " ".join(filter(None, (names.get(link["to"], link["to"]), link["kind"], link["interface"]))) if link else "-"


def _bandwidth(node: Json) -> str:
    link = node["link"]
    return f"{format_bytes(link['bytes_per_second'])}/s" if link and link["bytes_per_second"] else ""


def _progress(node: Json) -> str:
    """How far the load has come that takes longest; without one, when the node was seen."""
    if not (loads := node.get("loads", [])):
        seconds = node["last_seen_s"]
        if seconds < 3:  # as long as heartbeats come
            return "now"
        if seconds < 120:
            return f"{seconds:.0f} s ago"
        return f"{seconds / 60:.0f} min ago" if seconds < 7200 else f"{seconds / 3600:.0f} h ago"
    load: Json = min(loads, key=lambda load: load["progress"])
    left = f", {format_duration(load['seconds_left'])} left" if load.get("seconds_left") is not None else ""
    return f"{100 * load['progress']:.0f} %{left}"


def context_length(count: int) -> str:
    return f"{count // 1024}k" if count and count % 1024 == 0 else str(count)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _spaced(parts: Iterable[str], width: int | None) -> list[str]:
    """The parts in a line, or in several that are no longer than the terminal is wide."""
    lines = [""]
    for part in filter(None, parts):
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        if lines[-1] and width and len(longer) > width:
            lines.append(f"  {part}")
        else:
            lines[-1] = longer
    return lines
