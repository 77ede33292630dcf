"""A node whose disk gives other nodes the first chunk of a weight file's part, and the rest once a file exists:
`python slow_disk.py GATE LOG OPTIONS…`. Which bytes it is asked for is written to LOG, as `name offset`.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from node.__main__ import main
from node.model.sending import Sender

GATE, LOG = Path(sys.argv[1]), Path(sys.argv[2])
read = Sender.read


def slowly(sender: Sender, directory: Path, name: str, offset: int = 0, length: int = 0) -> Iterator[tuple[bytes, str]]:
    chunks = read(sender, directory, name, offset, length)
    if not name.endswith(".safetensors"):
        return chunks
    with LOG.open("a") as log:
        log.write(f"{name} {offset}\n")
    return _until_gate(chunks)


def _until_gate(chunks: Iterator[tuple[bytes, str]]) -> Iterator[tuple[bytes, str]]:
    yield next(chunks)
    while not GATE.exists():
        time.sleep(0.02)
    yield from chunks


Sender.read = slowly  # type: ignore[method-assign]
del sys.argv[1:3]
sys.exit(main())
