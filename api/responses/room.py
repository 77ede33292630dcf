"""Which of the things that a node keeps for clients makes room for others."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol


class Owned(Protocol):
    @property
    def client(self) -> str: ...

    @property
    def bytes(self) -> int: ...


def first_to_go(kept: Mapping[str, Owned], *, by_bytes: bool) -> str:
    """The id of the first one of the client that has more than half, by number or by bytes; else of the first one of all.

    So whatever one client does, the others keep half. A client with less does not lose the place of what it uses to what
    others, who may be gone, had before.
    """
    shares = Counter[str]()
    for each in kept.values():
        shares[each.client] += each.bytes if by_bytes else 1
    ((client, most),) = shares.most_common(1)
    every = 2 * most <= shares.total()
    return next(each_id for each_id, each in kept.items() if every or each.client == client)
