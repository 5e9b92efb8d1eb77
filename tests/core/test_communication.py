"""What collectives send, by hand: rings of n ranks send (n - 1) / n of an array per phase."""

import numpy as np
import pytest

from gpuflow.core.aval import ShapedArray
from gpuflow.core.communication import Communication, communicates
from gpuflow.core.communicator import Across, Within

ROWS = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    "method, sent",
    [
        ("all_reduce", 1200),
        ("all_gather", 2400),
        ("reduce_scatter", 600),
        ("all_to_all", 600),
        ("broadcast", 800),
    ],
)
def test_bytes_of_rings(method, sent):
    found = Communication(method, ("x",), ROWS, 800)
    assert found.group_size == 4 and found.sent == sent
    assert found.sent_by_rank() == dict.fromkeys(range(8), sent)


def test_a_permutation_counts_its_senders():
    found = Communication("permute", ("x",), ROWS, 100, ((0, 1), (3, 3), (2, 0), (2, 1)))
    assert list(found.sent_by_rank().values()) == [100, 0, 200, 0, 100, 0, 200, 0]
    assert found.sent == 200


def test_the_end_of_a_sum_sends_nothing():
    assert Communication("all_reduce", ("x",), ROWS, 800, phase="end").sent == 0


def test_one_rank_sends_nothing():
    for method in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        assert Communication(method, ("x",), ((3,),), 800).sent == 0


X = Across("x", "drivers", ((0, 1), (2, 3)))
Y = Across("y", "drivers", ((0, 2), (1, 3)))
AVAL = ShapedArray((4, 2), np.dtype(np.float32))


def test_several_axes_are_one_group():
    rule = communicates("all_reduce")
    found = rule([AVAL], {"axes": (X, Y), "axis_index_groups": None})
    assert found.axes == ("x", "y") and found.nbytes == 32
    assert sorted(found.groups[0]) == [0, 1, 2, 3] and len(found.groups) == 1
    found = rule([AVAL], {"axes": (Y,), "axis_index_groups": None})
    assert found.axes == ("y",) and found.groups == ((0, 2), (1, 3))


def test_groups_of_indices_divide_an_axis():
    whole = Across("x", "drivers", ((4, 5, 6, 7),))
    params = {"axis_name": (whole,), "axis_index_groups": ((0, 3), (1, 2))}
    assert communicates("all_gather")([AVAL], params).groups == ((4, 7), (5, 6))


@pytest.mark.parametrize("names", [(), (Within("x"),), ("x",), (X, "y"), (Across("x"),)])
def test_axes_within_one_memory_send_nothing(names):
    assert communicates("all_reduce")([AVAL], {"axes": names}) is None
