"""Prometheus metrics of this node. Each application has its own registry; there is no global state."""

import asyncio
import time
from collections.abc import Iterator

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from node.gateway.monitor import Monitor

ANYTHING_ELSE = hdrs.METH_ANY
"""Method of the catch-all routes, which answer 404 or 405."""
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)
REQUESTS = "Requests answered"
DURATION = "Time to the complete answer, or to the last event of a stream"
TO_FIRST = "Time from the request to a ring to the first token, including the queue"
TOKENS = "Tokens of prompts and answers"


class Metrics:
    """Counters of the HTTP side, and gauges that are read from the node at each scrape."""

    def __init__(self, monitor: Monitor) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("pippin_http_requests", REQUESTS, ["route", "method", "status"], registry=registry)
        self._duration = Histogram(
            "pippin_http_request_seconds", DURATION, ["route"], buckets=SECONDS, registry=registry
        )
        self.first_token = Histogram(
            "pippin_first_token_seconds", TO_FIRST, ["model"], buckets=SECONDS, registry=registry
        )
        self._tokens = Counter("pippin_tokens", TOKENS, ["model", "kind"], registry=registry)
        registry.register(_NodeGauges(monitor))

    def count_tokens(self, model: str, **counts: int) -> None:
        """`counts`: by kind: "prompt", "cached", "answer"."""
        for kind, count in counts.items():
            self._tokens.labels(model, kind).inc(count)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        begun, status = time.perf_counter(), 499  # nginx's status for a client that hung up
        found = request.match_info.route
        # A label for each mistyped path or method would fill the memory.
        known = found.resource if found.method != ANYTHING_ELSE else None
        route, method = (known.canonical, request.method) if known else ("none", "any")
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            self._requests.labels(route, method, status).inc()
            self._duration.labels(route).observe(time.perf_counter() - begun)

    async def show(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_LATEST})


class _NodeGauges(Collector):
    """Gauges, read from the node at each scrape."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def describe(self) -> list[Metric]:
        return []  # the node knows nothing yet when this is registered

    def collect(self) -> Iterator[Metric]:
        node, status = self._monitor.metrics(), self._monitor.status()
        for name, text, value in (
            ("pippin_kv_bytes", "KV caches of this node", node.kv_bytes),
            ("pippin_memory_used_bytes", "Weights and KV on this node", node.memory_bytes),
            ("pippin_loop_lag_seconds", "Recent maximum of the event loop's lag", node.lag_s),
            ("pippin_compute_job_seconds", "Duration of the compute thread's current job", node.job_s),
            ("pippin_tasks", "Tasks of the event loop", len(asyncio.all_tasks())),
        ):
            yield GaugeMetricFamily(name, text, value)
        resumed = "Requests of this gateway that were resumed on another ring"
        yield CounterMetricFamily("pippin_recoveries", resumed, node.recoveries)
        for name, text in (
            ("running", "Sessions that this node's rings are computing"),
            ("queued", "Sessions waiting for this node's rings"),
            ("tokens_per_second", "Recent tokens per second of this node's rings"),
        ):
            family = GaugeMetricFamily(f"pippin_ring_{name}", text, labels=["ring"])
            for ring in node.rings:
                family.add_metric([ring.ring], getattr(ring, name))
            yield family
        judged = "Guessed tokens of this node's rings, right or wrong"
        guesses = CounterMetricFamily("pippin_ring_guesses", judged, labels=["ring", "outcome"])
        again = "Tokens computed again for requests that had made room for others"
        recomputed = CounterMetricFamily("pippin_ring_recomputed_tokens", again, labels=["ring"])
        for ring in node.rings:
            guesses.add_metric([ring.ring, "right"], ring.right_guesses)
            guesses.add_metric([ring.ring, "wrong"], ring.guesses - ring.right_guesses)
            recomputed.add_metric([ring.ring], ring.recomputed)
        yield guesses
        yield recomputed
        for kind in ("models", "nodes"):
            family = GaugeMetricFamily(f"pippin_cluster_{kind}", f"{kind.title()} in each state", labels=["state"])
            states = [each["state"] for each in status.get(kind, [])]
            for state in sorted(set(states)):
                family.add_metric([state], states.count(state))
            yield family
