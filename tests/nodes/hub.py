"""A hub on localhost that has the built-in model under another id, for nodes that fetch it; without its MTP layer, whose file
only a longer ring's driver needs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import MODEL, ROOT
from tests.model.conftest import FakeHub, running_hub

ID = "someone/demo"
INDEX = "model.safetensors.index.json"


@contextmanager
def demo_hub() -> Iterator[FakeHub]:
    """Served until the end of the context; afterwards nothing listens there."""
    hub = FakeHub()
    files = {file.name: file.read_bytes() for file in (ROOT / "node" / "builtin" / MODEL).iterdir()}
    del files["mtp.safetensors"]
    index = json.loads(files[INDEX])
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file in files}
    hub.repos = {ID: files | {INDEX: json.dumps(index).encode()}}
    with running_hub(hub):
        yield hub


def of_hub(hub: FakeHub, home: Path) -> dict[str, str]:
    """The environment of a node that asks this hub and keeps its files in `home`."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


def weights(home: Path) -> set[str]:
    """The weight files in a node's own cache of the hub."""
    return {path.name for path in home.glob("hub/models--*/snapshots/*/*.safetensors")}
