"""The solver of datasets/navier-stokes beside scipy's integrator; its store for any chunks."""

import importlib.util
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

integrate = pytest.importorskip("scipy.integrate")
xr = pytest.importorskip("xarray")

FILE = Path(__file__).parents[2] / "datasets" / "navier-stokes" / "make_navier_stokes.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_navier_stokes", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_flows_are_those_of_scipy(script: Any) -> None:
    """scipy's DOP853 on u·∇w as it stands, with complex transforms in two dimensions."""
    size, viscosity = 16, 5e-3
    solver = script.VorticitySolver(size, viscosity, step=1e-3)
    start = script.initial_modes(solver, [4], variance=2000.0)
    number = np.fft.fftfreq(size, 1 / size)
    y, x = np.meshgrid(number, number, indexing="ij")
    kept, ky, kx = (np.abs(x) < size / 3) & (np.abs(y) < size / 3), 2j * np.pi * y, 2j * np.pi * x
    points = np.arange(size) / size
    angle = 2 * np.pi * (points[:, None] + points)
    forcing = 0.1 * (np.sin(angle) + np.cos(angle))

    def change(_: float, numbers: np.ndarray) -> np.ndarray:
        w = np.fft.fft2(numbers.reshape(size, size)) * kept
        laplacian = kx**2 + ky**2
        stream = -w / np.where(laplacian == 0, 1, laplacian) * (laplacian != 0)
        u, v, wx, wy = (np.fft.ifft2(modes).real for modes in (ky * stream, -kx * stream, kx * w, ky * w))
        advected = np.fft.ifft2(np.fft.fft2(u * wx + v * wy) * kept).real
        return (forcing - advected + viscosity * np.fft.ifft2(laplacian * w).real).reshape(-1)

    numbers = solver.to_points(start).reshape(-1)
    done = integrate.solve_ivp(change, (0, 2), numbers, method="DOP853", rtol=1e-10, atol=1e-12)
    field = solver.to_points(solver.advance(start, 2000)).reshape(-1)
    assert np.abs(done.y[:, -1] - numbers).max() > 0.5
    np.testing.assert_allclose(field, done.y[:, -1], rtol=0, atol=2e-6)


def test_initial_fields_have_their_covariance(script: Any) -> None:
    """The operator's eigenvalues are the variances of the coefficients of √2 cos and √2 sin, in any two modes."""
    solver = script.VorticitySolver(16)
    fields = solver.to_points(script.initial_modes(solver, range(2000)))
    angle = 2 * np.pi * solver.points
    eigenvalue = lambda ky, kx: 7**1.5 * (4 * np.pi**2 * (kx**2 + ky**2) + 49) ** -2.5  # noqa: E731
    for ky, kx in ((1, 0), (0, 2), (2, 1), (-1, 1)):
        phase = ky * angle[:, None] + kx * angle
        for wave in (np.cos(phase), np.sin(phase)):
            coefficients = np.mean(fields * np.sqrt(2) * wave, axis=(-2, -1))
            assert np.var(coefficients) == pytest.approx(eigenvalue(ky, kx), rel=0.15)
    np.testing.assert_allclose(fields.mean(axis=(-2, -1)), 0, atol=1e-12)


def test_another_size_has_the_same_initial_fields(script: Any) -> None:
    coarse, fine = script.VorticitySolver(16), script.VorticitySolver(32)
    few, many = script.initial_modes(coarse, [3]), script.initial_modes(fine, [3])
    np.testing.assert_array_equal(few[:, : coarse.kept], many[:, : coarse.kept, : coarse.kept])


@pytest.mark.parametrize(("chunk", "workers"), [(1, 3), (2, 1), (5, 2), (11, 1)])
def test_chunks_and_workers_change_no_bit(script: Any, tmp_path: Path, chunk: int, workers: int) -> None:
    solver = script.VorticitySolver(16, step=0.05)
    expected = script.simulate(np.arange(11), solver, 2, 7, 1.0)
    with dask.config.set(scheduler="threads", num_workers=workers):
        script.flows(11, 2, solver, seed=7, variance=1.0, chunk=chunk).to_zarr(tmp_path / "f.zarr", consolidated=False)
    with xr.open_zarr(tmp_path / "f.zarr", consolidated=False) as found:
        np.testing.assert_array_equal(found["vorticity"], expected)
        assert found["vorticity"].dims == ("sample", "time", "y", "x")
        np.testing.assert_array_equal(found["time"], [0, 1, 2])
        np.testing.assert_array_equal(found["x"], solver.points)
    part = script.simulate(np.arange(4, 7), solver, 2, 7, 1.0)
    np.testing.assert_array_equal(part, expected[4:7])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "20"], "size is a multiple of 8 from 16 on, not 20"),
        (["--step", "0.03"], "a unit of time is a whole number of steps, which 0.03 does not divide"),
        ([], "exists; give another path, or remove it"),
    ],
)
def test_what_is_wrong_is_said(script, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        script.main([str(tmp_path), *arguments])
    assert message in capsys.readouterr().err


def test_a_step_that_is_too_large_is_said(script: Any) -> None:
    solver = script.VorticitySolver(16, viscosity=1e-6, step=1.0)
    modes = script.initial_modes(solver, [0], variance=1e9)
    with np.errstate(all="ignore"), pytest.raises(FloatingPointError, match=r"a step of 1.0 is too large"):
        solver.advance(modes, 200)
