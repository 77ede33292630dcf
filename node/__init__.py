"""Pippin: the Macs on one network as one OpenAI-compatible endpoint."""

__version__ = "0.1.0"

PROTOCOL = 12
"""Nodes work together if their protocols differ by one at most, so that a cluster can be updated one node after the other.

A change of proto/, or of what its messages mean, raises it by one if nodes of the protocol before can do without: they
skip the new fields, and this node works without what they do not send. Any other change raises it by two.
"""
