"""What the simulated GPU looks for when asked: planted faults, and legal patterns beside them."""

from dataclasses import replace

import numpy as np
import pytest
from ptx_run import run, start, text

from gpuflow.base.config import config
from gpuflow.targets.cuda_sim.driver import USUAL_CHECKS, SimApi
from ptxsim import kernel
from ptxsim.checks import THOROUGH, Checks
from ptxsim.faults import PtxError
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory

U32 = np.uint32
X = np.arange(64, dtype=U32)
OUT = np.zeros(64, U32)
SHARED = ".shared .align 16 .b8 kept[256];\n.shared .align 16 .b8 other[256];"
# %x11 and %x12 are the thread's elements of the two arrays, %r5 is the block.
OWN = """mul.wide.u32 %x9, %r0, 4; add.s64 %x11, %x1, %x9; add.s64 %x12, %x2, %x9;
mov.u32 %r5, %ctaid.x; setp.eq.u32 %p1, %r0, 0;
"""
# Reads the element of the thread whose number differs by an exclusive or.
OTHER = "xor.b32 %r2, %r0, {}; mul.wide.u32 %x9, %r2, 4; add.s64 %x13, %x2, %x9; "
OTHER += "ld.global.u32 %r1, [%x13];"


def checked(body, threads=64, grid=(1,), checks=THOROUGH, arrays=(X, OUT)):
    """The arrays after a body, with all checks."""
    return run(OWN + body, list(arrays), threads, SHARED, grid=grid, checks=checks)[0]


def found(message, *arguments, **options):
    """The body fails, with all checks and not without."""
    with pytest.raises(PtxError, match=f"(?s){message}.*At line .*Fix: "):
        checked(*arguments, **options)
    checked(*arguments, **{**options, "checks": Checks()})


# --- races in global memory --------------------------------------------------------------

RACE = "race in global memory: what thread .* of block .* has {} must not be {} by another thread"
WRITTEN = RACE.format("written", "read")


def test_lanes_of_a_warp_race():
    found(WRITTEN, "st.global.u32 [%x12], %r0;" + OTHER.format(1), 32)
    body = "st.global.u32 [%x12], %r0; bar.warp.sync -1;" + OTHER.format(1)
    checked(body + "st.global.u32 [%x11], %r1;", 32)


def test_warps_of_a_block_race():
    found(WRITTEN, "st.global.u32 [%x12], %r0; bar.warp.sync -1;" + OTHER.format(33))
    checked("st.global.u32 [%x12], %r0; bar.sync 0;" + OTHER.format(33))


def test_a_read_races_with_a_later_write():
    write = "st.global.u32 [%x12], %r1;"
    found(RACE.format("read", "written"), "add.s32 %r1, %r0, 1;" + OTHER.format(1) + write)
    checked(OTHER.format(33) + "bar.sync 0; add.s32 %r1, %r0, 1;" + write)
    # The last read of the element is the writer's own; another thread's came before.
    both = OTHER.format(1) + "ld.global.u32 %r3, [%x12]; add.s32 %r3, %r3, 1;"
    found(RACE.format("read", "written"), both + "st.global.u32 [%x12], %r3;")


def test_arrays_of_the_host_may_begin_in_the_same_256_bytes():
    """The second one, which is longer, was looked for in what is known of the first."""
    raw = np.zeros(4096, np.uint8)
    first = -raw.ctypes.data % 256
    near, far = raw[first : first + 64].view(U32), raw[first + 64 : first + 2112].view(U32)
    memory = DeviceMemory()
    words = [memory.adopt(near), memory.adopt(far)]
    body = start(2) + OWN + "ld.global.u32 %r1, [%x1]; st.global.u32 [%x12], %r0;"
    kernel = PtxModule(text(body, 2)).entry("k")
    kernel.launch((1,), (512,), words, memory, checks=THOROUGH)
    np.testing.assert_array_equal(far, np.arange(512))


def test_blocks_write_different_values():
    found("several threads store different values", "st.global.u32 [%x12], %r5;", grid=(2,))
    odd = "setp.ne.u32 %p2, %r5, {}; @%p2 bra SKIP{}; st.global.u32 [%x12], %r6; SKIP{}:\n"
    body = "add.u32 %r6, %r5, 7;" + odd.replace("{}", "0") + odd.replace("{}", "1")
    found(RACE.format("written", "written"), body, grid=(2,))


def test_blocks_that_write_equal_values_do_not_race():
    checked("st.global.u32 [%x12], 5; bar.sync 0; st.global.u32 [%x12], 5;", grid=(2,))


