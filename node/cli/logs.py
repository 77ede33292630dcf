"""`cluster logs`: the last lines of a node's log, and those that follow."""

from collections.abc import Iterator
from urllib.parse import urlencode

from node.cli.client import Api


def logs(api: Api, node: str, lines: int, *, follow: bool) -> Iterator[str]:
    """Lines of the log of a node, of the one at `api` if the name is empty. Raises NoNode, StatusFailed, Refused.

    The node at `api` asks the other one: that may have any address, and the API key is not for it.
    """
    query = {"lines": lines, **({"node": node} if node else {}), **({"follow": "true"} if follow else {})}
    return api.lines(f"/cluster/logs?{urlencode(query)}")
