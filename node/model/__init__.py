"""Models on disk and on their way: short names, catalogue, config, weights, the hub, transfer between nodes.

All functions here may block on disk or network; call them through a `node.core.pool.Pool`.
"""
