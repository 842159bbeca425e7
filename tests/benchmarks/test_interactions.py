"""Generated collisions have the masses that they are made with, and surfaces the share of positives."""

import numpy as np
import pytest

from benchmarks.interactions import HEAVY, LIGHT, POSITIVES, collisions, surface


@pytest.mark.parametrize(("objects", "mass"), [((0, 1), HEAVY), ((2, 3), LIGHT)])
def test_two_objects_of_a_signal_have_the_mass_of_their_particle(
    objects: tuple[int, int], mass: tuple[float, float]
) -> None:
    columns = collisions(np.random.default_rng(0), 20_000)
    signals = {name: value_B[columns["label"] == 1].astype(float) for name, value_B in columns.items()}
    one, other = objects
    eta_B, phi_B = (signals[f"{name}_{one}"] - signals[f"{name}_{other}"] for name in ("pseudorapidity", "azimuth"))
    momenta_B = signals[f"momentum_{one}"] * signals[f"momentum_{other}"]
    found_B = np.sqrt(2 * momenta_B * (np.cosh(eta_B) - np.cos(phi_B)))
    assert np.median(found_B) == pytest.approx(mass[0], rel=0.02)
    # Momenta are measured to 5%.
    assert found_B.std() < 2 * mass[1]


def test_share_of_positives_is_that_of_the_surface() -> None:
    assert surface(np.random.default_rng(0), 20_000)["label"].mean() == pytest.approx(POSITIVES, abs=0.05)
