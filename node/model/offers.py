"""What other nodes have of a model's files, and who gets the rest from the hub. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

from node.core.model_files import File, Listing
from node.core.models import HeldModel
from node.core.nodes import Address
from node.core.rings import Ring
from node.model.weights import Weights


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


def nodes_by_file(rings: Iterable[Ring], model: HeldModel, weights: Weights) -> dict[str, set[str]]:
    """The nodes that need each file for their layers of the rings."""
    found: dict[str, set[str]] = {}
    for ring in rings:
        stages = ring.stages if ring.version.files == model else ()
        parts = [(stage.node, stage.start, stage.end, stage.start == 0 or ring.shared_ends) for stage in stages]
        if ring.draft and ring.draft.version.files == model:
            parts.append((ring.driver, ring.draft.start, ring.draft.end, ring.draft.start == 0))
        for node, start, end, ends in parts:
            for file in weights.files_for(start, end, ends):
                found.setdefault(file, set()).add(node)
    return found


def place(node: str, nodes: Collection[str], revision: str, file: str) -> tuple[bool, bytes]:
    """Of nodes that lack a file, the one with the highest place is to fetch it. The `nodes` that need it for the placement come
    before one that fetches a model for its user, and among them rendezvous hashing decides (Thaler and Ravishankar, 1998): when a
    node goes, only its own files go to others.
    """
    return node in nodes, sha256(f"{node} {revision} {file}".encode()).digest()


def turn(own: str, nodes: Collection[str], revision: str, file: str) -> int:
    """How many of the nodes that need a file come before the one whose id is `own`."""
    mine = place(own, nodes, revision, file)
    return sum(place(node, nodes, revision, file) > mine for node in nodes)
