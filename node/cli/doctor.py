"""`cluster doctor`: the findings of the cluster, and those of the terminal in which it runs."""

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from node.cli.client import Api, Json, NoNode, StatusFailed
from node.cli.table import by_code, findings
from node.core.node_names import named, shown_names
from node.core.warning_codes import Code
from node.host.examination import examine_terminal

PAGE = "docs/troubleshooting.md"
EXIT_WELL, EXIT_NO_NODE, EXIT_ILL = 0, 3, 4


def examine(api: Api, node: str, *, as_json: bool) -> int:
    """`node`: only findings about this one; empty: all. Without a node at `api`, those of the terminal all the same."""
    found = [] if node else [asdict(issue) for issue in examine_terminal(Path(sys.executable).parent)]
    missing, nodes = "", list[Json]()
    try:
        status = api.status()
        nodes = status["nodes"]
        found = _of_cluster(status, node) + found
    except NoNode as error:
        missing = str(error)
    print(json.dumps({"warnings": found}, indent=2) if as_json else _text(found, nodes))
    if missing:
        print(f"cluster: {missing}", file=sys.stderr)
        return EXIT_NO_NODE
    return EXIT_ILL if any(issue["severity"] != "info" for issue in found) else EXIT_WELL


def _of_cluster(status: Json, node: str) -> list[Json]:
    """Findings as in the status; with `node`, a name or id, only those about this node. Raises StatusFailed."""
    found: list[Json] = status["warnings"]
    if not node:
        return found
    names = {each["id"]: each["name"] for each in status["nodes"]}
    meant = named(node, names)
    if len(meant) != 1:
        shown = ", ".join(sorted(shown_names(names).values()))
        raise StatusFailed(f"{len(meant) or 'No'} nodes are called {node}. There are {shown}.")
    return [issue for issue in found if issue.get("node") == meant[0]]


def _text(found: list[Json], nodes: list[Json]) -> str:
    """The findings by code, each with its section of the page on troubleshooting, and how many there are."""
    if not found:
        return "Nothing is wrong."
    groups = by_code(found)
    counts = Counter(alike[0]["severity"] for alike in groups)
    kinds = (("error", "errors"), ("warning", "warnings"), ("info", "infos"))
    summary = [f"{counts[kind]} {kind if counts[kind] == 1 else many}" for kind, many in kinds if counts[kind]]
    known = set(Code)  # a node of another version may tell of others
    codes = [alike[0]["code"] for alike in groups]
    lines = [
        findings(alike, nodes) + f"\n  {PAGE}#{code}" * (code in known)
        for code, alike in zip(codes, groups, strict=True)
    ]
    return "\n".join([*lines, ", ".join(summary)])
