"""Accepted callers: a placement from the head, frames from the preceding stage, a node's state from that node."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from node.cluster.agent import Agent
from node.cluster.control_service import ControlService
from node.core.errors import NotAdmitted
from node.core.frames import Frame
from node.core.models import ModelVersion
from node.core.nodes import Caller, Memory, NodeInfo, PeerHint
from node.core.reports import Heartbeat, NodeReport
from node.core.rings import Fence, Placement, Ring, StageSpec
from node.host.interfaces import Interface
from node.members.address_book import AddressBook
from node.ring.lifecycle import Rings
from node.ring.limits import RingOptions

RING = Ring(
    "r",
    ModelVersion("m"),
    (StageSpec("a", 0, 2), StageSpec("b", 2, 4), StageSpec("c", 4, 6)),
    512,
    2,
    fence=Fence(3, 1),
)


def info(node: str) -> NodeInfo:
    return NodeInfo(node, 1, node, "home", "1", 1, (f"10.0.0.{ord(node)}",), 7001, 7002)


def book() -> AddressBook:
    nobody = SimpleNamespace(drop=lambda peer: None)
    known = AddressBook("c", nobody, (Interface("en0", "ethernet", ("10.0.0.99",)),), anywhere=False)
    for node in "ab":
        known.add(PeerHint(node, info(node).addresses, 7001))
    return known


def agent(known: AddressBook) -> Agent:
    return Agent(info("c"), 0, known, lambda: NodeReport(info("c"), Memory(1, 1)), lambda _: None)


def heartbeat(node: str, head: str, placement: Placement | None = None) -> Heartbeat:
    return Heartbeat(NodeReport(info(node), Memory(1, 1), term=3, head=head), placement)


async def test_a_placement_is_taken_from_the_head_alone():
    c = agent(book())
    c.exchange(heartbeat("a", "a"), Caller("10.0.0.97", "a"))
    assert c.head == "a"
    made = Placement(Fence(3, 1), "a", (RING,))
    c.exchange(heartbeat("b", "a", made), Caller("10.0.0.98", "b"))
    assert c.placement == Placement()
    c.heard(heartbeat("b", "a", made))
    assert c.placement == Placement()
    c.exchange(heartbeat("a", "a", Placement(Fence(3, 2), "b", (RING,))), Caller("10.0.0.97", "a"))
    assert c.placement == Placement()
    c.exchange(heartbeat("a", "a", made), Caller("10.0.0.97", "a"))
    assert c.placement == made


def test_the_head_alone_takes_a_node_out_of_use():
    asked = []
    c = SimpleNamespace(head="a")
    draining = SimpleNamespace(set_draining=lambda node, *, draining: asked.append(draining))
    service = ControlService(c, None, None, None, draining, None, None, None)
    with pytest.raises(NotAdmitted, match="not the head"):
        service.set_draining("c", Caller("10.0.0.98", "b"), draining=True)
    assert not asked
    service.set_draining("c", Caller("10.0.0.97", "a"), draining=True)
    service.set_draining("c", Caller("10.0.0.98"), draining=False)  # anybody may be head without a secret
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("caller", "taken"),
    [
        (Caller("10.0.0.66", "b"), True),
        (Caller("10.0.0.98", "a"), False),
        (Caller("10.0.0.98", "c"), False),
        (Caller("10.0.0.98"), True),
        (Caller("10.0.0.97"), False),
        (Caller("192.168.7.7"), True),
        (Caller(""), False),
    ],
)
async def test_frames_are_taken_from_the_stage_before(caller, taken):
    """By its certificate; without a secret, by its addresses and the address of its heartbeats."""
    known = book()
    known.note_caller("b", "192.168.7.7")
    known.note_caller("stranger", "10.0.0.66")
    rings = Rings(
        SimpleNamespace(info=info("c"), book=known),
        None,
        None,
        None,
        None,
        RingOptions(usable=100, max_queue=4, max_batch=4, step_timeout_s=60, guesses=True),
    )
    came = []

    class Part:
        ring = RING

        async def serve_link(self, first: Frame, frames: AsyncIterator[Frame]) -> None:
            came.append(first)

    rings._parts[RING.id] = SimpleNamespace(role=Part())
    frame = Frame(RING.id, RING.fence, 0)

    async def frames() -> AsyncIterator[Frame]:
        yield frame

    if taken:
        await rings.serve_link(frames(), caller)
        assert came == [frame]
    else:
        with pytest.raises(NotAdmitted, match="stage before"):
            await rings.serve_link(frames(), caller)
        assert not came


def test_the_driver_s_frames_come_from_the_last_stage_and_to_a_ring_of_one_none():
    assert RING.before("a") == "c"
    assert Ring("r", ModelVersion("m"), (StageSpec("a", 0, 6),), 512, 2).before("a") == "a"
    assert not book().is_from("c", Caller("10.0.0.99")), "a node does not call itself"
