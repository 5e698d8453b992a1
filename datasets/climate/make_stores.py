"""Write the zarr stores era5.zarr and ersst.zarr: ``python make_stores.py RAW FOLDER``."""

import sys
from pathlib import Path

import xarray as xr

CHUNKS = {"time": 24}


def main(raw: str, folder: str) -> None:
    """Copy the files of the folder ``raw`` to stores in ``folder`` that are not there yet."""
    for name, file in (("era5", "era5-2mt-2019-03-uk.nc"), ("ersst", "ersst-v5-mnmean.nc")):
        with xr.open_dataset(Path(raw) / file, engine="h5netcdf") as dataset:
            variables = [str(variable) for variable in dataset.data_vars if variable in ("t2m", "sst")]
            fields = dataset[variables].load().drop_encoding()
        fields.chunk(CHUNKS).to_zarr(Path(folder) / f"{name}.zarr", mode="w-")


if __name__ == "__main__":
    main(*sys.argv[1:])
