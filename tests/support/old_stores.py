"""Record stores as versions of dsinga before checksums wrote them."""

import json
from pathlib import Path


def remove_checksums(store: Path, version: int = 1) -> None:
    """Make a store that was just written one of an earlier ``version`` of the format."""
    metadata = json.loads((store / "zarr.json").read_text())
    del metadata["attributes"]["checksums"]
    metadata["attributes"]["dsinga"] = version
    (store / "zarr.json").write_text(json.dumps(metadata))
