"""Handwritten kernels: what becomes of their text, and that it runs."""

from __future__ import annotations

import handwritten_examples as examples
import numpy as np
import pytest
from cuda_harness import requires_cuda_tools

import gpuflow as gf
from gpuflow.base import dtypes
from gpuflow.kernels import language
from gpuflow.targets.cuda.codegen.handwritten import kernel_source
from gpuflow.targets.cuda.runtime.driver.handwritten_kernels import launch, load


def sim():
    driver = gf.devices("cuda_sim")[0].driver
    driver.api.activate()
    return driver


def run(kernel, signature, arrays, constants, more=(), grid=(1, 1)):
    """The arrays after a launch of 32 threads in each block."""
    driver = sim()
    made = load(kernel, signature, driver, constants, 32)
    held = [driver.copy(driver.from_host(x)) for x in arrays]
    launch(made, driver, grid, (32, 1), [*held, *more])
    return [driver.to_host(x) for x in held], made


def test_loops_are_written_out_and_constants_decided():
    text = kernel_source(examples.sum_up, {"WIDTH": 3})
    assert [line.strip() for line in text.splitlines() if "total" in line] == [
        "total = float32(0)",
        "total += float32(1)",
        "total += float32(2)",
        "total += float32(11)",
        "total += float32(12)",
        "total += float32(100)",
        "out[place] = x[place] + total",
    ]
    assert "scaled" not in text and "never_called" not in text and "unrolled" not in text
    assert "#   WIDTH = 3" in text


def test_functions_stand_before_those_that_call_them():
    text = kernel_source(examples.sum_up, {"WIDTH": 1, "SCALED": True})
    assert text.index("@device_function\ndef scaled") < text.index("def sum_up")
    assert "x * float32(3)" in text and "if place < count:" in text


@requires_cuda_tools
def test_a_kernel_runs_and_is_built_once():
    x = np.arange(70, dtype=np.float32)
    kinds = ("*float32", "*float32", "int64")
    constants = {"WIDTH": 2, "SCALED": True}
    (_, out), made = run(
        examples.sum_up, kinds, [x, np.zeros_like(x)], constants, [70], grid=(3, 1)
    )
    np.testing.assert_array_equal(out, x + 9)
    assert made is load(examples.sum_up, kinds, sim(), constants, 32)
    assert made.built.spill_bytes == 0


@requires_cuda_tools
def test_dynamic_shared_memory():
    x = np.arange(32, dtype=np.float32)
    arrays = [x, np.zeros_like(x)]
    (_, out), made = run(examples.reverse, ("*float32", "*float32"), arrays, {"SHARED_BYTES": 128})
    np.testing.assert_array_equal(out, x[::-1])
    assert made.shared_bytes == 128


@requires_cuda_tools
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_fragments_of_matrices(name):
    rng = np.random.default_rng(0)
    kind = np.dtype(getattr(dtypes, name))
    left, right = rng.normal(size=(16, 16)).astype(kind), rng.normal(size=(16, 8)).astype(kind)
    start = rng.normal(size=(16, 8)).astype(np.float32)
    arrays = [left.view(np.uint16), right.view(np.uint16), start]
    kinds = ("*uint16", "*uint16", "*float32")
    (_, _, out), _ = run(examples.multiply, kinds, arrays, {"BFLOAT16": name == "bfloat16"})
    want = start + left.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)


def test_words_of_kernels_do_not_run_in_python():
    with pytest.raises(TypeError, match=r"barrier must be called in a kernel.*handwritten"):
        language.barrier()
