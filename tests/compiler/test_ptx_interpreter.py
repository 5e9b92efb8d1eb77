"""The PTX interpreter finds the faults that it says it finds; hand-written PTX, no compiler."""

import numpy as np
import pytest
from ptx_interpreter import Interpreter, PtxError

HEAD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
{
    .reg .pred %p<4>;
    .reg .b32 %r<10>;
    .reg .f32 %f<10>;
    .reg .b64 %rd<10>;
    .shared .align 4 .b8 kept[256];
    ld.param.u64 %rd1, [k_param_0];
    ld.param.u64 %rd2, [k_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
"""


def launch(body, x, o, threads=64):
    Interpreter(HEAD + body + "\n}").launch((1,), (threads,), [x, o])
    return o


def arrays(dtype=np.float32, count=64):
    return np.arange(count).astype(dtype), np.zeros(count, dtype)


def test_branches_rejoin():
    body = """
    ld.global.f32 %f1, [%rd4];
    and.b32 %r2, %r1, 1;
    setp.eq.s32 %p1, %r2, 0;
    @%p1 bra EVEN;
    neg.f32 %f1, %f1;
    bra.uni DONE;
EVEN:
    add.f32 %f1, %f1, 0f3F800000;
DONE:
    st.global.f32 [%rd5], %f1;
    ret;"""
    x, o = arrays()
    np.testing.assert_array_equal(launch(body, x, o), np.where(x % 2 == 0, x + 1, -x))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.global.f32 %f1, [%rd4+4];", "out of bounds, byte 256 of 256"),
        ("ld.global.f32 %f1, [%rd3];", "out of bounds"),
        ("ld.global.v2.f32 {%f1, %f2}, [%rd4];", "misaligned 8-byte access"),
        ("st.global.f32 [%rd4], %f1;", "store to a read-only argument"),
        ("ld.shared.f32 %f1, [kept+256];", "out of bounds, bytes 256 to 260 of 256"),
        ("mov.u64 %rd6, kept; st.shared.u32 [%rd6], %r1;", "race in shared memory"),
        ("st.shared.u32 [%rd3], %r1; xor.b32 %r2, %r1, 1; mul.wide.u32 %rd6, %r2, 4;"
         "ld.shared.u32 %r3, [%rd6];", "race in shared memory"),
        ("xor.b32 %r2, %r1, 1; mul.wide.u32 %rd6, %r2, 4; ld.shared.u32 %r3, [%rd6];"
         "st.shared.u32 [%rd3], %r1;", "race in shared memory"),
        ("setp.lt.s32 %p1, %r1, 5; @%p1 bra L; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; L: ret;",
         "a shuffle must have all lanes of its warp"),
        ("setp.lt.s32 %p1, %r1, 5; @%p1 bra L; bar.sync 0; bra D; L: bar.sync 0; D: ret;",
         "threads of one block wait at different barriers"),
        ("div.s32 %r2, 1, %r1;", "integer division by zero"),
        ("wgmma.fence.sync;", "unknown instruction: wgmma"),
        ("shfl.sync.up.b32 %r2, %r1, 1, 0, -1;", "only shfl.bfly is known"),
    ],
)  # fmt: skip
def test_faults_are_reported(body, message):
    x, o = arrays()
    x.flags.writeable = False
    with pytest.raises(PtxError, match=message):
        launch(body, x, o)


def test_a_barrier_ends_a_race():
    body = """
    st.shared.u32 [%rd3], %r1;
    bar.sync 0;
    xor.b32 %r2, %r1, 33;
    mul.wide.u32 %rd6, %r2, 4;
    ld.shared.u32 %r3, [%rd6];
    st.global.u32 [%rd5], %r3;"""
    x, o = arrays(np.int32)
    np.testing.assert_array_equal(launch(body, x, o), np.arange(64) ^ 33)


def test_conversions_saturate_and_treat_nan_as_the_instruction_set_does():
    body = "ld.global.f32 %f1, [%rd4]; cvt.rzi.s32.f32 %r2, %f1; st.global.u32 [%rd5], %r2;"
    x = np.array([2.7, -2.7, np.nan, 1e20, -1e20, np.inf, 0, 5] * 4, np.float32)
    found = launch(body, x, np.zeros(32, np.int32), threads=32)[:6]
    assert found.tolist() == [2, -2, 0, 2**31 - 1, -(2**31), 2**31 - 1]


def test_flushing_and_directed_rounding():
    x, o = arrays()
    x[1], x[2], x[3] = 1e-40, 1 + 2**-23, -1 - 2**-23
    launch("ld.global.f32 %f1, [%rd4]; mul.rn.ftz.f32 %f2, %f1, 0f3F800000;"
           "st.global.f32 [%rd5], %f2;", x, o)  # fmt: skip
    assert o[1] == 0
    launch("ld.global.f32 %f1, [%rd4]; mul.rz.f32 %f2, %f1, %f1;st.global.f32 [%rd5], %f2;", x, o)
    assert o[2] == np.float32(1 + 2**-22) and o[3] == o[2]


def test_atomics_reach_memory_between_buffers_of_odd_sizes():
    """All buffers are one span of bytes, which need not begin or end at a multiple of a word."""
    raw = np.zeros(16, np.uint8)
    start = -raw.ctypes.data % 4
    odd, counter = raw[start + 1 : start + 4], raw[start + 4 : start + 8].view(np.uint32)
    launch("mov.u32 %r2, 40; atom.global.inc.u32 %r3, [%rd2], %r2;", odd, counter, threads=32)
    assert counter[0] == 32 and not odd.any()
