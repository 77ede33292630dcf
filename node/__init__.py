"""Pippin: the Macs on one network as one OpenAI-compatible endpoint."""

__version__ = "0.1.0"

PROTOCOL = 4
"""Nodes of different protocols do not work together; raised with every change of proto/ that an older node can't read."""
