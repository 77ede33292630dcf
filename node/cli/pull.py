"""`cluster pull`: shows how far a download has come, how quick it is, and when it will end."""

import contextlib

from node.cli.client import Api
from node.cli.terminal import progress
from node.core.rate import Rate
from node.core.units import format_bytes, format_download


def pull(api: Api, model: str) -> str:
    """Returns the model's id and size when all its files are here. Raises NoNode, StatusFailed, Refused."""
    tell, rate = progress(), Rate()
    name, size = model, 0
    with contextlib.closing(api.pull(model)) as events:
        for event in events:
            if isinstance(event, str):
                continue
            name, size = event["model"], event["bytes"]
            tell(f"{name}   {format_download(event['done'], size, rate.at(event['done']))}")
    tell("")
    return f"{name}   {format_bytes(size)}"
