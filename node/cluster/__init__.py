"""The control plane: what the members of a cluster do together, and what the head decides."""
