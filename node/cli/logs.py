"""`cluster logs`: the last lines of a node's log, and those that follow."""

from collections.abc import Iterator

from node.cli.client import Api, Refused, parse_api
from node.core.errors import NodeNotFound
from node.core.node_names import node_named


def logs(api: Api, node: str, lines: int, *, follow: bool) -> Iterator[str]:
    """Lines of the log of a node, of the one at `api` if the name is empty. Raises NoNode, StatusFailed, Refused."""
    at = _api_of(api, node) if node else api
    return at.lines(f"/cluster/logs?lines={lines}" + ("&follow=true" if follow else ""))


def _api_of(api: Api, text: str) -> Api:
    """The API of a node that this text names."""
    nodes = {node["id"]: node for node in api.status()["nodes"]}
    try:
        node = nodes[node_named(text, {node: entry["name"] for node, entry in nodes.items()})]
    except NodeNotFound as error:
        raise Refused(str(error)) from error
    try:
        return parse_api(node["api"])._replace(key=api.key)
    except ValueError as error:
        raise Refused(f"{node['name']} has no address for its API; run `cluster logs` there.") from error
