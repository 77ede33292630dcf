"""What the tests of the page share: a status to show, and a chat as its user has it."""

import asyncio
import time

from tests.patience import PATIENCE_S

MODEL = "pippin/demo"

ANSWER_ENDED = "document.querySelector('.assistant:last-child > .actions:not([hidden])') !== null"


def node_status(name, number, **changed):
    return {
        "id": f"id-{number}",
        "name": name,
        "state": "ready",
        "reason": "",
        "roles": ["gateway"],
        "version": "0.1.0",
        "address": "10.0.0.1:5000",
        "chip": "Apple M4",
        "memory": {"total": 16 << 30, "usable": 12 << 30, "used": 9 << 30},
        "layers": [{"model": MODEL, "start": 4 * number, "end": 4 * number + 4}],
        "idle": [],
        "speeds": [],
        "link": None,
        "last_seen_s": 0.0,
        **changed,
    }


def link_to(number):
    return {"to": f"id-{number}", "interface": "en5", "kind": "wi-fi", "rtt_ms": 8.12, "bytes_per_second": 30 << 20}


def cluster_status(*nodes, warnings=()):
    stages = [{"node": node["id"], **{end: node["layers"][0][end] for end in ("start", "end")}} for node in nodes]
    ring = {"id": "r1", "state": "ready", "driver": "id-0", "stages": stages, "requests": {"running": 1, "queued": 2}}
    model = {
        "id": MODEL,
        "state": "ready",
        "context": 2048,
        "layers": 4 * len(nodes),
        "rings": [ring],
        "requests": ring["requests"],
        "tokens_per_second": 21.4,
    }
    return {
        "schema": 1,
        "cluster": "home",
        "state": "ready",
        "head": "id-1",
        "term": 7,
        "epoch": 3,
        "api": "http://home.local:52415/v1",
        "nodes": list(nodes),
        "models": [model],
        "warnings": list(warnings),
    }


TWO = cluster_status(node_status("mini-1", 0, link=link_to(1)), node_status("mini-2", 1, link=link_to(0)))


async def ask(tab, text):
    await tab.write("#prompt", text)
    await tab.press("Enter")


async def answered(tab):
    await tab.until(ANSWER_ENDED, "the answer is complete")
    return await tab.text(".assistant:last-child > .text")


def prompted(backend):
    """What the model got of the last request."""
    return backend.model.tokenizer.decode(backend.requests[-1].prompt)


async def happens(condition):
    """Wait until what the user did has come to the backend."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        await asyncio.sleep(0.02)
