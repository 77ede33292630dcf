"""Numbers of the sequences whose KV stages hold."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import count

from node.core.frames import SequenceId
from node.core.nodes import NodeInfo

FIRST_NUMBER = 1 << 16
"""First number of prefixes and of lanes of prompts; decoding lanes have numbers below."""


def sequence_numbers(info: NodeInfo) -> Iterator[SequenceId]:
    """Numbers for the sequences of all rings that a node's process drives.

    They begin at a hash of 62 bits, so that no two processes use the same: stages keep KV under numbers of earlier
    drivers.
    """
    digest = sha256(f"{info.id} {info.incarnation} {info.started_at}".encode()).digest()
    return count(max(FIRST_NUMBER, int.from_bytes(digest[:8]) >> 2))
