"""What the stages of a ring of 2 do and when: a table of where the time goes, and a picture of their compute jobs.

For each number of sessions (--sessions) the ring answers as many completions at once. Before that it has done so once,
unrecorded. The rows of the picture are the
stages, each box is a job of a compute thread, and what is white is a stage that waits. The table has, for one token or one
step of a lane:

  job        the layers, on the driver with the head and the next step
  to loop    from the job's end to the event loop that sends its frame
  send       until gRPC has taken the frame
  wire       until the other stage's event loop has its bytes
  receive    the frame decoded
  to thread  from there to the beginning of the job

Of one session without guesses, the sum of both stages is the time of a token. Times are medians in µs. Both processes have one core, so
that threads of one stage also wait for each other.
"""

import argparse
import asyncio
import json
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import prompts
import ring_nodes
from figures import Row, header, machine, report, write_json
from ring import MODELS

HELP = "what both stages of a ring do and when, as a table and a picture"
COLOURS = {"begin": "#7da7d9", "finish": "#2f6db3", "relay": "#d98a3d", "guess": "#8fbf6b"}
OTHER = "#999999"
NAMES = ("driver", "worker")


@dataclass(frozen=True, slots=True)
class Event:
    what: str
    begin: int
    """Time in ns, as `end`."""
    end: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", default="25m", help="of scripts/make_model.py (default: %(default)s)")
    add("--preload", type=Path, metavar="LIB", help="a tuned BLAS (LD_PRELOAD, one thread)")
    add("--sessions", default="1,8,16,32", metavar="N,N", help="default: %(default)s")
    add("--tokens", type=int, default=48, metavar="N", help="of each answer (default: %(default)s)")
    add("--no-guesses", action="store_true", help="without guesses of a single session's tokens")
    add("--models-dir", type=Path, default=MODELS, metavar="DIR", help="of generated models (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help="folder for pictures, one for each number of sessions")
    add(
        "--shown",
        type=float,
        default=2.0,
        metavar="S",
        help="seconds in a picture, from the first request on (default: %(default)s)",
    )
    add("--json", type=Path, metavar="FILE", help="also write the figures to FILE")


def run(options: argparse.Namespace) -> None:
    where = machine() | {"preset": options.preset, "BLAS": str(options.preload or "of the wheel")}
    print(header(where))
    model = ring_nodes.make_model(options.preset, options.models_dir)
    counts = [int(part) for part in options.sessions.split(",")]
    more = ["--no-guesses"] if options.no_guesses else []
    with tempfile.TemporaryDirectory(prefix="pippin-bench-") as scratch:
        traces = [Path(scratch) / f"trace-{number}.json" for number in range(2)]
        with ring_nodes.running(2, model, Path(scratch), options.preload, more=more, traces=traces) as ring:
            ran = [_batch(ring, count, options.tokens) for count in counts]
        stages = [_events(traces[number]) for number in ring.order]
    rows: list[Row] = []
    for count, (begin, end) in zip(counts, ran, strict=True):
        within = [[event for event in stage if begin <= event.begin and event.end <= end] for stage in stages]
        rows += _rows(count, within, count * options.tokens / ((end - begin) / 1e9))
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            shown = min(end, begin + int(options.shown * 1e9))
            (options.out / f"sessions-{count}.svg").write_text(picture(count, within, begin, shown))
    report("What the stages do", rows, ("busy: the share of the time in which the compute thread has a job",))
    write_json(options.json, "timeline", where, rows)


def _batch(ring: ring_nodes.NodeRing, count: int, tokens: int) -> tuple[int, int]:
    """Run the sessions twice, and return when the second run began and ended, in ns."""
    for _ in range(2):
        begin = time.monotonic_ns()
        asyncio.run(ring.batch([prompts.token_ids(8) for _ in range(count)], tokens))
    return begin, time.monotonic_ns()


def _events(trace: Path) -> list[Event]:
    return sorted((Event(*event) for event in json.loads(trace.read_text())), key=lambda event: event.begin)


def _rows(count: int, stages: Sequence[Sequence[Event]], rate: float) -> list[Row]:
    return [
        {"sessions": count, "stage": NAMES[number], "tok/s": round(rate, 1)} | _parts(stage, stages[1 - number])
        for number, stage in enumerate(stages)
    ]


def _parts(stage: Sequence[Event], other: Sequence[Event]) -> Row:
    jobs = [event for event in stage if event.what.startswith("job")]
    sends = [event for event in stage if event.what == "send"]
    received = [event for event in stage if event.what == "receive"]
    of_kind = {job.what: [each for each in jobs if each.what == job.what] for job in jobs}
    return {
        "busy": round(sum(map(_ns, jobs)) / (jobs[-1].end - jobs[0].begin), 3),
        "job": _median(max(([_ns(job) for job in each] for each in of_kind.values()), key=sum)),
        "to loop": _median(_before(sends, jobs)),
        "send": _median([_ns(send) for send in sends]),
        "wire": _median(_wire([event for event in other if event.what == "receive"], sends)),
        "receive": _median([_ns(event) for event in received]),
        "to thread": _median(_before(jobs, received)),
    }


def _ns(event: Event) -> int:
    return event.end - event.begin


def _before(later: Sequence[Event], earlier: Sequence[Event]) -> list[int]:
    """The time from the end of the last one of `earlier` to the beginning of each of `later`."""
    ends = sorted(event.end for event in earlier)
    places = [(event.begin, bisect_right(ends, event.begin)) for event in later]
    return [begin - ends[place - 1] for begin, place in places if place]


def _wire(received: Sequence[Event], sends: Sequence[Event]) -> list[int]:
    """The time from the end of each send to its receipt: 0 if the bytes were there before gRPC told that it took them."""
    begins = [send.begin for send in sends]
    places = [(event.begin, bisect_right(begins, event.begin)) for event in received]
    return [max(0, begin - sends[place - 1].end) for begin, place in places if place]


def _median(times: Sequence[int]) -> float:
    return round(median(times) / 1000) if times else 0


def picture(count: int, stages: Sequence[Sequence[Event]], begin: int, end: int) -> str:
    """An SVG of the stages' jobs between two moments, in ns."""
    width, height, left = 1200, 60, 70
    scale = (width - left) / (end - begin)
    marks = []
    for number, stage in enumerate(stages):
        top = 30 + number * (height + 10)
        marks.append(f'<text x="4" y="{top + height / 2}">{NAMES[number]}</text>')
        for event in stage:
            if not event.what.startswith("job") or event.end > end:
                continue
            name, x = event.what.removeprefix("job "), left + (event.begin - begin) * scale
            wide = max((event.end - event.begin) * scale, 0.3)
            marks.append(
                f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{height}" fill="{COLOURS.get(name, OTHER)}">'
                f"<title>{name}: {(event.end - event.begin) / 1e6:.2f} ms</title></rect>"
            )
    legend = ", ".join(f'<tspan fill="{colour}">{name}</tspan>' for name, colour in COLOURS.items())
    marks.append(f'<text x="4" y="18">{count} sessions, {(end - begin) / 1e9:.1f} s: {legend}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{2 * height + 50}" '
        f'font-family="sans-serif" font-size="13" style="background: white">{"".join(marks)}</svg>\n'
    )
