"""The model of many GPUs against what is known of it in its limits."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf"))

import scaling_model as model


def test_large_sums_take_what_the_links_need():
    # Eight GPUs: each sends and receives 2 * 7/8 of the data over NVLink.
    assert model.all_reduce(8, 1e12) == pytest.approx(2 * 7 / 8 * 1e12 / 450e9, rel=1e-3)
    # Many machines: besides, each GPU moves its eighth twice over InfiniBand.
    between = model.all_reduce(1024, 1e12) - model.all_reduce(8, 1e12)
    assert between == pytest.approx(2 * 127 / 128 * 1e12 / 8 / 50e9, rel=1e-3)


def test_small_sums_take_a_tree_of_hops():
    between = model.all_reduce(1024, 0) - model.all_reduce(8, 0)
    assert between == pytest.approx(2 * 7 * model.INFINIBAND.latency)
    assert model.all_reduce(1, 1e9) == 0


def test_efficiency_falls_with_size_and_overlap_only_helps():
    rows = model.model(0.1, 1e9)
    assert [row.count for row in rows] == list(model.SIZES)
    for one, two in pairwise(rows):
        assert two.behind <= one.behind <= one.beside <= 1
    first = rows[0]
    assert first.needed / (first.needed + first.seconds) == pytest.approx(0.9)


def test_the_table_says_what_it_is():
    text = model.table(0.1, 1e9)
    assert text.startswith("A model: ") and "measured on a CPU" in text
    assert "| 1024 |" in text
