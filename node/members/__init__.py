"""Who is there: the other nodes, where they are, whether they are alive, and which of them is head."""
