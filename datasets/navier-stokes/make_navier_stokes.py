"""Write vorticity of two-dimensional flows to a zarr store, as in Li et al., Fourier Neural Operator (2021), 5.3.

    python datasets/navier-stokes/make_navier_stokes.py flows.zarr --samples 1200

On the unit square with periodic edges, with the vorticity w and the stream function p, -Δp = w:

    dw/dt + u·∇w = ν Δw + f,  u = (dp/dy, -dp/dx),  f = 0.1 (sin 2π(x + y) + cos 2π(x + y))

A sample begins with a Gaussian random field of the covariance 7^(3/2) (-Δ + 49)^(-5/2), and is recorded at each unit of
time. Dask computes the samples in parallel. They do not depend on the number of workers or on the chunks.

The covariance is that of the paper's text. The paper's released code has 2·7³ in place of 7^(3/2): ``--variance 686``.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dask.array as da
import numpy as np
import xarray as xr

VISCOSITY = 1e-3
VARIANCE = 7**1.5  # of the initial fields: the factor before the operator
STEP = 0.02  # units of time
BATCH = 8  # samples that are integrated together


class VorticitySolver:
    """A pseudo-spectral solver of the vorticity equation on (n, size, size) points, in float64.

    The modes of a field are its Fourier coefficients (n, size, kept), of the wave numbers 0, 1, ... below size/3 along
    x. Higher ones are 0, so that products have no aliases (the 2/3 rule). Viscosity is integrated by the method of
    Crank and Nicolson, as in the paper, everything else by that of Heun, of second order.

    Args:
        size: the points along each axis, a multiple of 8 from 16 on.
        viscosity: ν, without a unit.
        step: the units of time of a step; it divides 1.
        forced: whether there is the forcing f.

    Raises:
        ValueError: another size or step.
    """

    def __init__(self, size: int = 64, viscosity: float = VISCOSITY, step: float = STEP, forced: bool = True):
        if size < 16 or size % 8:
            raise ValueError(f"size is a multiple of 8 from 16 on, not {size}")
        self.size, self.kept = size, (size - 1) // 3 + 1
        self.viscosity, self.step = viscosity, step
        self.steps = round(1 / step)
        if abs(self.steps * step - 1) > 1e-9:
            raise ValueError(f"a unit of time is a whole number of steps, which {step} does not divide")
        number = np.fft.fftfreq(size, 1 / size)[:, None]
        ky, kx = 2 * np.pi * number, 2 * np.pi * np.arange(self.kept)
        is_kept = np.abs(number) < self.kept
        self.laplacian = kx**2 + ky**2
        inverse = 1 / np.where(self.laplacian == 0, np.inf, self.laplacian)
        self._u, self._v = 1j * ky * inverse, -1j * kx * inverse
        self._product, self._squares = (kx**2 - ky**2) * is_kept + 0j, kx * ky * is_kept + 0j
        half = 0.5 * step * viscosity * self.laplacian
        self._decay, self._gain = (1 - half) / (1 + half) + 0j, step / (1 + half) + 0j
        y, x = np.meshgrid(self.points, self.points, indexing="ij")
        angle = 2 * np.pi * (x + y)
        self.forcing = self.to_modes(0.1 * (np.sin(angle) + np.cos(angle)) * forced)

    @property
    def points(self) -> np.ndarray:
        """The coordinates (size,) along an axis, from 0 to 1 without 1."""
        return np.arange(self.size) / self.size

    def to_points(self, modes: np.ndarray) -> np.ndarray:
        """Return the field (..., size, size) of modes."""
        columns = np.fft.ifft(modes, axis=-2, norm="forward")
        return np.fft.irfft(columns, n=self.size, axis=-1, norm="forward")

    def to_modes(self, field: np.ndarray) -> np.ndarray:
        """Return the modes of a field, of which those from size/3 on along y are for the caller to leave out."""
        rows = np.fft.rfft(field, axis=-1, norm="forward")[..., : self.kept]
        return np.fft.fft(rows, axis=-2, norm="forward")

    def velocity(self, modes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the velocities (..., size, size) along x and y."""
        return self.to_points(modes * self._u), self.to_points(modes * self._v)

    def energy(self, modes: np.ndarray) -> np.ndarray:
        """Return the kinetic energy, the mean of u²/2 over the square, of each sample."""
        u, v = self.velocity(modes)
        return np.mean(u * u + v * v, axis=(-2, -1)) / 2

    def tendency(self, modes: np.ndarray) -> np.ndarray:
        """Return the modes of f - u·∇w, the latter as (∂xx - ∂yy)(uv) + ∂xy(v² - u²), with four transforms."""
        u, v = self.velocity(modes)
        product, squares = self.to_modes(u * v), self.to_modes((v - u) * (v + u))
        return product * self._product + squares * self._squares + self.forcing

    def advance(self, modes: np.ndarray, steps: int) -> np.ndarray:
        """Return the modes after some steps. Raises FloatingPointError where they are no longer finite."""
        for _ in range(steps):
            first, kept = self.tendency(modes), modes * self._decay
            second = self.tendency(kept + first * self._gain)
            modes = kept + (first + second) * (0.5 * self._gain)
        if not np.isfinite(modes).all():
            raise FloatingPointError(f"the flow is not finite: a step of {self.step} is too large; give a smaller one")
        return modes

    def records(self, modes: np.ndarray, count: int) -> np.ndarray:
        """Return the vorticity (n, count + 1, size, size) at the times 0, 1, ..., ``count``."""
        fields = [self.to_points(modes)]
        for _ in range(count):
            modes = self.advance(modes, self.steps)
            fields.append(self.to_points(modes))
        return np.stack(fields, axis=1)