def test_a_block_reads_what_another_writes():
    body = "ld.global.u32 %r1, [%x12]; add.u32 %r1, %r1, 1;"
    body += "setp.eq.u32 %p2, %r5, 0; @%p2 st.global.u32 [%x12], %r1;"
    found(RACE.format("read", "written"), body, grid=(2,))


def test_blocks_that_do_not_run_together_race_all_the_same(monkeypatch):
    """The interpreter runs some blocks after others, which orders nothing."""
    body = "setp.eq.u32 %p2, %r5, {}; @%p2 st.global.u32 [%x12], %r0;"
    body += "setp.ne.u32 %p3, %r5, {}; @%p3 ld.global.u32 %r1, [%x12];"
    monkeypatch.setattr(kernel, "_LANES", 64)
    found(WRITTEN, body.replace("{}", "0"), grid=(3,))
    found(RACE.format("read", "written"), body.replace("{}", "2"), grid=(3,))


def test_atomics_do_not_race_with_each_other_but_with_plain_accesses():
    (_, out) = checked("red.global.add.u32 [%x2], %r0;", grid=(2,))
    assert out[0] == 2 * 63 * 32
    found(WRITTEN, "red.global.add.u32 [%x2], 1; ld.global.u32 %r1, [%x2];")
    zeroed = "@%p1 st.global.u32 [%x2], 3; {} red.global.add.u32 [%x2], 1;"
    found(RACE.format("written", "written"), zeroed.format(""))
    checked(zeroed.format("bar.sync 0;"))


# Each block writes an element, counts itself, and the last one reads what all have written.
LAST = """add.s64 %x7, %x2, 128; mul.wide.u32 %x5, %r5, 4; add.s64 %x6, %x2, %x5;
setp.eq.u32 %p4, %r0, WRITER; add.u32 %r8, %r5, 1; @%p4 st.global.u32 [%x6], %r8; AFTER
BARRIER
@!%p1 bra COUNTED;
RELEASE
atomACQREL.inc.u32 %r6, [%x7], 3;
ACQUIRE
st.shared.u32 [kept], %r6;
COUNTED: bar.sync 0;
ld.shared.u32 %r6, [kept]; setp.ne.u32 %p2, %r6, 3; @%p2 bra DONE;
setp.gt.u32 %p3, %r0, 3; @%p3 bra DONE;
mul.wide.u32 %x5, %r0, 4; add.s64 %x8, %x2, %x5; ld.global.u32 %r7, [%x8];
st.global.u32 [%x8+64], %r7; DONE:
"""


def last_block(writer=0, after="", barrier="", release="membar.gl;", acquire="membar.gl;", atom=""):
    body = LAST.replace("WRITER", str(writer)).replace("AFTER", after).replace("BARRIER", barrier)
    body = body.replace("RELEASE", release).replace("ACQUIRE", acquire)
    return body.replace("atomACQREL", f"atom.global{atom}")


