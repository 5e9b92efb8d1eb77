"""Callbacks call Python: their effects and results are tested in files of their own."""

SAMPLES = {}
TESTED_ELSEWHERE = {
    "pure_callback": "tests/test_callbacks_with_results.py",
    "io_callback": "tests/test_callbacks_with_results.py",
}
