PATIENCE_S = 240.0
"""Seconds until a test gives up waiting. It is no claim: on a busy machine all takes ten times as long as usual."""
