"""docs/examples/restarts.py, one rank of which kills itself at a step drawn for each attempt.

usage: killed_program.py FOLDER STEPS SEED LOSSES
"""

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

import gpuflow as gf

KILLS = 3  # attempts that are killed
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "restarts.py"


def main():
    folder, steps, seed, losses_file = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("restarts", EXAMPLE)
    restarts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(restarts)
    attempt = int(os.environ.get("GPUFLOW_RESTART", "0"))
    draw = random.Random(f"{seed} {attempt}")
    rank = draw.randrange(gf.process_count())
    begun = []

    def before(number):
        if not begun:
            begun.append(number)
            share = (int(steps) - number) // max(1, KILLS - attempt + 1)  # of what is left
            begun.append(number + draw.randrange(share) if attempt < KILLS else None)
            print(f"attempt {attempt} begins with step {number}", flush=True)
        if begun[1] == number and gf.process_index() == rank and seed != "none":
            print(f"attempt {attempt} is killed before step {number}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    losses = restarts.train(folder, int(steps), before)
    if gf.process_index() == 0:
        np.save(losses_file, losses)


if __name__ == "__main__":
    main()
