"""`cluster logs`: the last lines of a node's log, and those that follow."""

from collections.abc import Iterator

from node.cli.client import Api, Refused, parse_api
from node.core.node_names import named


def logs(api: Api, node: str, lines: int, *, follow: bool) -> Iterator[str]:
    """Lines of the log of a node, of the one at `api` if the name is empty. Raises NoNode, StatusFailed, Refused."""
    at = _api_of(api, node) if node else api
    return at.lines(f"/cluster/logs?lines={lines}" + ("&follow=true" if follow else ""))


def _api_of(api: Api, text: str) -> Api:
    """The API of a node that this text names."""
    nodes = {node["id"]: node for node in api.status()["nodes"]}
    found = named(text, {node: entry["name"] for node, entry in nodes.items()})
    if len(found) != 1:
        names = ", ".join(f"{nodes[node]['name']} ({node})" for node in found or nodes)
        raise Refused(f"{'Several nodes are' if found else 'No node is'} named {text!r:.60}. There are {names}.")
    node = nodes[found[0]]
    try:
        return parse_api(node["api"])._replace(key=api.key)
    except ValueError as error:
        raise Refused(f"{node['name']} has no address for its API; run `cluster logs` there.") from error
