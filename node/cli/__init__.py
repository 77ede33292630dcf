"""The `cluster` command: asks a node over HTTP."""
