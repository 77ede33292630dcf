"""What other nodes have of a model's files, and who downloads the rest from the hub. Pure but for the claims of this node."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from node.core.model_files import Claim, File, Listing
from node.core.models import HeldModel
from node.core.nodes import Address


def holders_of(listings: Mapping[Address, Listing]) -> dict[File, list[Address]]:
    """The files that peers have, each with its holders. Where they differ, the content that most of them have."""
    found: dict[str, dict[Address, File]] = {}
    for peer, listing in listings.items():
        for file in listing.files:
            found.setdefault(file.name, {})[peer] = file
    held = {}
    for offers in found.values():
        known = Counter(file for file in offers.values() if file.digest) or Counter(offers.values())
        ((best, _),) = known.most_common(1)
        same = (best, File(best.name, best.size))
        held[best] = [peer for peer, file in offers.items() if file in same]
    return held


def claimed(listings: Mapping[Address, Listing]) -> set[str]:
    """Files that some peer gets from the hub."""
    return {claim.name for listing in listings.values() for claim in listing.claims}


def prior(listings: Mapping[Address, Listing], own: str) -> set[str]:
    """Files whose claim goes before that of this node, whose id is `own`: of two that claim a file at the same time, the
    node with the lower id gets it.
    """
    return {
        claim.name
        for peer, listing in listings.items()
        for claim in listing.claims
        if claim.began or (peer.node or peer.target) < own
    }


@dataclass(slots=True, eq=False)
class OwnClaim:
    names: set[str]
    began: bool = False


class Claims:
    """The files that this node gets from the hub."""

    def __init__(self) -> None:
        self._of: dict[HeldModel, list[OwnClaim]] = {}

    @contextmanager
    def of(self, model: HeldModel, names: Collection[str]) -> Iterator[OwnClaim]:
        """Other nodes are told that this one gets the files, until the end of the block."""
        own, claims = OwnClaim(set(names)), self._of.setdefault(model, [])
        claims.append(own)
        try:
            yield own
        finally:
            claims.remove(own)
            if not claims:
                self._of.pop(model, None)

    def told(self, model: HeldModel) -> tuple[Claim, ...]:
        began: dict[str, bool] = {}
        for own in self._of.get(model, ()):
            for name in own.names:
                began[name] = began.get(name, False) or own.began
        return tuple(Claim(name, began[name]) for name in sorted(began))
