"""This node among its peers: who is there, who is head, and what the head decides.

Pure: `membership`, `election`, `readiness`, `reunion`, `handover`, `status`. With I/O: `discovery`, `heartbeats`, `agent`, `head`.
"""
