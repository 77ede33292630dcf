"""Model storage: names, catalogue, weights on disk, download from the hub, transfer between nodes.

All functions here may block on disk or network; call them through a `node.core.pool.Pool`.
"""
