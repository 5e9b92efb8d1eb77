"""A plugin of pytest: after the tests of a file it prints which kernels they asked for, as JSON.

prebuild.py runs files of tests with it on the simulated GPU, so that their kernels are built.
"""

from __future__ import annotations

import json
import time
from typing import Any

_start = time.process_time()


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Print the record of the file; -s must let it through."""
    # Not imported before tests/conftest.py has made its settings.
    from gpuflow.runtime.kernel_cache import cache_stats, kernel_cache

    record = {
        "called": True,
        "failed": session.testsfailed,
        "status": int(exitstatus),
        "built": cache_stats().built,
        "loaded": cache_stats().loaded,
        "seconds": round(time.process_time() - _start, 2),
        "keys": kernel_cache().loaded_keys(),
    }
    print("\n" + json.dumps(record), flush=True)
