"""Every dataclass of the control plane has the same fields as its message, and survives the
conversion there and back.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.core import models, nodes, reports, rings
from node.core.evaluation import EvaluateRequest, Evaluation, Score
from node.core.generation import GenerateRequest, Sampling, TokenEvent
from node.core.models import HeldModel, KvCost, ModelSpec, Shard, Wish
from node.core.nodes import Memory, NodeInfo, PeerHint
from node.core.reports import (
    Download,
    Heartbeat,
    Issue,
    NodeReport,
    Path,
    RingTraffic,
    Severity,
    Speed,
    StageReport,
    StageState,
)
from node.core.rings import Fence, Placement, Refusal, Ring, StageSpec
from node.rpc.mapping import from_message, to_message
from node.rpc.token_codec import (
    decode_evaluation,
    decode_event,
    encode_evaluation,
    encode_event,
)
from node.wire import control_pb2, serving_pb2

CLASSES = vars(models) | vars(nodes) | vars(reports) | vars(rings)
small = st.integers(0, 2**31)
texts = st.text(max_size=8)


def tuples(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=3).map(tuple)


fences = st.builds(Fence, small, small)
shards = st.builds(Shard, texts, small, small, texts)
infos = st.builds(NodeInfo, texts, small, texts, texts, texts, small, tuples(texts), small, small, texts)
floats = st.floats(0, 1e6)
downloads = st.none() | st.builds(Download, small, small, floats)
reports = st.builds(
    NodeReport,
    info=infos,
    memory=st.builds(Memory, small, small, small),
    term=small,
    head=texts,
    fence=fences,
    stages=tuples(st.builds(StageReport, texts, shards, st.sampled_from(StageState), floats, texts, downloads)),
    traffic=tuples(st.builds(RingTraffic, texts, small, small, floats, small, small, small, small)),
    models=tuples(st.builds(HeldModel, texts, texts, small)),
    preload=tuples(texts),
    min_stages=small,
    paths=tuples(st.builds(Path, texts, texts, floats, texts, texts, floats)),
    peers=tuples(st.builds(PeerHint, texts, tuples(texts), small)),
    draining=st.booleans(),
    idle=tuples(shards),
    disk_error=texts,
    speeds=tuples(st.builds(Speed, shards, floats, floats)),
    issues=tuples(st.builds(Issue, texts, st.sampled_from(Severity), texts, texts, texts)),
)
placed = st.builds(
    Ring,
    texts,
    texts,
    tuples(st.builds(StageSpec, texts, small, small)),
    small,
    small,
    st.booleans(),
    fences,
    st.booleans(),
    texts,
)
placements = st.builds(Placement, fences, texts, tuples(placed), tuples(st.builds(Refusal, texts, texts, texts, texts)))
specs = st.builds(
    ModelSpec,
    texts,
    tuples(small),
    small,
    tuples(st.builds(KvCost, small, small, small)),
    tuples(small),
    small,
    st.booleans(),
    small,
    texts,
    wish=st.builds(Wish, st.booleans(), small, small),
)
tokens = st.integers(0, 2**31)
requests = st.builds(
    GenerateRequest,
    id=texts,
    model=texts,
    prompt=tuples(tokens),
    max_tokens=small,
    stop_tokens=st.frozensets(tokens, max_size=3),
    sampling=st.builds(
        Sampling,
        temperature=floats,
        seed=st.integers(0, 2**63),
        logit_bias=st.dictionaries(tokens, floats, max_size=3),
        logprobs=st.none() | st.integers(0, 20),
    ),
    grammar=texts,
    revision=texts,
    resume=tuples(tokens),
    prediction=tuples(tokens),
)


@pytest.mark.parametrize("name", [m for m in control_pb2.DESCRIPTOR.message_types_by_name if m in CLASSES])
def test_same_fields(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(CLASSES[name])}
    assert fields == {field.name for field in control_pb2.DESCRIPTOR.message_types_by_name[name].fields}


digests = st.integers(0, 2**64 - 1)


@given(st.builds(Heartbeat, st.none() | reports, st.none() | placements, texts, small, digests))
def test_heartbeat(heartbeat: Heartbeat) -> None:
    data = to_message(heartbeat, control_pb2.Heartbeat).SerializeToString()
    assert from_message(control_pb2.Heartbeat.FromString(data), Heartbeat) == heartbeat


@given(specs)
def test_spec(spec: ModelSpec) -> None:
    data = to_message(spec, control_pb2.ModelSpec).SerializeToString()
    assert from_message(control_pb2.ModelSpec.FromString(data), ModelSpec) == spec


@given(requests)
def test_request(request: GenerateRequest) -> None:
    data = to_message(request, serving_pb2.GenerateRequest, ring="ring").SerializeToString()
    message = serving_pb2.GenerateRequest.FromString(data)
    assert message.ring == "ring"
    assert from_message(message, GenerateRequest) == request


@given(tuples(tokens), st.none() | st.integers(0, 5))
def test_evaluate_request(prompt: tuple[int, ...], top: int | None) -> None:
    request = EvaluateRequest("x", "m", prompt, top)
    data = to_message(request, serving_pb2.EvaluateRequest, ring="ring").SerializeToString()
    message = serving_pb2.EvaluateRequest.FromString(data)
    assert message.ring == "ring"
    assert from_message(message, EvaluateRequest) == request


@pytest.mark.parametrize(
    "evaluation",
    [
        Evaluation([Score(-0.5, [(7, -0.25), (8, -3.0)]), Score(-1.5, [])], []),
        Evaluation([Score(-float(place), []) for place in range(10_000)], []),
        Evaluation([], [0.5, -0.25]),
        Evaluation([], []),
    ],
)
def test_evaluation(evaluation: Evaluation) -> None:
    data = [part.SerializeToString() for part in encode_evaluation(evaluation)]
    assert all(len(part) < 1_000_000 for part in data)
    assert decode_evaluation([serving_pb2.Evaluation.FromString(part) for part in data]) == evaluation


@given(st.floats(-100, 0, width=32) | st.none(), st.none() | st.sampled_from(["stop", "length"]))
def test_event(logprob: float | None, finish: str | None) -> None:
    event = TokenEvent(3, 17, logprob, [(1, -0.5), (2, -1.5)], finish, 4)
    data = encode_event(event).SerializeToString()
    assert decode_event(serving_pb2.TokenEvent.FromString(data)) == event
