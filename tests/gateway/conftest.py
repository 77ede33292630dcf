import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from node.model.weights import is_tower


@pytest.fixture(scope="session")
def text_only_model(picture_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a conversion of `picture_model` for text only, whose config.json still tells of a tower."""
    folder = tmp_path_factory.mktemp("models") / "tiny-text-only"
    shutil.copytree(picture_model, folder)
    path, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    kept = {name: array for name, array in mx.load(str(path)).items() if not is_tower(name)}
    mx.eval(kept)
    mx.save_safetensors(str(path), kept, {"format": "mlx"})
    index.write_text(json.dumps({"weight_map": dict.fromkeys(kept, path.name)}))
    return folder
