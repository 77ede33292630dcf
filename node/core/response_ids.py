"""Ids of responses that nodes keep: each names its node, so that any node finds it."""

import re
import uuid
from enum import StrEnum

NODE_CHARS = 16
"""Characters of a node's id that name it: 73 random bits."""
_ID = re.compile(rf"resp_([a-z2-7]{{{NODE_CHARS}}})[0-9a-f]{{32}}")


class Ask(StrEnum):
    """What a node can ask of the one that keeps a response; the answer is the response."""

    GET = "get"
    CANCEL = "cancel"
    DELETE = "delete"


def new_response_id(node: str) -> str:
    return f"resp_{node[:NODE_CHARS]}{uuid.uuid4().hex}"


def keeper_of(response_id: str) -> str:
    """The beginning of the id of the node that made the response; empty if the text names none."""
    found = _ID.fullmatch(response_id)
    return found[1] if found else ""
