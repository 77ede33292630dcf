"""Validates messages from peers before any other part of a node uses them: sizes, ranges, finite numbers, consistency.

The protobuf messages themselves are checked, so that no objects are made of a refused one. Lists and texts that are
only informative (errors, refusals, which models a node holds) are truncated instead, so that the rest of the message is
used. Whether a valid message is true is another matter: see docs/threat-model.md.
"""

import math
from collections.abc import Sized

from node.core.errors import Incompatible
from node.core.limits import COUNTER_LIMIT, MAX_ADDRESSES, MAX_MODELS, MAX_NAME_CHARS, MAX_NODES, MAX_TEXT_CHARS
from node.core.logs import MAX_LINE_CHARS, MAX_PART_LINES, RECENT
from node.core.models import KV_BITS
from node.core.response_ids import Ask
from node.wire import control_pb2 as pb
from node.wire import serving_pb2

MAX_ITEMS = 1024
"""Maximum nodes, rings, loads or addresses in one message."""
MAX_ISSUES = 32
"""Maximum issues that a node reports of itself."""
MAX_STAGES = 4096
"""Maximum stages of all rings of a placement."""
MAX_LAYERS = 65_536
"""Maximum layers of all models of a placement."""
MAX_FILES = 4096
"""Maximum files of a model."""
MAX_FILE_BYTES = 1 << 42
_SIZE = 1 << 60
"""Bound of numbers of bytes and tokens."""


def checked_model(message: pb.ModelRequest) -> pb.ModelRequest:
    """Raises Incompatible."""
    _check_names(message.model, message.revision)
    _check_kv_bits(message.kv_bits)
    return message


def checked_load(message: pb.LoadRequest) -> pb.LoadRequest:
    """Raises Incompatible."""
    _check_names(message.model)
    _check_wish(message.wish)
    return message


def checked_heartbeat(message: pb.Heartbeat) -> pb.Heartbeat:
    """Raises Incompatible."""
    _check_names(message.node)
    if message.HasField("report") or not message.node:
        _check_report(message.report)
    if message.HasField("placement"):
        _check_placement(message.placement)
    return message


def checked_spec(message: pb.ModelSpec) -> pb.ModelSpec:
    """Check a model's description, which the head uses to compute placements. Raises Incompatible."""
    _check_count("layers", message.layer_bytes, MAX_LAYERS)
    _check_count("layers", message.kv, MAX_LAYERS)
    _check_count("cuts", message.cuts, MAX_LAYERS)
    costs = [number for cost in message.kv for number in (cost.per_token, cost.fixed, cost.window)]
    _check_below(
        "sizes", _SIZE, *message.layer_bytes, message.ends_bytes, *costs, message.max_context, message.score_bytes
    )
    _check_names(message.model, message.revision)
    _check_kv_bits(message.kv_bits)
    _check_wish(message.wish)
    if message.HasField("draft"):
        if message.draft.HasField("draft"):
            raise Incompatible(f"A peer's description of the model {message.model!r:.60} has a draft with a draft.")
        checked_spec(message.draft)
    layers, cuts = len(message.layer_bytes), list(message.cuts)
    ascending = cuts == sorted(set(cuts)) and all(0 < cut < layers for cut in cuts)
    sized = layers and len(message.kv) == layers and message.head_bytes <= message.ends_bytes
    if not (sized and message.max_context and ascending):
        raise Incompatible(f"A peer's description of the model {message.model!r:.60} is inconsistent.")
    return message


def checked_request(message: serving_pb2.GenerateRequest) -> serving_pb2.GenerateRequest:
    """Check a request: numbers that arrays cannot hold would fail the step for all requests in it.

    Raises Incompatible.
    """
    sampling = message.sampling
    _check_names(message.id, message.ring, message.model, message.client, message.revision)
    if not message.prompt:
        raise Incompatible(f"Request {message.id} has an empty prompt.")
    _check_count("tokens to stop at", message.stop_tokens, MAX_ITEMS)
    _check_count("biases", sampling.logit_bias, MAX_ITEMS)
    _check_below("tokens", 1 << 31, message.max_tokens, sampling.top_k)
    _check_below("candidates", MAX_ITEMS, sampling.logprobs)
    _check_finite(sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty)
    _check_finite(abs(sampling.presence_penalty), abs(sampling.frequency_penalty))
    _check_finite(*map(abs, sampling.logit_bias.values()))
    return message


