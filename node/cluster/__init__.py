"""The control plane: which nodes are there, which one is head, and what the head decides.

Pure: `membership`, `election`, `paths`, `readiness`, `reconciliation`, `handover`, `status`.
With I/O: `discovery`, `heartbeats`, `agent`, `head`.
"""
