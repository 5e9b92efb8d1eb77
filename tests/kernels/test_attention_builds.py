"""Builds of fused attention for every architecture, and which tiles a device is given."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import ARCHITECTURES
from test_kernel_attention import attention_of, schedule_of

from gpuflow.base import dtypes
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.build import link_ptx, read_link_report
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
from gpuflow.targets.cuda.library import launch_binding
from gpuflow.targets.cuda.library.launch_binding import largest_that_fits

pytestmark = requires_cuda_tools

SINGLE = np.dtype(np.float32)


def launches_of(kind, size, reduced=False):
    """The launches of causal attention and of its gradients."""
    forward = attention_of(1, 65, 65, 2, 1, size, causal=True, reduced=reduced)
    forward_launches = schedule_of(forward, [kind] * 3, 2).launches
    backward = attention_of(1, 65, 65, 2, 1, size, causal=True, gradient=True, reduced=reduced)
    return forward_launches + schedule_of(backward, [*[kind] * 4, SINGLE, SINGLE], 3).launches


# Fewer numbers in a vector take fewer registers; float16 takes those of bfloat16.
@pytest.mark.parametrize(
    "dtype, size",
    [
        ("bfloat16", 64),
        ("bfloat16", 128),
        ("float32", 128),
        ("tensorfloat32", 64),
        ("tensorfloat32", 128),
    ],
)
def test_builds_do_not_spill_and_have_no_double_precision(dtype, size):
    reduced = dtype == "tensorfloat32"
    kind = SINGLE if reduced else np.dtype(getattr(dtypes, dtype))
    for one in launches_of(kind, size, reduced):
        built = build_handwritten(
            one.kernel, one.signature, dict(one.constants), one.bounds, kernel_cache(), (8, 0)
        ).built
        assert ".f64" not in built.ptx, one.kernel.__name__
        # A depot would mean that what was meant for registers lies in memory.
        assert "__local_depot" not in built.ptx, one.kernel.__name__
        assert ("mma.sync.aligned.m16n8k16" in built.ptx) == (dtype == "bfloat16")
        assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32" in built.ptx) == reduced
        for major, minor in ARCHITECTURES:
            log = link_ptx(built.ptx, f"sm_{major}{minor}").log
            assert read_link_report(log).spill_bytes == 0, (one.kernel.__name__, major)


@pytest.fixture
def builds(monkeypatch):
    """Builds that spill and take memory as the test says, by the columns of a tile."""
    spills, shared = {}, {}

    def load(kernel, signature, device, constants, bounds):
        columns = constants["COLUMNS"]
        built = SimpleNamespace(spill_bytes=spills.get(columns, 0), shared_bytes=0)
        return SimpleNamespace(built=built, shared_bytes=shared.get(columns, 0))

    monkeypatch.setattr(launch_binding, "load", load)
    return spills, shared


def columns_of(one, capability):
    chosen, _ = largest_that_fits(one, SimpleNamespace(compute_capability=capability))
    constants = dict(chosen.constants)
    assert chosen.grid[0] == -(-65 // constants["ROWS"]) * 2
    return constants["COLUMNS"]


def test_a_build_that_spills_is_replaced_by_one_with_smaller_tiles(builds):
    spills, shared = builds
    (one, *_) = launches_of(np.dtype(dtypes.bfloat16), 64)
    assert columns_of(one, (9, 0)) == 64
    spills[64] = 4
    assert columns_of(one, (9, 0)) == 32
    spills.clear()
    shared[64] = 120 << 10
    assert columns_of(one, (9, 0)) == 64 and columns_of(one, (8, 9)) == 32
    shared[32] = 200 << 10
    assert columns_of(one, (9, 0)) == 64 and columns_of(one, (8, 6)) == 32  # the last of all


def test_other_launches_are_what_they_are(builds):
    spills, _ = builds
    (one, *_) = launches_of(np.dtype(dtypes.bfloat16), 64)
    spills[64] = 4
    assert columns_of(replace(one, smaller=None), (9, 0)) == 64
