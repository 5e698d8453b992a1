"""Write era5.zarr of this folder and ersst.zarr of datasets/sea: ``python make_stores.py RAW FOLDER``."""

import sys
from pathlib import Path

import numpy as np
import xarray as xr
from numcodecs import Blosc

# Of each store: the raw file, the variable, the part of it, and what it is rounded to, in degrees.
STORES = {
    "era5": ("era5-2mt-2019-03-uk.nc", "t2m", {}, 1 / 16),
    "ersst": ("ersst-v5-mnmean.nc", "sst", {"lat": slice(None, None, 2), "lon": slice(None, None, 2)}, 1 / 32),
}


def main(raw: str, folder: str) -> None:
    """Write stores that are not there yet from the files of the folder ``raw``.

    Fields are rounded, so that few bytes remain after compression.
    """
    for store, (file, name, part, step) in STORES.items():
        with xr.open_dataset(Path(raw) / file, engine="h5netcdf") as dataset:
            fields = dataset[[name]].isel(part).load().drop_encoding()
        rounded = np.round(fields[name].values / step) * step
        fields = fields.assign({name: fields[name].copy(data=rounded.astype(np.float32))})
        encoding = {name: {"compressors": Blosc("zstd", 9, Blosc.BITSHUFFLE)}}
        fields.chunk(time=248).to_zarr(Path(folder) / f"{store}.zarr", mode="w-", zarr_format=2, encoding=encoding)


if __name__ == "__main__":
    main(*sys.argv[1:])
