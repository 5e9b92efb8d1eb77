"""Primitives that hold programs; the tests of control flow are their sweep."""

SAMPLES = {}
TESTED_ELSEWHERE = {
    name: "tests/control/test_control_flow.py"
    for name in ("scan", "while", "lane_while", "cond", "lane_cond")
}
