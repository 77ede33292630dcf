"""The cost of one hop of an 8 KB frame between two processes, and its parts.

A hop begins when a stage's hidden state is computed and ends when the next stage has it as an MLX array, in its compute
thread. It uses the product's own parts: engine.compute, engine.codec, rpc.link, rpc.server.
"""

from collections.abc import Sequence

import processes
from figures import Row, at_most, median, percentile, report
from processes import Child

BYTES = 8192
TARGET_US = 250.0
SWEEP_BYTES = 64 << 20
WARM_UP = 0.1
"""Share of the round trips that is not counted."""

# Moments of a hop in nanoseconds of one clock: the first five at its sender, the others at its receiver.
COMPUTED, PACKED, RESUMED, ENCODING, ENCODED, DECODING, DECODED, UNPACKING, UNPACKED = range(9)
Hop = Sequence[int]
SPANS: dict[str, Sequence[tuple[int, int]]] = {
    "serialise: array to bytes, frame to bytes": ((COMPUTED, PACKED), (ENCODING, ENCODED)),
    "compute thread to loop, at the sender": ((PACKED, RESUMED),),
    "wire: gRPC at both ends, loopback": ((RESUMED, ENCODING), (ENCODED, DECODING)),
    "loop to compute thread, at the receiver": ((DECODED, UNPACKING),),
    "deserialise: bytes to frame, bytes to array": ((DECODING, DECODED), (UNPACKING, UNPACKED)),
    "the whole hop": ((COMPUTED, UNPACKED),),
}


def measure(trips: int) -> list[Row]:
    cores: list[int | None] = [*processes.cores()] or [None]
    here, there = cores[0], cores[1 % len(cores)]
    warm = _linked(here, there, trips, 0)
    cold = _linked(here, there, max(trips // 10, 50), SWEEP_BYTES)
    tls = _linked(here, there, trips, 0, secret=True)
    tcp = _tcp(here, there, trips)
    total = [hop[UNPACKED] - hop[COMPUTED] for hop in warm]
    rows = [
        *(
            _row(what, warm, spans) | _row("", cold, spans, " cold") | _row("", tls, spans, " TLS")
            for what, spans in SPANS.items()
        ),
        _figures("blocking TCP, half a round trip", [ns / 2 for ns in tcp[int(len(tcp) * WARM_UP) :]]),
    ]
    rows[len(SPANS) - 1] |= at_most(median(total) / 1000, TARGET_US)
    notes = [
        f"cold: each stage reads {SWEEP_BYTES >> 20} MiB before it sends, as if they were weights",
        "TLS: as the first columns, between nodes with a secret",
    ]
    if cores[0] is not None:
        notes.append(f"cores {here} and {there}: each process has one for its loop, its compute and gRPC's own threads")
    report(f"One hop of {BYTES} bytes over loopback, {len(warm)} hops", rows, notes)
    return rows


def _linked(
    here: int | None, there: int | None, trips: int, sweep_bytes: int, *, secret: bool = False
) -> list[list[int]]:
    kind = "-tls" if secret else ""
    with (
        Child("hop_child.py", f"far{kind}", core=there) as far,
        Child("hop_child.py", f"near{kind}", core=here) as near,
    ):
        far_port, near_port = far.answer()["port"], near.answer()["port"]
        far.ask(peer=near_port, sweep_bytes=sweep_bytes)
        mine = near.ask(peer=far_port, sweep_bytes=sweep_bytes, trips=trips)
        theirs = far.ask(stamps=True)
    return _hops(mine["out"], theirs["in"]) + _hops(theirs["out"], mine["in"])


def _tcp(here: int | None, there: int | None, trips: int) -> list[int]:
    with Child("hop_child.py", "tcp-far", core=there) as far, Child("hop_child.py", "tcp-near", core=here) as near:
        port = far.answer()["port"]
        near.answer()
        stamps: list[int] = near.ask(peer=port, trips=trips)["out"]
    return stamps


def _hops(sent: Sequence[Hop], received: Sequence[Hop]) -> list[list[int]]:
    whole = [[*out, *into] for out, into in zip(sent, received, strict=True)]
    return whole[int(len(whole) * WARM_UP) :]


def _row(what: str, hops: Sequence[Hop], spans: Sequence[tuple[int, int]], kind: str = "") -> Row:
    return _figures(what, [float(sum(hop[end] - hop[begin] for begin, end in spans)) for hop in hops], kind)


def _figures(what: str, ns: Sequence[float], kind: str = "") -> Row:
    named: Row = {"part": "d", "": what} if what else {}
    return named | {f"p50 us{kind}": median(ns) / 1000, f"p99 us{kind}": percentile(ns, 0.99) / 1000}