def checked_evaluation(message: serving_pb2.EvaluateRequest) -> serving_pb2.EvaluateRequest:
    """Raises Incompatible."""
    _check_names(message.id, message.ring, message.model, message.client, message.revision)
    if not message.prompt:
        raise Incompatible(f"Request {message.id} has an empty text.")
    _check_below("candidates", MAX_ITEMS, message.top)
    return message


def checked_log_request(message: pb.LogRequest) -> pb.LogRequest:
    """Raises Incompatible."""
    _check_maximum("lines of the log", message.lines, RECENT)
    return message


def checked_response_request(message: pb.ResponseRequest) -> pb.ResponseRequest:
    """Raises Incompatible."""
    _check_names(message.id)
    if message.ask not in tuple(Ask):
        raise Incompatible(f"A peer asks for {message.ask[:40]!r} of a response.")
    return message


def checked_log_part(message: pb.LogPart) -> pb.LogPart:
    """Check lines of a peer's log, which are shown in terminals. Raises Incompatible."""
    _check_count("lines", message.lines, MAX_PART_LINES)
    for line in message.lines:
        if len(line) > MAX_LINE_CHARS or not line.isprintable():
            raise Incompatible(f"A peer's log has the invalid line {line[:40]!r}, of {len(line):,} characters.")
    return message


def _check_info(info: pb.NodeInfo) -> None:
    _check_names(info.id, info.name, info.cluster, info.version, info.chip, *info.addresses)
    if not info.id:
        raise Incompatible("A peer's message has no node id.")
    _check_count("addresses", info.addresses, MAX_ITEMS)
    del info.addresses[MAX_ADDRESSES:]
    _check_below("counters", COUNTER_LIMIT, info.incarnation, info.started_at)
    _check_below("ports", 1 << 16, info.grpc_port, info.api_port)


def _check_report(report: pb.NodeReport) -> None:
    _check_info(report.info)
    _check_below("counters", COUNTER_LIMIT, report.term, report.fence.term, report.fence.epoch)
    _check_below("bytes", _SIZE, report.memory.total, report.memory.usable, report.memory.used)
    _check_names(report.head, report.disk_error)
    del report.models[MAX_MODELS:]
    _check_count("preloaded models", report.preload, MAX_ITEMS)
    _check_names(*report.preload)
    _check_count("draft models", report.drafts, MAX_ITEMS)
    for choice in report.drafts:
        _check_names(choice.model, choice.draft)
    _check_count("aliases", report.aliases, MAX_ITEMS)
    for alias in report.aliases:
        _check_names(alias.name, alias.model)
    _check_count("presets", report.presets, MAX_ITEMS)
    for preset in report.presets:
        _check_count("values of a preset", preset.sampling, MAX_ITEMS)
        _check_names(preset.model, *preset.sampling)
    for held in report.models:
        _check_names(held.id, held.revision)
    _check_count("stages", report.stages, MAX_ITEMS)
    for load in report.stages:
        _check_names(load.ring)
        _check_shard(load.shard)
        _check_finite(load.progress, load.download.bytes_per_s)
        _check_below("bytes", _SIZE, load.download.done, load.download.total)
        load.error = load.error[:MAX_TEXT_CHARS]
    _check_count("idle shards", report.idle, MAX_ITEMS)
    for shard in report.idle:
        _check_shard(shard)
    _check_count("speeds", report.speeds, MAX_ITEMS)
    for speed in report.speeds:
        _check_shard(speed.shard)
        _check_finite(speed.bytes_per_s, speed.tokens_per_s)
    _check_count("traffic", report.traffic, MAX_ITEMS)
    for ring in report.traffic:
        _check_names(ring.ring)
        _check_finite(ring.tokens_per_second)
        _check_below("counted tokens", COUNTER_LIMIT, ring.guesses, ring.right_guesses, ring.recomputed, ring.requests)
    _check_finite(report.lag_s, report.job_s)
    _check_count("paths", report.paths, MAX_ITEMS)
    for path in report.paths:
        _check_names(path.to, path.address, path.interface, path.kind)
        _check_finite(path.rtt_ms, path.bytes_per_s)
    del report.issues[MAX_ISSUES:]
    for issue in report.issues:
        _check_names(issue.code)
        issue.text, issue.hint = issue.text[:MAX_NAME_CHARS], issue.hint[:MAX_NAME_CHARS]
    _check_count("peers", report.peers, MAX_ITEMS)
    del report.peers[MAX_NODES:]
    for hint in report.peers:
        _check_count("addresses", hint.addresses, MAX_ITEMS)
        del hint.addresses[MAX_ADDRESSES:]
        _check_names(hint.id, *hint.addresses)
        _check_below("ports", 1 << 16, hint.grpc_port)


