"""Predicted seconds of collectives, compared with sums written out by hand."""

import time

import pytest

import gpuflow as gf
from gpuflow.core.communication import Communication

LINKS = gf.Topology(node=4, nvlink=100.0, nic=10.0, latency=0.0, nic_latency=0.0)
ONE_NODE = ((0, 1, 2, 3),)
TWO_NODES = ((0, 1, 2, 3, 4, 5, 6, 7),)
ACROSS = ((0, 4), (1, 5))


@pytest.mark.parametrize(
    "method, groups, seconds, link",
    [
        ("all_gather", ONE_NODE, 3 * 800 / 100, "nvlink"),
        ("reduce_scatter", ONE_NODE, 600 / 100, "nvlink"),
        ("all_reduce", ONE_NODE, 1200 / 100, "nvlink"),
        ("all_to_all", ONE_NODE, 600 / 100, "nvlink"),
        # Half of what 8 ranks gather comes from the other node, by four network cards.
        ("all_gather", TWO_NODES, 800 * 8 / 2 / 4 / 10, "nic"),
        ("reduce_scatter", TWO_NODES, 800 / 2 / 4 / 10, "nic"),
        ("all_reduce", TWO_NODES, 2 * 800 / 2 / 4 / 10, "nic"),
        ("all_to_all", TWO_NODES, 800 * 4 / 8 / 10, "nic"),
        # One rank of each node: nothing is shared.
        ("all_gather", ACROSS, 800 / 10, "nic"),
        ("all_reduce", ACROSS, 800 / 10, "nic"),
        ("broadcast", ACROSS, 800 / 10, "nic"),
    ],
)
def test_bandwidth(method, groups, seconds, link):
    found = Communication(method, ("x",), groups, 800)
    assert LINKS.seconds(found) == pytest.approx(seconds)
    assert LINKS.links(found) == link


def test_the_slower_of_both_links_counts():
    slow_inside = LINKS.__class__(node=4, nvlink=1.0, nic=1e9, latency=0, nic_latency=0)
    found = Communication("reduce_scatter", ("x",), TWO_NODES, 800)
    assert slow_inside.seconds(found) == pytest.approx(800 * 3 / 4)


def test_latency():
    slow = gf.Topology(node=4, nvlink=1e30, nic=1e30, latency=1.0, nic_latency=100.0)
    steps = {
        ("all_gather", ONE_NODE): 3,
        ("all_reduce", ONE_NODE): 4,
        ("all_gather", TWO_NODES): 3 + 100,
        ("all_reduce", TWO_NODES): 4 + 200,
        ("all_to_all", TWO_NODES): 1 + 100,
        ("all_reduce", ACROSS): 200,
    }
    for (method, groups), seconds in steps.items():
        assert slow.seconds(Communication(method, ("x",), groups, 8)) == pytest.approx(seconds)


def test_permutations_cross_nodes_only_at_their_borders():
    shift = tuple((k, (k + 1) % 8) for k in range(8))
    inside = tuple((k, k ^ 1) for k in range(8))
    at = {"groups": TWO_NODES, "nbytes": 800, "method": "permute", "axes": ("x",)}
    assert LINKS.seconds(Communication(pairs=shift, **at)) == pytest.approx(80)
    assert LINKS.seconds(Communication(pairs=inside, **at)) == pytest.approx(8)
    assert LINKS.seconds(Communication(pairs=((3, 3),), **at)) == 0


@pytest.mark.parametrize("name", ["node", "nvlink", "nic", "flops", "memory_bandwidth"])
def test_rates_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive number; got 0"):
        gf.Topology(**{name: 0})


def test_latencies_must_not_be_negative():
    with pytest.raises(ValueError, match="latency must not be negative"):
        gf.Topology(latency=-1e-6)


@pytest.mark.parametrize(
    "name, value", [("nvlink", "450"), ("node", 2.5), ("node", True), ("nic", None)]
)
def test_rates_must_be_numbers(name, value):
    with pytest.raises(ValueError, match="must be a positive number"):
        gf.Topology(**{name: value})


def test_many_ranks_are_quick():
    ranks = tuple(range(4096))
    groups = tuple((rank, rank + 2048) for rank in range(2048))
    shift = tuple((k, (k + 1) % 4096) for k in ranks)
    found = [
        Communication("all_reduce", ("x",), groups, 8),
        Communication("permute", ("x",), (ranks,), 8, shift),
    ]
    start = time.perf_counter()
    for one in found * 100:
        assert one.sent == 8
    assert time.perf_counter() - start < 5
