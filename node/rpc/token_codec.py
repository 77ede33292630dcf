"""Requests and token events of the data plane as messages. Written by hand: this is on the token path."""

from node.core.generation import Finish, GenerateRequest, TokenEvent
from node.rpc.mapping import from_message, to_message
from node.wire import serving_pb2 as pb


def encode_request(ring: str, request: GenerateRequest) -> pb.GenerateRequest:
    message = to_message(request, pb.GenerateRequest)
    message.ring = ring
    return message


def decode_request(message: pb.GenerateRequest) -> GenerateRequest:
    return from_message(message, GenerateRequest)


def encode_event(event: TokenEvent) -> pb.TokenEvent:
    return pb.TokenEvent(
        position=event.position,
        token=event.token,
        logprob=event.logprob,
        top=[pb.Candidate(token=token, logprob=logprob) for token, logprob in event.top],
        finish=event.finish,
        cached_tokens=event.cached_tokens,
    )


def decode_event(message: pb.TokenEvent) -> TokenEvent:
    finish: Finish | None = None
    if message.HasField("finish"):
        finish = "stop" if message.finish == "stop" else "length"
    return TokenEvent(
        position=message.position,
        token=message.token,
        logprob=message.logprob if message.HasField("logprob") else None,
        top=[(candidate.token, candidate.logprob) for candidate in message.top],
        finish=finish,
        cached_tokens=message.cached_tokens,
    )