def checked_listing(message: serving_pb2.Listing) -> serving_pb2.Listing:
    """Raises Incompatible."""
    _check_count("files", message.files, MAX_FILES)
    _check_count("claims", message.claims, MAX_FILES)
    _check_names(*(file.name for file in message.files), *(file.digest for file in message.files))
    _check_names(*(claim.name for claim in message.claims))
    _check_below("bytes", MAX_FILE_BYTES, 0, *(file.size for file in message.files))
    return message


def _check_wish(wish: pb.Wish) -> None:
    _check_below("stages", MAX_ITEMS + 1, wish.stages)
    _check_below("tokens", 1 << 31, wish.context)


def _check_placement(placement: pb.Placement) -> None:
    _check_below("counters", COUNTER_LIMIT, placement.fence.term, placement.fence.epoch)
    _check_names(placement.head)
    _check_count("rings", placement.rings, MAX_ITEMS)
    _check_maximum("stages", sum(len(ring.stages) for ring in placement.rings), MAX_STAGES)
    for ring in placement.rings:
        _check_ring(ring)
    del placement.refused[MAX_ITEMS:]
    for refusal in placement.refused:
        _check_names(refusal.model, refusal.code)
        refusal.message = refusal.message[: MAX_TEXT_CHARS // 2]
        refusal.hint = refusal.hint[: MAX_TEXT_CHARS // 2]
    _check_count("models", placement.specs, MAX_ITEMS)
    layers = sum(len(spec.layer_bytes) + len(spec.draft.layer_bytes) for spec in placement.specs)
    _check_maximum("layers", layers, MAX_LAYERS)
    for spec in placement.specs:
        checked_spec(spec)


def _check_ring(ring: pb.Ring) -> None:
    """Check that the stages hold each layer once, in order, each stage on a different node."""
    _check_names(ring.id, ring.model, ring.revision)
    _check_kv_bits(ring.kv_bits)
    if ring.HasField("draft"):
        _check_shard(ring.draft)
    _check_count("stages", ring.stages, MAX_ITEMS)
    _check_below("counters", COUNTER_LIMIT, ring.fence.term, ring.fence.epoch)
    _check_below("tokens", 1 << 31, ring.context, ring.max_sessions)
    starts = [stage.start for stage in ring.stages]
    ends = [stage.end for stage in ring.stages]
    nodes = {stage.node for stage in ring.stages}
    _check_names(*nodes)
    if not starts or starts != [0, *ends[:-1]] or len(nodes) < len(starts):
        raise Incompatible(f"The stages of ring {ring.id} do not hold each layer once, each stage on a different node.")
    for start, end in zip(starts, ends, strict=True):
        _check_layers(start, end)


def _check_shard(shard: pb.Shard) -> None:
    _check_names(shard.model, shard.revision)
    _check_layers(shard.start, shard.end)
    _check_kv_bits(shard.kv_bits)


def _check_kv_bits(bits: int) -> None:
    if bits not in (0, *KV_BITS):
        raise Incompatible(f"A peer's message has KV of {bits} bits; it may have {' or '.join(map(str, KV_BITS))}.")


def _check_layers(start: int, end: int) -> None:
    if not start < end <= MAX_LAYERS:
        raise Incompatible(f"A peer's message has the invalid layers {start} to {end}.")


def _check_count(what: str, items: Sized, most: int) -> None:
    _check_maximum(what, len(items), most)


def _check_maximum(what: str, count: int, most: int) -> None:
    if count > most:
        raise Incompatible(f"A peer's message has {count:,} {what}; the maximum is {most:,}.")


def _check_names(*names: str) -> None:
    """Check names: they are shown in terminals and written to logs."""
    for name in names:
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise Incompatible(f"A peer's message has the invalid name {name[:40]!r}, of {len(name):,} characters.")


def _check_below(what: str, bound: int, *numbers: int) -> None:
    if max(numbers) >= bound:
        raise Incompatible(f"A peer's message has the number {max(numbers):,} for {what}; it must be below {bound:,}.")


def _check_finite(*numbers: float) -> None:
    for number in numbers:
        if not 0 <= number < math.inf:
            raise Incompatible(f"A peer's message has the number {number}, which must be finite and at least 0.")
