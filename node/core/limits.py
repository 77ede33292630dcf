"""Limits on what a node takes from its peers."""

MAX_NAME_CHARS = 512
"""Maximum characters of an id, a name or an address from a peer: a model's id consists of up to two file names of 255."""
COUNTER_LIMIT = 1 << 53
"""Bound on terms, epochs and incarnations from a peer; they are below it."""
MAX_TEXT_CHARS = 65_536
"""Maximum characters of an error from a peer."""
MAX_MODELS = 16_384
"""Maximum models in the report of a peer."""
MAX_NODES = 256
"""Maximum nodes to keep contact with: anybody on the network can invent adverts."""
MAX_ADDRESSES = 32
"""Maximum addresses of a peer that are tried, best first; a Mac has some ten."""
