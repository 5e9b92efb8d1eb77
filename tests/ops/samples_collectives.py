"""Sweep samples of collectives: they have no meaning without a named axis, so none here."""

SAMPLES: dict = {}

TESTED_ELSEWHERE = {
    name: "tests/ops/test_collectives.py"
    for name in (
        "psum",
        "pmax",
        "pmin",
        "axis_index",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "ppermute",
        "pbroadcast",
    )
} | {"all_gather_invariant": "tests/parallel/test_varying.py"}
