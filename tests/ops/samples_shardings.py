"""Samples of ops about shardings: they have a meaning on several devices only."""

from __future__ import annotations

SAMPLES: dict[str, list[object]] = {}

TESTED_ELSEWHERE = {
    "sharding_constraint": "tests/parallel/test_shardings.py",
    **dict.fromkeys(
        ["varying_sum", "transposed_sum", "enter", "match", "pcast", "pcast_sum"],
        "tests/parallel/test_shard_map.py",
    ),
}
