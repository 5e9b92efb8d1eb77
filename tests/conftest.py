"""Settings of the whole run, made before gpuflow is imported.

The kernel cache of a run is a folder of its own, so that every run builds what it tests; set
GPUFLOW_CACHE_DIR to keep one between runs. Helper modules beside this file can be imported.

``GPUFLOW_PLATFORM=cuda_sim pytest`` runs the tests that say something of a GPU on a simulated one:
the op sweep and whole programs. Files that are named run there too, but for what is below.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

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

# --- a simulated GPU -----------------------------------------------------------------------

ON_SIMULATED_GPU = os.environ.get("GPUFLOW_PLATFORM") == "cuda_sim"
ON_GPU = ON_SIMULATED_GPU or os.environ.get("GPUFLOW_PLATFORM") == "cuda"
WHOLE_SWEEP = bool(os.environ.get("WHOLE_SWEEP"))

# What runs there when no files are named. Nearly all of the time goes into building kernels.
SIMULATED = (
    "ops/test_every_op.py",
    "ops/test_gradients_on_gpu.py",
    "ops/test_gather_scatter.py::test_windows_that_overlap_at_many_places",
    "control/test_control_flow.py",
    "control/test_jit.py",
    "control/test_jit_calls.py",
    "control/test_jit_options.py",
    "nn/test_nn_attention.py",
    "targets/cuda_sim/test_cuda_sim.py",
    "test_examples.py",
    "test_fuzz_programs.py",
)
NOT_NAMED = (
    "the compiler's tests, kernels/, runtime/ and targets/ choose their platform themselves; "
    "surfaces are made of the ops of the sweep"
)

# What does not run there, by the beginning of its name, with the reason.
_RULES = "is about rules and the meaning of KernelIR, which are the same on every platform"
_SWEEP = "ops/test_every_op.py::"
IN_WHOLE_SWEEP = {
    **{
        _SWEEP + name: _RULES
        for name in ("test_jaxpr", "test_kernel", "test_transpose", "test_neutral", "test_wrong")
    },
    _SWEEP + "test_derivatives": "gradients are compared with the CPU's, in test_gradients_on_gpu",
    _SWEEP + "test_vmap": "a mapped op is an op on one more dimension",
}
_STEPS = "hundreds of steps of training; their ops are in the sweep, whole programs in the fuzz"
NEVER = {
    "test_examples.py::test_the_spectral_radius_is_learned": "3,000 steps; another test takes 20",
    "test_examples.py::test_a_gpt_recites_and_its_cache_changes_nothing": _STEPS,
    "test_examples.py::test_a_cnn_tells_shapes_apart": _STEPS,
    "test_examples.py::test_a_vae_finds_two_coordinates": _STEPS,
    "test_examples.py::test_a_network_learns_a_law_of_motion": _STEPS,
    "test_examples.py::test_a_gaussian_process_finds_its_noise": _STEPS,
    "test_examples.py::test_a_graph_network_finds_groups": _STEPS,
    "test_examples.py::test_what_lanes_compute_is_known[nuts]": "chains of many steps; hmc runs",
    "ops/test_fft_kernels.py": "is about kernels of the CPU",
    "ops/test_scan_kernels.py": "is about kernels of the CPU",
    "ops/test_scatter_parts.py": "is about kernels of the CPU",
}
_SIGNS = "signs of eigenvectors are each library's choice; kernels/test_kernel_eig.py asks the rest"
_EIG = "[eig-compute_left_eigenvectors="
OF_OTHER_SIGNS = {
    _SWEEP + "test_values" + _EIG + f"{left}-compute_right_eigenvectors=True": _SIGNS
    for left in (False, True)
}
NOT_SIMULATED = {**NEVER, **OF_OTHER_SIGNS, **({} if WHOLE_SWEEP else IN_WHOLE_SWEEP)}


def pytest_configure(config):
    """Choose files, unless some were named."""
    nothing_named = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if ON_SIMULATED_GPU and nothing_named:
        config.args[:] = [str(Path(__file__).parent / name) for name in SIMULATED]


def pytest_collection_finish(session):
    """Spare the garbage collector the collected tests, which live to the end.

    It went over some thirty thousand of them again and again: a quarter of the run's time.
    """
    del session
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_report_header(config):
    """Say what does not run, and why."""
    if not ON_SIMULATED_GPU:
        return []
    reasons = {}
    for name, reason in NOT_SIMULATED.items():
        reasons.setdefault(reason, []).append(name)
    named = [f"  {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return ["simulated GPU; not run there:", f"  other files, unless named: {NOT_NAMED}", *named]


def pytest_collection_modifyitems(config, items):
    """Leave out what is not for a simulated GPU; skip what needs packages that are not here."""
    # Not imported before the settings above are made.
    from optional_packages import skip_without_packages

    from gpuflow import config as settings

    settings.update("traceback_filtering", "off")  # here they are what is of interest

    skip_without_packages(items)
    if not ON_SIMULATED_GPU:
        return
    prefixes = tuple(f"tests/{name}" for name in NOT_SIMULATED)
    left_out = [item for item in items if item.nodeid.startswith(prefixes)]
    items[:] = [item for item in items if not item.nodeid.startswith(prefixes)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


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

_STATES = {}


@pytest.fixture(autouse=True)
def same_random_numbers(request):
    """A file's generators start anew for each test, whatever ran before: it fails alone as well."""
    import numpy as np  # not before the settings above are made

    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            bits.state = _STATES.setdefault(value, bits.state)


# --- programs ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def own_traces():
    """Each test traces for itself: others may have changed how functions are compiled."""
    yield
    if shared := sys.modules.get("gpuflow.control.shared_traces"):
        shared.forget()


@pytest.fixture
def loops_of_steps(monkeypatch):
    """Loops stay steps of a program where they could be statements of kernels."""
    # Not imported before the settings above are made.
    from gpuflow.compiler.target import PlainTarget

    monkeypatch.setattr(PlainTarget, "lane_loops", False)
