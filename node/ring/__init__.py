"""The rings that this node is part of: `lifecycle` makes and ends them, `driver` runs a first stage, `worker` any other.

`requests` brings generations and evaluations to a driver, `pipeline` its frames to the next stage.
Pure: `scheduler` and its parts (`lane`, `prefill`, `session`, `fair_queue`, `kv`).
"""
