"""The table of claims in docs/performance.md, drawn from the runs in docs/bench."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUNS = Path(__file__).resolve().parents[2] / "docs" / "bench"
BEGIN, END = "<!-- claims: drawn by scripts/pages.py -->\n", "<!-- end of claims -->"
HEAD = "| claim | figure | target | machine | date, command |\n| --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of a run: a column of the first row with these cells."""

    text: str
    run: str
    """Name of the file in docs/bench."""
    figure: str
    """The column."""
    cells: dict[str, Any] = field(default_factory=dict)
    form: str = "{:.2f}"
    """Of the figure; the least and the most of a ratio's pairs follow it."""
    has_target: bool = True
    """Whether the row's target, if it has one, is for this column."""

    def line(self) -> str:
        run = json.loads((RUNS / f"{self.run}.json").read_text())
        rows = [row for row in run["rows"] if self.cells.items() <= row.items() and row.get(self.figure) is not None]
        if not rows:
            raise SystemExit(f"docs/bench/{self.run}.json has no {self.figure} of {self.cells}: {self.text}")
        row, machine = rows[0], run["machine"]
        spread = f" ({row['least']:.2f}–{row['most']:.2f})" if self.figure == "ratio" and "least" in row else ""
        target = ""
        if self.has_target and row.get("target"):
            target = f"{row['target']}: {'met' if row['met'] == 'yes' else '**missed**'}"
        cores = f", {machine['cores']} cores" if "cores" in machine else ""
        cells = (
            self.text,
            self.form.format(row[self.figure]) + spread,
            target.replace(">= ", "≥ ").replace("<= ", "≤ "),
            machine["device"] + cores,
            f"{run['date']}{'†' if 'transcribed' in run else ''} [`{run['command'].partition(' --json')[0]}`](bench/{self.run}.json)",
        )
        return f"| {' | '.join(cells)} |\n"


