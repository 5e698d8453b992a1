"""Write train_data.zarr and test_data.zarr, from the digits that come with scikit-learn.

The stores are in the repository already, in this folder and in the package; this script documents how they were made.
"""

import itertools
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from dsinga.data import write_store

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parents[1] / "dsinga" / "examples" / "digits")  # the package's are the same, byte for byte
TRAINING_RECORDS = 1437  # of 1797; the other 360 are for testing


def main() -> None:
    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]  # (1797, 1, 8, 8), values 0 to 16
    # Shuffled, since neighbouring images tend to be by the same writer, so that the last ones are not a fair sample.
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(images))
    parts = {"train_data.zarr": order[:TRAINING_RECORDS], "test_data.zarr": order[TRAINING_RECORDS:]}
    for folder, (name, rows) in itertools.product(FOLDERS, parts.items()):
        path = folder / name
        count = write_store(path, [(images[rows], digits.target[rows])], classes="0123456789", overwrite=True)
        print(f"{path}: {count} records")


if __name__ == "__main__":
    main()
