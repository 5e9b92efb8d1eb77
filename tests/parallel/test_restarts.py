"""A group that is started again goes on as if nothing had happened."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from process_groups import finish, left_behind, start

PROGRAM = Path(__file__).with_name("killed_program.py")
STEPS = 30


def losses_of(folder, seed):
    """The losses of a run of two ranks, and what it said."""
    command = [
        sys.executable,
        "-m",
        "gpuflow.cli.main",
        "launch",
        "-n",
        "2",
        "--max-restarts",
        "3",
        str(PROGRAM),
        str(folder / "run"),
        str(STEPS),
        seed,
        str(folder / "losses.npy"),
    ]
    (ended,) = finish([start(command)], timeout=240)
    assert ended.status == 0, ended.output
    assert not left_behind()
    return np.load(folder / "losses.npy"), ended.output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    losses, output = losses_of(tmp_path_factory.mktemp("undisturbed"), "none")
    assert "restart" not in output and losses.shape == (STEPS,)
    assert losses[-1] < losses[0] / 2
    return losses


@pytest.mark.parametrize("seed", ["1", "2"])
def test_ranks_that_are_killed_at_random_steps_change_no_loss(seed, undisturbed, tmp_path):
    losses, output = losses_of(tmp_path, seed)
    np.testing.assert_array_equal(losses, undisturbed)
    killed = [int(k) for k in re.findall(r"is killed before step (\d+)", output)]
    begun = [int(k) for k in re.findall(r"\[0\] attempt \d begins with step (\d+)", output)]
    assert len(killed) == 3 and len(begun) == 4 and "[launch] restart 3 of 3." in output
    assert output.count("with signal SIGKILL; ended the group.") == 3
    # It goes on from the newest step that was complete: the last one, or the one before, which was
    # being written.
    for at, again in zip(killed, begun[1:], strict=True):
        assert at - 2 <= again <= at
