"""Settings of the whole run, made before gpuflow is imported.

The kernel cache of a run is a folder of its own, so that every run builds what it tests; set
GPUFLOW_CACHE_DIR to keep one between runs. Helper modules beside this file can be imported.

``GPUFLOW_PLATFORM=cuda_sim pytest`` runs the tests that say something of a GPU on a simulated one:
a sample of the op sweep, and whole programs (simulated_gpu.py).
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "docs")]
import simulated_gpu  # noqa: E402

if "GPUFLOW_CACHE_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="gpuflow-tests-")
    os.environ["GPUFLOW_CACHE_DIR"] = _folder
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

# Tests multiply small matrices, and on a busy machine the threads of a BLAS wait for each other for
# many times longer than that takes. This must stand before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Eager and jitted results are compared bit for bit, on simulated GPUs too; what kernels compute
# when they leave out roundings has tests of its own.
os.environ.setdefault("GPUFLOW_EXCESS_PRECISION", "0")

# Several workers of pytest are enough for the cores.
os.environ.setdefault("GPUFLOW_BUILD_PROCESSES", "1")

# --- a simulated GPU -----------------------------------------------------------------------

ON_GPU = simulated_gpu.ON_SIMULATED_GPU or os.environ.get("GPUFLOW_PLATFORM") == "cuda"


def _files_are_named(config):
    return config.args_source is not pytest.Config.ArgsSource.TESTPATHS


def pytest_ignore_collect(collection_path, config):
    """Import no file that has nothing for a simulated GPU, unless it was named."""
    if not simulated_gpu.ON_SIMULATED_GPU or _files_are_named(config):
        return None
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and not simulated_gpu.may_be_marked(collection_path) else None


def pytest_collection_finish(session):
    """Spare the garbage collector the collected tests, which live to the end.

    It went over some thirty thousand of them again and again: a quarter of the run's time.
    """
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_report_header(config):
    """Say which part of the tests this is."""
    if not simulated_gpu.ON_SIMULATED_GPU:
        return []
    part = "all" if simulated_gpu.WHOLE else f"a sample of the op sweep (seed {simulated_gpu.SEED})"
    return [f"simulated GPU: {part}; tests/simulated_gpu.py says what runs there"]


def pytest_collection_modifyitems(config, items):
    """Leave out what is not for a simulated GPU; skip what needs packages that are not here."""
    # Not imported before the settings above are made.
    from optional_packages import skip_without_packages

    from gpuflow import config as settings

    settings.update("traceback_filtering", "off")  # here they are what is of interest

    skip_without_packages(items)
    if not simulated_gpu.ON_SIMULATED_GPU:
        return
    kept = simulated_gpu.chosen(items, _files_are_named(config))
    if left_out := [*set(items).difference(kept)]:
        config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_report_collectionfinish(items):
    """Say how many cases the tests have: some run many (together.py)."""
    from together import count_cases  # imports numpy, and thus not before the settings are made

    return f"cases: {sum(map(count_cases, items))}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Seconds of each phase go into --junitxml, which else has their sum: perf/ci_times.py."""
    if item.config.option.xmlpath:
        item.user_properties.append((call.when, f"{call.duration:.4f}"))
    return (yield)


# --- products ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def exact_products(request):
    """float32 products are float32 where a GPU, real or simulated, is compared with references.

    By default GPUs round their operands to TF32, which has tests of its own
    (ops/test_precision_on_gpu.py): rounding would hide errors that float32's tolerances find.
    """
    marked = any(request.node.get_closest_marker(name) for name in ("cuda_toolchain", "gpu"))
    if not (marked or ON_GPU):
        yield
        return
    # Not imported before the settings above are made.
    from gpuflow.base.config import config

    before = config.default_matmul_precision
    config.update("default_matmul_precision", "highest")
    yield
    config.update("default_matmul_precision", before)


# --- random numbers ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def same_random_numbers(request):
    """A file's generators start anew for each test, whatever ran before: it fails alone as well."""
    # Not imported before the settings above are made: it imports numpy.
    from fresh_state import restart_generators

    restart_generators(vars(request.module))


# --- programs ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_traces():
    """Each test traces for itself: others may have changed how functions are compiled."""
    # As above.
    from fresh_state import forget_traces

    yield
    forget_traces()


@pytest.fixture
def loops_of_steps(monkeypatch):
    """Loops stay steps of a program where they could be statements of kernels."""
    # Not imported before the settings above are made.
    from gpuflow.compiler.target import PlainTarget

    monkeypatch.setattr(PlainTarget, "lane_loops", False)
