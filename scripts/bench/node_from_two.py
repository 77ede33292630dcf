"""A node whose rings take the family of steps from two tokens on where it has other bits than steps of one, whatever it costs. GPUs
have other kernels from there on, too, but steps of two cost hardly more than of one, which no library for CPUs shows.
"""

import math

from node.__main__ import start
from node.placement import frame_rows

frame_rows.CHEAP = math.inf

if __name__ == "__main__":
    start()
