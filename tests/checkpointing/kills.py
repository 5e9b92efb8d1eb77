"""Kill writers of checkpoints at random points, and read what they leave.

    python tests/checkpointing/kills.py FOLDER KILLS SEED

Each writer is a process that saves one step after the other: into one folder, over the earlier
checkpoint, and through a Manager, whose saves run in another thread. It says which steps are on the
disk. Behind each SIGKILL both must be readable, whole, and no older than what was said. Prints how
many kills there were, how many of them left half-written files, and how many steps were saved.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing

SIZE = 60_000
# A step, which is two saves, takes some 50 ms, most of them for the disk.
MAX_DELAY = 0.15


def state(step: int) -> dict[str, object]:
    rng = np.random.default_rng(step)
    return {
        "weights": [rng.random((SIZE,)), jnp.asarray(rng.random((SIZE,)), jnp.bfloat16)],
        "moments": {str(k): rng.integers(0, 99, SIZE // 9) for k in range(9)},
        "key": gf.random.key(step),
        "step": step,
    }


def check_state(got: dict[str, object]) -> int:
    """The step that a restored tree belongs to; all of it must."""
    step = got["step"]
    wanted = state(step)
    assert gf.tree.structure(got) == gf.tree.structure(wanted)
    for one, other in zip(gf.tree.leaves(got), gf.tree.leaves(wanted), strict=True):
        if isinstance(one, gf.Array):
            one, other = one.host(), other.host()
        np.testing.assert_array_equal(one, other)
    return step


def write_on(folder: Path, first: int, said: int) -> None:
    """Save from step ``first`` on, until killed."""
    manager = checkpointing.Manager(folder / "run", keep=2)
    step = first
    while True:
        tree = state(step)
        manager.save(step, tree)
        checkpointing.save(folder / "one", tree)  # which waits for the other one
        os.write(said, step.to_bytes(8, "little"))
        step += 1


def kill_one(folder: Path, first: int, delay: float) -> int:
    """Start a writer, kill it, and return the last step that it said was saved; -1 for none."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_on(folder, first, write)
        finally:
            os._exit(1)  # never: it is killed
    os.close(write)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    with os.fdopen(read, "rb") as pipe:
        words = pipe.read()
    return int.from_bytes(words[-8:], "little") if words else -1


def is_half_written(folder: Path) -> bool:
    """Whether there are files, or folders of steps, that no checkpoint counts."""
    if any(folder.glob("**/tree-*.json")):
        return True
    for place in [folder / "one", *(folder / "run").glob("step_*")]:
        if len(list(place.glob("arrays-*"))) != (1 if (place / "tree.json").exists() else 0):
            return True
        if not (place / "tree.json").exists():
            return True
    return False


def run(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """How many of the kills left half-written files, and how many steps there were."""
    rng = random.Random(seed)
    manager = checkpointing.Manager(folder / "run", keep=2)
    checkpointing.save(folder / "one", state(0))
    manager.save(0, state(0))
    manager.wait()
    one = newest = halves = 0
    for _ in range(kills):
        before = one, newest
        told = kill_one(folder, newest + 1, rng.uniform(0, MAX_DELAY))
        halves += is_half_written(folder)
        one = check_state(checkpointing.restore(folder / "one"))
        newest = check_state(manager.restore(like=state(0)))
        steps = f"{before} before, {told} told, {one} and {newest} found"
        # The step under way may be there already, by the manager first.
        assert max(before[0], told) <= one <= newest, steps
        assert max(before[1], told) <= newest <= max(before[1], told) + 1, steps
    check_clean(folder, newest)
    return halves, newest


def check_clean(folder: Path, newest: int) -> None:
    """The next saves delete all that killed ones left, but for folders without files."""
    checkpointing.save(folder / "one", state(0))
    with checkpointing.Manager(folder / "run", keep=2) as manager:
        for step in (1, 2):  # the earlier ones go, with all that is in their folders
            manager.save(newest + step, state(0))
    for place in [folder / "one", *(folder / "run").iterdir()]:
        names = [name.partition("-")[0] for name in sorted(os.listdir(place))]
        assert names in (["arrays", "tree.json"], []), (place, names)


if __name__ == "__main__":
    path, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    halves, saved = run(path, kills, seed)
    print(kills, halves, saved)