CLEAN_PATTERNS = {
    "fence, atomic, fence": {},
    "an atomic that is both": {"atom": ".acq_rel.gpu", "release": "", "acquire": ""},
    "fences of the system": {"release": "fence.acq_rel.sys;", "acquire": "fence.sc.gpu;"},
    "another thread's value, a barrier before the fence": {"writer": 40, "barrier": "bar.sync 0;"},
    "who wrote fences, then a barrier": {
        "writer": 40,
        "after": "@%p4 membar.gl;",
        "barrier": "bar.sync 0;",
        "release": "",
    },
}
RACING_PATTERNS = {
    "no fence before": {"release": ""},
    "no fence after": {"acquire": ""},
    "a fence of the block only": {"release": "membar.cta;"},
    "only a release": {"atom": ".release.gpu", "release": "", "acquire": ""},
    "only an acquire": {"atom": ".acquire.gpu", "release": "", "acquire": ""},
    "another thread's value, no barrier": {"writer": 40},
    "who wrote fences, no barrier": {"writer": 40, "after": "@%p4 membar.gl;"},
    "a barrier, no fence": {"writer": 40, "barrier": "bar.sync 0;", "release": ""},
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", CLEAN_PATTERNS)
def test_the_last_block_reads_what_all_have_written(name, together, monkeypatch):
    monkeypatch.setattr(kernel, "_LANES", 1 << 14 if together else 64)
    (_, out) = checked(last_block(**CLEAN_PATTERNS[name]), grid=(4,))
    assert out[16:20].tolist() == [1, 2, 3, 4] and out[32] == 0


@pytest.mark.parametrize("name", RACING_PATTERNS)
def test_the_last_block_must_be_signalled(name):
    found(WRITTEN, last_block(**RACING_PATTERNS[name]), grid=(4,))


CHAIN = """add.s64 %x7, %x2, 128; mul.wide.u32 %x5, %r5, 4; add.s64 %x6, %x2, %x5;
@!%p1 bra DONE; setp.eq.u32 %p2, %r5, 0; mov.u32 %r6, 0; @%p2 bra FIRST;
WAIT: ld.volatile.global.u32 %r7, [%x7]; setp.ne.u32 %p3, %r7, %r5; @%p3 bra WAIT; ACQUIRE
ld.global.u32 %r6, [%x6+-4]; OLDER FIRST: add.u32 %r6, %r6, 5; st.global.u32 [%x6], %r6; RELEASE
add.u32 %r7, %r5, 1; st.volatile.global.u32 [%x7], %r7; DONE:
"""


@pytest.mark.parametrize("older", ["", "ld.global.u32 %r9, [%x2];"])
def test_a_chain_of_blocks_passes_on_what_it_knows(older):
    """Each block waits for the one before; knowledge of the first reaches the last one."""
    body = CHAIN.replace("OLDER", older)
    whole = body.replace("ACQUIRE", "membar.gl;").replace("RELEASE", "membar.gl;")
    (_, out) = checked(whole, grid=(5,))
    assert out[:5].tolist() == [5, 10, 15, 20, 25]
    found(WRITTEN, body.replace("ACQUIRE", "membar.gl;").replace("RELEASE", ""), grid=(5,))
    found(WRITTEN, body.replace("ACQUIRE", "").replace("RELEASE", "membar.gl;"), grid=(5,))


def test_a_flag_of_another_element_orders_nothing():
    """Block 1 sees that block 0 is done by one flag, but fences and signals go by another."""
    body = """setp.ne.u32 %p2, %r5, 0; @!%p1 bra DONE; @%p2 bra SECOND;
    st.global.u32 [%x2], 7; membar.gl; atom.global.exch.b32 %r6, [%x2+FLAG], 1; bra DONE;
    SECOND: ld.volatile.global.u32 %r7, [%x2+128]; membar.gl; ld.global.u32 %r1, [%x2]; DONE:
    """
    found("race in global memory", body.replace("FLAG", "132"), grid=(2,))
    checked(body.replace("FLAG", "128"), grid=(2,))


def test_values_that_are_exchanged_in_registers_do_not_race():
    body = "ld.global.u32 %r1, [%x11]; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;"
    (_, out) = checked(body + "st.global.u32 [%x12], %r2;")
    np.testing.assert_array_equal(out, X ^ 1)


def test_vectors_are_watched_by_their_elements():
    wide = """mul.wide.u32 %x9, %r0, 16; add.s64 %x13, %x1, %x9; add.s64 %x14, %x2, %x9;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%x13]; st.global.v4.u32 [%x14], {%r1, %r2, %r3, %r4};
    """
    (_, out) = checked(wide, 16)
    np.testing.assert_array_equal(out, X)
    found(WRITTEN, wide + "ld.global.u32 %r1, [%x12];", 16)
    checked(wide + "bar.sync 0; ld.global.u32 %r1, [%x12];", 16)


def test_asynchronous_copies_read_memory():
    copy = """mov.u64 %x5, kept; add.s64 %x5, %x5, %x9; cp.async.ca.shared.global [%x5], [%x11], 4;
    cp.async.wait_all; bar.sync 0; ld.shared.u32 %r1, [%x5]; add.u32 %r2, %r1, 1;
    """
    (_, out) = checked(copy + "st.global.u32 [%x12], %r2;")
    np.testing.assert_array_equal(out, X + 1)
    after = "xor.b32 %r4, %r0, 33; mul.wide.u32 %x9, %r4, 4; add.s64 %x13, %x1, %x9;"
    body = copy.replace("bar.sync 0;", "") + after + "st.global.u32 [%x13], %r2;"
    found(RACE.format("read", "written"), body)


# --- memory that is constant, arrays -----------------------------------------------------


def test_constant_loads_of_memory_that_is_written():
    message = "ld.global.nc must read memory that the kernel does not write"
    body = "ld.global.nc.u32 %r1, [%x12]; add.u32 %r1, %r1, 1; st.global.u32 [%x12], %r1;"
    found(message, body)
    found(message, "st.global.u32 [%x12], %r0; bar.sync 0; ld.global.nc.u32 %r1, [%x12];")
    found(message, "red.global.add.u32 [%x12], 1; ld.global.nc.u32 %r1, [%x12];")
    checked("ld.global.nc.u32 %r1, [%x11]; st.global.u32 [%x12], %r1;")


def test_from_one_allocation_exactly_into_another():
    message = "computed from an array of 256 bytes came to byte 0 of another one, of 256"
    found(message, "ld.global.u32 %r1, [%x11+512];")
    found(message, "sub.s64 %x13, %x12, 512; st.global.u32 [%x13], %r0;")
    some = "setp.gt.u32 %p2, %r0, 40; selp.b64 %x13, 512, 0, %p2; add.s64 %x13, %x13, %x11;"
    found("computed from an array of 256", some + "ld.global.u32 %r1, [%x13];")


def test_an_address_may_come_from_two_arrays_or_from_memory():
    either = "setp.gt.u32 %p2, %r0, 40; selp.b64 %x13, %x11, %x12, %p2; ld.global.u32 %r1, [%x13];"
    checked(either)
    # The difference of two arrays: both count as the home of what is computed from it.
    checked("sub.s64 %x13, %x2, %x1; add.s64 %x13, %x13, %x11; st.global.u32 [%x13], %r0;")
    memory = DeviceMemory()
    table, x = memory.allocate(8), memory.allocate(256)
    memory.copy_in(table, np.array([x], np.uint64))
    memory.copy_in(x, X)
    body = start(1) + "ld.global.u64 %x5, [%x1]; ld.global.u32 %r1, [%x5+4];"
    PtxModule(text(body)).entry("k").launch((1,), (32,), [table], memory, checks=THOROUGH)


def test_from_one_shared_array_into_the_next():
    message = "computed from an array of 256 bytes is byte 256 from its start"
    mine = "mov.u64 %x5, {}; add.s64 %x5, %x5, %x9; st.shared.u32 [%x5+{}], %r0;"
    found(message, mine.format("kept", 256))
    found("is byte -256 from its start", mine.format("other", -256))
    found(message, "@%p1 st.shared.u32 [kept+256], 1;")
    checked(mine.format("kept", 0) + mine.format("other", 0))
    generic = "cvta.shared.u64 %x5, %x5; st.u32 [%x5+{}], %r0;"
    found(message, "mov.u64 %x5, kept; add.s64 %x5, %x5, %x9;" + generic.format(256))


# --- registers, barriers -----------------------------------------------------------------


def test_registers_that_nothing_set():
    message = "a register must be set before it is read"
    some = "setp.gt.u32 %p2, %r0, 5; @%p2 mov.u32 %r1, 3;"
    found(message, some + "st.global.u32 [%x12], %r1;")
    checked(some + "@!%p2 mov.u32 %r1, 4; st.global.u32 [%x12], %r1;")
    checked(some + "@%p2 st.global.u32 [%x12], %r1;")
    branch = "setp.gt.u32 %p2, %r0, 5; @%p2 bra SKIP; mov.u32 %r1, 3; SKIP:"
    found(message, branch + "st.global.u32 [%x12], %r1;")
    found(message, "@%p5 bra SKIP; st.global.u32 [%x12], 1; SKIP:")
    found(message, "@%p5 st.global.u32 [%x12], 1;")
    loop = "LOOP: @%p3 bra USE; mov.u32 %r1, 2; setp.eq.u32 %p3, %r0, %r0; bra LOOP; USE:"
    checked("setp.ne.u32 %p3, %r0, %r0;" + loop + "st.global.u32 [%x12], %r1;")


def test_a_barrier_in_a_divergent_branch():
    message = "bar.sync must be reached by all lanes of a warp"
    found(message, "setp.gt.u32 %p2, %r0, 15; @%p2 bra DONE; bar.sync 0; DONE:", 32)
    found(message, "setp.gt.u32 %p2, %r0, 40; @%p2 ret; bar.sync 0;")
    found(message, "setp.lt.u32 %p2, %r0, 50; @%p2 bra IN; ret; IN: bar.sync 0;")
    checked("setp.gt.u32 %p2, %r0, 31; @%p2 ret; bar.sync 0;")  # whole warps
    checked("bar.sync 0; setp.gt.u32 %p2, %r0, 40; @%p2 ret; bar.sync 0;", 41)
    loop = "add.u32 %r4, %r0, 1; LOOP: sub.u32 %r4, %r4, 1; bar.sync 0; setp.ne.u32 %p2, %r4, 0;"
    found(message, loop + "@%p2 bra LOOP;", 32)


def test_the_setting_turns_it_on(monkeypatch):
    assert SimApi(1 << 20).checks is USUAL_CHECKS
    monkeypatch.setattr(config, "environment", replace(config.environment, sim_check=True))
    assert SimApi(1 << 20).checks is THOROUGH
