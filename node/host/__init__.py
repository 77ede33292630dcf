"""Facts about this machine and this node on it: memory, interfaces, chip, identity and key, secret."""
