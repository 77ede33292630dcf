"""The rings that this node is part of: `lifecycle` makes and ends them, `driver` runs a first stage, `worker` any other.

Pure: `scheduler` and its parts (`lane`, `prefill`, `session`, `fair_queue`, `kv`).
"""
