"""This node's part in rings: `lifecycle` begins and ends it, as `roles` says: `driver` runs the first stage, `worker` a later one.

`requests` brings generations and evaluations to a driver, `pipeline` its frames to the next stage.
Pure: `scheduler`, `admission`, `flight`, and what these are made of.
"""
