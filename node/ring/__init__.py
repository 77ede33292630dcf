"""This node's part in rings: `lifecycle` begins and ends it, `driver` runs the first stage, `worker` a later one.

`requests` brings generations and evaluations to a driver, `pipeline` its frames to the next stage.
Pure: `scheduler` and its parts (`lane`, `prefill`, `session`, `kv`).
"""