def page(text: str) -> str:
    """Return the page with its table drawn anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit("docs/performance.md has no place for the claims.")
    return "".join([before, begin, "\n", HEAD, *(claim.line() for claim in CLAIMS), "\n", end, after])


def _one() -> Iterator[Claim]:
    for model, what in (("25m", "float32"), ("25m-4bit", "4 bits"), ("110m", "float32"), ("110m-4bit", "4 bits")):
        for context in (16, 4000) if what == "float32" else (16,):
            name = f"One node, one stream: {model.partition('-')[0]} in {what}, {context:,} tokens before"
            yield Claim(name, "one", "ratio", {"case": f"{model}, context {context}"})
    yield Claim("One node, one stream of 2 ms a token: tiny in float32", "one", "ratio", {"case": "tiny, context 16"})
    yield Claim("One node on a GPU: 1.2 G parameters in bfloat16", "one-h100", "ratio", {"part": "one"})


def _free_text() -> Iterator[Claim]:
    tasks = "Six tasks for a real model, with nobody's help"
    split, alone = ({"case": f"median of six tasks, {nodes}"} for nodes in ("ring of 2", "one node"))
    yield Claim(f"{tasks}: 4 bits, ring of 2", "ring-h-4bit", "ratio", split)
    yield Claim(f"{tasks}: float32 with BLIS, ring of 2", "ring-h", "ratio", split)
    yield Claim(f"{tasks}: float32 with BLIS, one node", "ring-h", "ratio", alone)
    right, own = "MTP layer right for 80%", "built-in model with its MTP layer"
    models = (("400mb", right, "ring-g-400mb"), ("25m", right, "ring-g"), ("built-in model", own, "ring-g"))
    for option in ("", ", --no-guesses"):
        for model, case, file in models:
            name = (
                f"Ring of 2, one stream, {model} with an MTP layer{' right for 80 %' if case is right else ''}{option}"
            )
            yield Claim(name, file, "ratio", {"case": f"{case}{option}, ring of 2"})
    draft = {"case": "free text, draft model pippin-demo"}
    yield Claim("Ring of 2, one stream of 84 ms a token with a draft model", "ring-f", "ratio", draft)
    yield Claim("The same, of 48 ms a token", "ring-f-48ms", "ratio", draft)
    for case, told in (("first", "nothing said before"), ("after others", "after twelve others of the same client")):
        for sampling in ("greedy", "sampled"):
            name = f"Six tasks for a real model, {sampling}, {told}: speed of a ring of 2 by the formula of guesses"
            yield Claim(name, "guesses", "speed", {"case": case, "sampling": sampling, "text": "all 6"})


def _rings() -> Iterator[Claim]:
    for stages in (2, 3):
        yield Claim(f"Ring of {stages}, one stream", "ring-a", "ratio", {"case": f"one stream, ring of {stages}"})
    for wrong, text in (("2th", "every 2nd"), ("4th", "every 4th"), ("9th", "every 9th")):
        case = f"every {wrong} token of the prediction wrong, ring of 2"
        yield Claim(
            f"Ring of 2, one stream with a prediction, {text} token of it wrong", "ring-e", "ratio", {"case": case}
        )
    yield Claim(
        "Ring of 2, one stream with a right prediction", "ring-e", "ratio", {"case": "a right prediction, ring of 2"}
    )
    for nodes in ("one node", "ring of 2"):
        for wrong, text in (("4th", "every 4th"), ("9th", "every 9th")):
            cells = {"case": f"every {wrong} token of the prediction wrong, {nodes}"}
            name = f"Steps of two to five tokens, bound by memory, {nodes}: a prediction, {text} token of it wrong"
            yield Claim(name, "ring-e-from-two", "ratio", cells, has_target=False)
        cells = {"case": f"no prediction, {nodes}"}
        yield Claim(f"The same without a prediction, {nodes}", "ring-e-from-two", "ratio", cells)
        for own, text in (("", "an MTP layer that is right for 80 %"), (", --no-guesses", "the same without guesses")):
            cells = {"case": f"MTP layer right for 80%{own}, {nodes}"}
            name = f"Steps of two to five tokens, bound by memory, {nodes}: {text}"
            yield Claim(name, "ring-g-from-two", "ratio", cells)
    for count in (8, 16, 32):
        cells = {"case": f"{count} sessions, ring of 2"}
        yield Claim(f"Ring of 2, {count} sessions, bound by computing", "ring-b", "ratio", cells)
    cells = {"case": "16 sessions, half in each of 2 stock processes"}
    yield Claim("For comparison: 16 sessions in 2 stock processes", "ring-b", "ratio", cells)
    cells = {"case": "16 sessions, ring of 2"}
    yield Claim("Ring of 2, 16 sessions, bound by memory", "ring-110m", "ratio", cells)
    cells = {"case": "16 sessions, half in each of 2 stock processes"}
    yield Claim("For comparison: the same in 2 stock processes", "ring-110m", "ratio", cells)
    for run, length in (("ring-c", 2048), ("ring-c-400", 400), ("ring-c-120", 120)):
        cells = {"case": f"prompt of {length}, ring of 2"}
        yield Claim(f"Ring of 2, a prompt of {length:,} tokens until its first token", run, "ratio", cells)


def _clients() -> Iterator[Claim]:
    for side in ("one node", "ring of 2"):
        name = f"Coding agent, {side}: time to the first token of a later turn, of the first turn's"
        yield Claim(name, "agent", "ratio", {"side": side, "case": "later turn"}, "{:.4f}")
    cases = {
        "other model": "after an unload, and an answer of another model",
        "all killed": "after a kill of all nodes",
        "3 nodes": "the same, with 3 nodes instead of 2",
    }
    for case, told in cases.items():
        name = f"A turn of 34,000 tokens, {told}: time to the first token, of the first turn's"
        yield Claim(name, "agent-restarts", "ratio", {"case": case}, "{:.4f}")
    yield Claim("Time until a cancelled prompt's place is free, s", "agent", "freed s", {}, "{:.3f}")
    for streams in (64, 256):
        for side in ("one node", "ring of 2"):
            cells = {"case": f"{streams} streams", "side": side}
            name = f"{streams} streams without a limit, {side}: tokens/s against mlx_lm.server"
            yield Claim(name, "many", "ratio", cells, has_target=False)
    cells = {"case": "256 streams", "side": "ring of 2"}
    yield Claim("The same, 256 streams, ring of 2: tokens computed twice, %", "many", "recomputed %", cells)
    cells = {"case": "64 alike", "side": "one node"}
    name = "64 clients with one system prompt of 2,000 tokens: tokens of prompts that are computed"
    yield Claim(name, "many", "prompt tokens", cells, "{:,}", has_target=False)
    name = "A prompt of 7,860 tokens comes: longest gap of 4 running streams, ms"
    yield Claim(name, "serve-stall", "stall ms", {}, "{:.0f}")
    name = "A prompt with a picture of 448 x 448, one node: time to the first token against mlx-vlm"
    yield Claim(name, "pictures", "ratio", {"part": "first token"})
    for what in ("a picture", "a text"):
        name = f"A prompt of 281 tokens, {what}, comes: longest gap of a running stream, ms"
        yield Claim(name, "pictures", "stall ms", {"case": f"{what} comes"}, "{:.0f}")
    for side in ("here", "elsewhere"):
        for figure, form in (("TTFT p50 ms", "{:.1f}"), ("tokens/s", "{:,.0f}"), ("gateway's us a token", "{:.0f}")):
            cells = {"case": f"driver {side}", "figure": figure}
            yield Claim(f"HTTP without an engine, driver {side}: {figure}", "gateway", "value", cells, form)


def _failures() -> Iterator[Claim]:
    lost = {
        "worker": "the ring's last node is killed",
        "driver": "the driver is killed",
        "head": "the head is killed",
        "hang": "the ring's last node hangs",
        "leave": "the ring's last node leaves",
    }
    for kind, text in lost.items():
        name = f"Longest pause of a stream when {text}, s"
        yield Claim(name, "recover", "max", {"kind": kind}, has_target=False)
    name = "Longest pause of a stream when connections are reset, s"
    yield Claim(name, "recover-reset", "max", {"kind": "reset"}, has_target=False)
    yield Claim("Streams lost when the ring's last node is killed", "recover", "streams lost", {}, "{}")
    for words, tokens in ((80, "100"), (6500, "8,400"), (23500, "30,300")):
        name = f"A session of {tokens} tokens, and the ring's last node is killed: pause, median, s"
        yield Claim(name, "recover-contexts", "p50", {"words": words, "kind": "worker"}, has_target=False)
    name = "The same with 8,400 tokens, without copies of KV at another node"
    yield Claim(name, "recover-without-copies", "p50", {"kind": "worker"}, has_target=False)
    name = "Minutes of mixed load while nodes are lost: answers wrong, lost or hung"
    yield Claim(name, "soak", "wrong, lost or hung", {}, "{}")
    name = "The same: the gateway's memory at the end, of that after a third"
    yield Claim(name, "soak", "gateway's memory", has_target=False)
    yield Claim("Processor time of an idle node of 16, % of a core", "control", "max %", {"nodes": 16})
    yield Claim("Seconds until 64 simulated nodes agree", "control", "seconds", {"nodes": 64})
    name = "Under attack by 50,000 schemas: the slowest `/health`, ms"
    yield Claim(name, "fuzz", "health max ms", {"case": "open: 50,000 schemas"}, "{:.0f}")


CLAIMS = [*_one(), *_rings(), *_free_text(), *_clients(), *_failures()]
