"""Chaos testing: random faults on run after run, and nothing is lost: ``python -m tests.training.chaos``."""

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from dkan_core import train
from tests.training.faults import random_fault
from tests.training.processes import Background
from tests.training.runs import CONFIG, check_nothing_lost, final_state, ledger_of, wait_for_step, write_rows


def main(seconds: float = 180.0, seed: int = 0) -> int:
    """Strike random faults for a while, run after run, and check each run; return how many struck, at least one."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepared = write_rows(folder)
        rows = json.loads((prepared / "manifest.json").read_text())["splits"]["train"]["rows"]
        train(prepared, folder / "calm", CONFIG)
        expected = final_state(folder / "calm")
        deadline, struck, runs = time.monotonic() + seconds, 0, 0
        while time.monotonic() < deadline or not struck:
            run = folder / f"run-{runs}"
            background = Background(prepared, run, CONFIG, folder / "settings.json")
            with ledger_of(background) as ledger:
                wait_for_step(ledger, 11)
                while background.process.poll() is None:
                    struck += random_fault(rng, CONFIG.workers or 1).strike(background)
                    time.sleep(rng.expovariate(2.0))
            code, output = background.wait()
            assert code == 0, output
            check_nothing_lost(run, rows, CONFIG, expected)
            runs += 1
            sys.stdout.write(f"run {runs}: {struck} faults so far, nothing lost\n")
    return struck


if __name__ == "__main__":
    import typer

    typer.run(main)
