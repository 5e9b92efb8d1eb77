"""Ops that only the compiler makes, from others."""

SAMPLES: dict = {}
TESTED_ELSEWHERE = {
    "window_places": "tests/compiler/test_updates.py",
    "update_windows": "tests/compiler/test_updates.py",
    "unwritten": "tests/compiler/test_chunked_stores.py",
    "half_pow": "tests/ops/test_half_powers.py",
    "columns": "tests/compiler/test_chunked_stores.py",
    "kept_places": "tests/ops/test_scatter_shares.py",
    "scatter_parts": "tests/ops/test_scatter_shares.py",
}
