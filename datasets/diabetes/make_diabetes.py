"""Write train_data.zarr and test_data.zarr beside this file, from the diabetes data that come with scikit-learn."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from dsinga.data import write_store

FOLDER = Path(__file__).parent
TEST_RECORDS = 100  # of 442


def main() -> None:
    x, y = load_diabetes(return_X_y=True)
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(x))
    train, test = order[TEST_RECORDS:], order[:TEST_RECORDS]
    x, y = x / x[train].std(axis=0), (y - y[train].mean()) / y[train].std()
    for name, rows in (("train_data.zarr", train), ("test_data.zarr", test)):
        count = write_store(FOLDER / name, [(x[rows].astype(np.float32), y[rows].astype(np.float32))], overwrite=True)
        print(f"{FOLDER / name}: {count} records")


if __name__ == "__main__":
    main()
