"""Names of nodes, as tables show them and as people type them."""

import re
from collections.abc import Iterable, Mapping

from node.core.errors import NodeNotFound


def is_plain(name: str) -> bool:
    """Whether it is one word for a shell, which does nothing but name something: it is never quoted."""
    return re.fullmatch(r"[\w./:@+-]+", name) is not None


def shown_names(names: Mapping[str, str]) -> dict[str, str]:
    """Names to show, by id. Nodes on one machine share its name, and get the first digits of their ids appended.

    `names`: by id.
    """
    all_names = list(names.values())
    return {node: f"{name}-{node[:4]}" if all_names.count(name) > 1 else name for node, name in names.items()}


def named(text: str, names: Mapping[str, str]) -> list[str]:
    """Ids of the nodes that a text means: an id, a name, a name as it is shown, or the beginning of an id.

    Several if it is ambiguous. `names`: by id.
    """
    shown = shown_names(names)
    ways: Iterable[list[str]] = (
        [node for node in names if node == text],
        [node for node, name in shown.items() if name == text],
        [node for node, name in names.items() if name == text],
        [node for node in names if text and node.startswith(text)],
    )
    return next((found for found in ways if found), [])


def node_named(text: str, names: Mapping[str, str]) -> str:
    """Id of the one node that a text means, see `named`. Raises NodeNotFound, which tells those that there are."""
    found = named(text, names)
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{names[node]} ({node})" for node in found or names)
    problem = f"{len(found)} nodes are" if found else "No node is"
    raise NodeNotFound(f"{problem} named {text!r:.60}.", hint=f"There are {there}.", param="node")
