"""What the API asks of a node: `gateway` answers, `router` finds a ring for each request."""
