"""Generated data whose columns interact as no sum of pairs does, as input for the quality benchmark.

    python -m benchmarks.interactions [--rows 400000] [--out build/interactions]

writes two files in which single columns say little:

- ``collisions.parquet``: momenta, angles and tags of five objects. A signal has two heavy particles that decay into two
  objects each; half of the background has the lighter particle. They differ in masses, functions of six columns.
- ``surface.parquet``: a surface over ten columns, the sum of 400 waves with random directions, and little noise.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Float64 = npt.NDArray[np.float64]

SIGNAL, LIGHT_BACKGROUND = 0.3, 0.5
# Mass and its spread of the two particles, in units of GeV.
HEAVY, LIGHT = (125.0, 8.0), (80.0, 6.0)
# Mean momentum above the least one: of the four objects of a background, of what is missing, and of particles.
BACKGROUND_MOMENTA, MISSING_MOMENTUM, PARTICLE_MOMENTUM = (55.0, 50.0, 40.0, 40.0), 30.0, 60.0
LEAST_MOMENTUM, LEAST_PARTICLE_MOMENTUM = 20.0, 10.0
WAVES, POSITIVES, STEEPNESS = 400, 0.25, 8.0
WAVE_NUMBERS = (1.2, 1.2, 0.8, 0.8, 0.5, 0.5, 0.3, 0.3, 0.1, 0.1)


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--out", type=Path, default=Path("build/interactions"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, make in (("collisions", collisions), ("surface", surface)):
        columns = make(np.random.default_rng(0), options.rows)
        pq.write_table(pa.table(columns), options.out / f"{name}.parquet")


def surface(rng: np.random.Generator, rows: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return ten columns, and whether a random surface over them is high there."""
    x_BI = rng.normal(size=(rows, len(WAVE_NUMBERS)))
    directions_IW = rng.normal(size=(len(WAVE_NUMBERS), WAVES)) * np.array(WAVE_NUMBERS)[:, None]
    height_B = np.zeros(rows)
    for direction_I, phase in zip(directions_IW.T, rng.uniform(0, 2 * np.pi, WAVES), strict=True):
        height_B += np.cos(x_BI @ direction_I + phase)
    height_B = (height_B - np.quantile(height_B, 1 - POSITIVES)) / height_B.std()
    label_B = rng.random(rows) < 1 / (1 + np.exp(-STEEPNESS * height_B))
    return {**{f"x{i}": x_B.astype(np.float32) for i, x_B in enumerate(x_BI.T)}, "label": label_B.astype(np.int8)}


def collisions(rng: np.random.Generator, rows: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return momentum, direction and tag of the objects of each collision, and whether it is a signal."""
    is_signal_B = rng.random(rows) < SIGNAL
    has_light_B = is_signal_B | (rng.random(rows) < LIGHT_BACKGROUND)
    single = [_object(rng, rows, momentum) for momentum in BACKGROUND_MOMENTA]
    heavy, light = (_decay(rng, rows, *mass) for mass in (HEAVY, LIGHT))
    pairs = (
        [np.where(is_signal_B[:, None], *each) for each in zip(heavy, single[:2], strict=True)],
        [np.where(has_light_B[:, None], *each) for each in zip(light, single[2:], strict=True)],
    )
    ordered = [each for pair in pairs for each in _by_momentum(*pair)]
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for index, each_B4 in enumerate([*ordered, _object(rng, rows, MISSING_MOMENTUM)]):
        momentum_B = _momentum(each_B4)
        measured = {
            "momentum": momentum_B * rng.normal(1, 0.05, rows),
            "pseudorapidity": np.arcsinh(each_B4[:, 3] / momentum_B),
            "azimuth": np.arctan2(each_B4[:, 2], each_B4[:, 1]),
            "tag": np.round(4 * rng.normal(0.4 + 0.25 * (is_signal_B & (index < 2)), 0.3).clip(0, 1)),
        }
        columns |= {f"{name}_{index}": value_B.astype(np.float32) for name, value_B in measured.items()}
    return {**columns, "label": is_signal_B.astype(np.int8)}


def _object(rng: np.random.Generator, rows: int, momentum: float, least: float = LEAST_MOMENTUM) -> Float64:
    """Return energy and momentum ``(B, 4)`` of massless objects."""
    momentum_B = least + rng.exponential(momentum, rows)
    eta_B, phi_B = rng.normal(0, 1.2, rows), rng.uniform(-np.pi, np.pi, rows)
    unit_4B = (np.cosh(eta_B), np.cos(phi_B), np.sin(phi_B), np.sinh(eta_B))
    unit_B4: Float64 = np.stack(unit_4B, axis=1)
    return momentum_B[:, None] * unit_B4


def _decay(rng: np.random.Generator, rows: int, mass: float, spread: float) -> tuple[Float64, Float64]:
    """Return energy and momentum ``(B, 4)`` of the two massless objects that moving particles decay into."""
    mass_B = rng.normal(mass, spread, rows)
    direction_B3 = rng.normal(size=(rows, 3))
    direction_B3 /= np.linalg.norm(direction_B3, axis=1)[:, None]
    particle_B3 = _object(rng, rows, PARTICLE_MOMENTUM, LEAST_PARTICLE_MOMENTUM)[:, 1:]
    velocity_B3 = particle_B3 / np.sqrt(mass_B**2 + (particle_B3**2).sum(1))[:, None]
    halves = (np.column_stack([mass_B / 2, sign * mass_B[:, None] / 2 * direction_B3]) for sign in (1, -1))
    first, second = (_boosted(each, velocity_B3) for each in halves)
    return first, second


def _boosted(rest_B4: Float64, velocity_B3: Float64) -> Float64:
    """Return energy and momentum as they are seen where the particle at rest has a velocity (Lorentz)."""
    square_B = (velocity_B3**2).sum(1)
    gamma_B = 1 / np.sqrt(1 - square_B)
    along_B = (velocity_B3 * rest_B4[:, 1:]).sum(1)
    factor_B = (gamma_B - 1) / square_B * along_B + gamma_B * rest_B4[:, 0]
    return np.column_stack([gamma_B * (rest_B4[:, 0] + along_B), rest_B4[:, 1:] + factor_B[:, None] * velocity_B3])


def _by_momentum(one_B4: Float64, other_B4: Float64) -> tuple[Float64, Float64]:
    is_first_B1 = (_momentum(one_B4) >= _momentum(other_B4))[:, None]
    return np.where(is_first_B1, one_B4, other_B4), np.where(is_first_B1, other_B4, one_B4)


def _momentum(each_B4: Float64) -> Float64:
    """Return the momentum across the beam."""
    return np.hypot(each_B4[:, 1], each_B4[:, 2])


if __name__ == "__main__":
    main()
