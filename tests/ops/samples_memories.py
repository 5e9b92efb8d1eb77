"""Ops between memories, which need several of them; see tests/parallel."""

SAMPLES = {}
TESTED_ELSEWHERE = {
    "psum_begin": "tests/parallel/test_overlap.py",
    "psum_end": "tests/parallel/test_overlap.py",
}