def initial_modes(
    solver: VorticitySolver, samples: Iterable[int], seed: int = 0, variance: float = VARIANCE
) -> np.ndarray:
    """Return modes of samples of N(0, variance (-Δ + 49)^(-5/2)), each with the mean 0.

    A mode is a normal variable whose variance is the operator's eigenvalue. Random numbers are keyed by (seed, sample)
    and drawn for small wave numbers first: another ``size`` gives the same fields, with more or fewer modes.
    """
    most = solver.kept - 1
    waves = [(ky, kx) for kx in range(most + 1) for ky in range(-most, most + 1) if kx or ky > 0]
    waves.sort(key=lambda wave: (max(map(abs, wave)), wave))
    ky, kx = np.array(waves).T
    deviation = np.sqrt(variance * (solver.laplacian[ky, kx] + 49) ** -2.5 / 2)
    samples = list(samples)
    modes = np.zeros((len(samples), solver.size, solver.kept), complex)
    for modes_of_sample, sample in zip(modes, samples, strict=True):
        rng = np.random.Generator(np.random.Philox(key=np.array([seed, sample], np.uint64)))
        values = (rng.standard_normal((len(waves), 2)) * deviation[:, None]) @ [1, 1j]
        modes_of_sample[ky, kx] = values
        edge = kx == 0
        modes_of_sample[-ky[edge], 0] = values[edge].conj()
    return modes


def simulate(samples: np.ndarray, solver: VorticitySolver, times: int, seed: int, variance: float) -> np.ndarray:
    """Return the vorticity (n, times + 1, size, size) of samples, by number, in float32."""
    parts = [samples[first : first + BATCH].tolist() for first in range(0, len(samples), BATCH)]
    records = [solver.records(initial_modes(solver, part, seed, variance), times) for part in parts]
    return np.concatenate(records).astype(np.float32)


def flows(
    samples: int,
    times: int,
    solver: VorticitySolver,
    seed: int = 0,
    variance: float = VARIANCE,
    chunk: int = BATCH,
) -> xr.Dataset:
    """Return the Dataset of flows, which Dask computes, ``chunk`` samples a task: vorticity (sample, time, y, x)."""
    numbers = da.arange(samples, chunks=chunk)
    chunks = (numbers.chunks[0], (times + 1,), (solver.size,), (solver.size,))
    vorticity = da.map_blocks(
        simulate, numbers, solver, times, seed, variance,
        dtype=np.float32, chunks=chunks, new_axis=[1, 2, 3], meta=np.empty((0, 0, 0, 0), np.float32),
    )  # fmt: skip
    dims, points = ("sample", "time", "y", "x"), solver.points
    coordinates = {"sample": np.arange(samples), "time": np.arange(times + 1.0), "y": points, "x": points}
    attributes = {"viscosity": solver.viscosity, "step": solver.step, "seed": seed, "variance": variance}
    return xr.Dataset({"vorticity": (dims, vorticity)}, coordinates, attributes)


@contextlib.contextmanager
def cluster(scheduler: str | None, workers: int | None) -> Iterator[None]:
    """Let Dask compute on the cluster of a scheduler, or else in processes of this machine, one for each core."""
    from distributed import Client

    where = {"address": scheduler} if scheduler else {"n_workers": workers, "threads_per_worker": 1}
    with Client(**where, set_as_default=True):
        yield


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", help="the zarr store that is written; nothing is there yet")
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--times", type=int, default=50, help="units of time, each with a record")
    parser.add_argument("--size", type=int, default=64, help="points along each axis, a multiple of 8")
    parser.add_argument("--viscosity", type=float, default=VISCOSITY)
    parser.add_argument("--step", type=float, default=STEP, help="units of time, a part of 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variance", type=float, default=VARIANCE, help="the factor of the initial fields' covariance")
    parser.add_argument("--chunk", type=int, default=BATCH, help="samples of a chunk of the store")
    parser.add_argument("--scheduler", help="the address of a Dask scheduler; by default processes of this machine")
    parser.add_argument("--workers", type=int, help="processes of this machine; by default one for each core")
    options = parser.parse_args(arguments)
    try:
        solver = VorticitySolver(options.size, options.viscosity, options.step)
    except ValueError as error:
        parser.error(str(error))
    flow = flows(options.samples, options.times, solver, options.seed, options.variance, options.chunk)
    if Path(options.path).exists():
        parser.error(f"{options.path} exists; give another path, or remove it")
    with cluster(options.scheduler, options.workers):
        flow.to_zarr(options.path, mode="w-", consolidated=False)
    sizes = f"{options.times + 1} fields of {options.size} x {options.size}"
    print(f"{options.path}: {options.samples} samples of {sizes}")


if __name__ == "__main__":
    main()
