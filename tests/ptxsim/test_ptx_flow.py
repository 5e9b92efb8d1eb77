"""Where lanes of the PTX interpreter go: branches, calls, barriers, warps, and how they fail."""

import time

import numpy as np
import pytest
from ptx_run import lanes, run, start, text

from ptxsim.checks import Checks
from ptxsim.faults import PtxError
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory

U32 = np.uint32
T = np.arange(64, dtype=U32)
STORE = "mul.wide.u32 %x0, %r0, 4; add.s64 %x9, %x1, %x0; st.global.u32 [%x9], %r1;"
SHARED = ".shared .align 4 .b8 kept[256];"


def of_threads(body, threads=64, module="", **options):
    """What each thread has left in %r1."""
    grid = options.get("grid", (1,))[0]
    if grid > 1:
        body = "mov.u32 %r9, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r0, %r9, %r8, %r0;" + body
    (out,), _ = run(body + STORE, [np.zeros(threads * grid, U32)], threads, module, **options)
    return out


# --- branches ----------------------------------------------------------------------------


def test_branches_rejoin():
    body = """and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, 5;
    @%p1 bra EVEN; add.u32 %r1, %r0, 1000; bra.uni DONE;
    EVEN: mul.lo.u32 %r1, %r0, 2; @!%p1 mov.u32 %r3, 7;
    DONE: add.u32 %r1, %r1, %r3;"""
    np.testing.assert_array_equal(of_threads(body), np.where(T % 2, T + 1005, 2 * T + 5))


def test_loops_that_lanes_leave_by_themselves():
    """Collatz steps: every lane has its own number of turns; a nested branch in each."""
    body = """add.u32 %r2, %r0, 1; mov.u32 %r1, 0;
    LOOP: setp.eq.u32 %p1, %r2, 1; @%p1 bra DONE; add.u32 %r1, %r1, 1;
    and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra HALF;
    mad.lo.u32 %r2, %r2, 3, 1; bra LOOP; HALF: shr.u32 %r2, %r2, 1; bra LOOP; DONE:"""

    def steps(n):
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert of_threads(body).tolist() == [steps(t + 1) for t in range(64)]


def test_guards_keep_what_the_other_lanes_have():
    body = """mov.u32 %r1, 9; setp.lt.u32 %p1, %r0, 7; @%p1 add.u32 %r1, %r0, 1;
    @!%p1 neg.s32 %r1, 1;"""
    np.testing.assert_array_equal(of_threads(body), np.where(T < 7, T + 1, 2**32 - 1))
    guarded = "mov.u32 %r1, 9; setp.lt.u32 %p1, %r0, 7; @%p1 exit; mov.u32 %r1, 3;"
    np.testing.assert_array_equal(of_threads(guarded), np.where(T < 7, 0, 3))


def test_branches_through_a_table():
    body = """rem.u32 %r2, %r0, 3; TABLE: .branchtargets A, B, A;
    brx.idx %r2, TABLE; A: mov.u32 %r1, 10; bra END; B: mov.u32 %r1, 20; END:"""
    np.testing.assert_array_equal(of_threads(body), np.where(T % 3 == 1, 20, 10))
    with pytest.raises(PtxError, match="must choose one of 3 targets; got 63"):
        of_threads(body.replace("rem.u32 %r2, %r0, 3", "mov.u32 %r2, %r0; max.u32 %r2, %r2, 63"))


def test_lanes_that_spin_give_way():
    """Thread 0 waits for thread 40, whose code comes later."""
    body = """mov.u32 %r1, 1; setp.ne.u32 %p1, %r0, 0; @%p1 bra OTHERS;
    SPIN: ld.volatile.global.u32 %r2, [%x2]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN;
    mov.u32 %r1, %r2; bra END;
    OTHERS: setp.ne.u32 %p1, %r0, 40; @%p1 bra END; st.volatile.global.u32 [%x2], 77; END:"""
    after, _ = run(body + STORE, [np.zeros(64, U32), np.zeros(1, U32)], 64)
    assert after[0][0] == 77


TICKET = "atom.global.add.u32 %r3, [%x2], 1;"
# Block number %r3 waits for the one before it, notes which block it is, and lets the next one go.
CHAIN = """mov.u32 %r4, %ctaid.x; mul.wide.u32 %x0, %r3, 4; add.s64 %x9, %x1, %x0;
SPIN: ld.volatile.global.u32 %r2, [%x9]; setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN;
add.s64 %x8, %x3, %x0; st.global.u32 [%x8], %r4; st.volatile.global.u32 [%x9+4], 1;"""


@pytest.mark.parametrize("seed", range(5))
def test_blocks_in_a_random_order(seed):
    """Those that number themselves as they begin may wait for smaller numbers; others may not."""
    arrays = [np.array([1] + [0] * 12, U32), np.zeros(1, U32), np.zeros(12, U32)]
    checks = Checks(order=seed, instructions=20_000)
    after, _ = run(TICKET + CHAIN, arrays, 1, grid=(12,), checks=checks)
    assert after[0].all() and after[1][0] == 12
    assert sorted(after[2]) == list(range(12)) and list(after[2]) != list(range(12))
    again, _ = run(TICKET + CHAIN, arrays, 1, grid=(12,), checks=checks)
    np.testing.assert_array_equal(again[2], after[2])
    with pytest.raises(PtxError, match="20000 instructions and no end"):
        run("mov.u32 %r3, %ctaid.x;" + CHAIN, arrays, 1, grid=(12,), checks=checks)


def test_endless_loops_end():
    with pytest.raises(PtxError, match=r"got 5000 instructions and no end.*add.u32.*block"):
        of_threads("LOOP: add.u32 %r1, %r1, 1; bra LOOP;", checks=Checks(instructions=5000))


def test_scopes_have_registers_of_their_own():
    body = """mov.u32 %r1, %r0; { .reg .pred p; .reg .b32 t<2>; add.u32 t1, %r1, 1;
    setp.lt.u32 p, t1, 9; selp.u32 %r1, t1, 0, p; }
    { .reg .f32 p; mov.f32 p, 0f40000000; cvt.rzi.u32.f32 %r2, p; } add.u32 %r1, %r1, %r2;"""
    np.testing.assert_array_equal(of_threads(body), np.where(T < 8, T + 1, 0) + 2)


# --- calls -------------------------------------------------------------------------------

DOUBLE = """
.func (.param .b32 out) double(.param .b32 in)
{ .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.u32 %r1, [in]; setp.gt.u32 %p1, %r1, 50; @%p1 bra BIG;
  shl.b32 %r1, %r1, 1; st.param.b32 [out+0], %r1; ret;
  BIG: st.param.b32 [out+0], 7; ret; }
.func (.param .align 8 .b8 out[16]) both(.param .b32 a)
{ .reg .b32 %r<4>; .reg .b64 %x<2>; .local .align 8 .b8 stack[8];
  ld.param.u32 %r0, [a];
  { .param .b32 p; st.param.b32 [p], %r0; .param .b32 q; call.uni (q), double, (p);
    ld.param.b32 %r1, [q]; }
  mov.u64 %x1, stack; st.local.u32 [%x1+4], %r1; ld.local.u32 %r2, [%x1+4];
  st.param.b32 [out], %r0; st.param.b64 [out+8], 5; st.param.b32 [out+4], %r2; ret; }
"""


def test_calls_and_nested_calls():
    body = """
    { .param .b32 given; st.param.b32 [given+0], %r0; .param .align 8 .b8 back[16];
      call.uni (back), both, (given);
      ld.param.b32 %r2, [back+0]; ld.param.b32 %r3, [back+4]; ld.param.b64 %x5, [back+8]; }
    { .param .b32 given; st.param.b32 [given+0], 20; .param .b32 back;
      call.uni (back), double, (given); ld.param.b32 %r4, [back]; }
    cvt.u32.u64 %r1, %x5; add.u32 %r1, %r1, %r3; add.u32 %r1, %r1, %r4;
    mad.lo.u32 %r1, %r2, 1000, %r1;"""
    want = 1000 * T + 5 + np.where(T > 50, 7, 2 * T) + 40
    np.testing.assert_array_equal(of_threads(body, module=DOUBLE), want)


@pytest.mark.parametrize(
    ("module", "body", "message"),
    [
        ("", "call missing, ();", "must call a function that is defined"),
        (".func f() { call f, (); ret; }", "call f, ();", "recursion"),
        (DOUBLE, "{ .param .b32 p; call double, (p); }", "must pass what double takes"),
        ("", "wgmma.fence.sync.aligned;", "must be one that the interpreter knows"),
        ("", "bra NOWHERE;", "must branch to a label; NOWHERE is none"),
        ("", "A: A: mov.u32 %r1, 0;", "a label must be defined once; got A twice"),
        ("", "mov.u32 %q1, 0;", "must set a register that is declared; got %q1"),
        ("", "add.u32 %r1, missing, 0;", "operands that are declared; got missing"),
        ("", "ld.global.u32 %r1, [%x1*2];", "address of a known form"),
        (
            "",
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d1}, {%d2}, {%d3}, {%d4};",
            "must be of m16n8k16, k8 or k4",
        ),
        ("", "cp.async.bulk.commit_group;", "must be a cp.async of a few bytes"),
        ("", ".reg .b128 %q;", "a register must have a known type; got .b128"),
        ("strange;", "", "must hold variables and functions; got `strange`"),
    ],
)
def test_what_is_not_known_is_named(module, body, message):
    with pytest.raises(PtxError, match=f"{message}.* At .*Fix: "):
        of_threads(body, module=module)


# --- launches ----------------------------------------------------------------------------


def test_entries_and_launches_are_checked():
    memory = DeviceMemory()
    module = PtxModule(text("", 0, attributes=".maxntid 64, 2, 1"))
    kernel = module.entry("k")
    assert module.entries() == ["k"] and module.entry("k").program is kernel.program
    with pytest.raises(PtxError, match=r"the entry that is asked for; got 'j', and it has \['k'\]"):
        module.entry("j")
    with pytest.raises(PtxError, match=r"1 to 128 threads; got \(129, 1, 1\)"):
        kernel.launch((1,), (129,), [], memory)
    with pytest.raises(PtxError, match=r"1 or more blocks; got \(0, 1, 1\)"):
        kernel.launch((0,), (1,), [], memory)
    with pytest.raises(PtxError, match="a kernel must not trap"):
        of_threads("trap;")


def test_many_blocks_run_in_turns():
    result = of_threads("mov.u32 %r1, %ctaid.x;", 256, grid=(200,))
    np.testing.assert_array_equal(result, np.arange(200).repeat(256))


def test_statistics():
    _, done = run(STORE + "ld.global.u32 %r2, [%x9];", [T], 64)
    assert (done.instructions, done.loads, done.stores, done.bytes) == (8, 64, 64, 512)
    total = done + done
    assert total.bytes == 1024


def test_a_launch_of_a_small_kernel_is_fast():
    """A guard against slowness by an order of magnitude, not a benchmark."""
    body = start(1) + "\n".join(f"add.u32 %r{2 + k % 20}, %r0, {k};" for k in range(100))
    kernel, memory = PtxModule(text(body)).entry("k"), DeviceMemory()
    x = memory.allocate(1024)
    best = 1.0
    for _ in range(20):
        began = time.process_time()  # which does not pass while other programs run
        kernel.launch((1,), (256,), [x], memory)
        best = min(best, time.process_time() - began)
    assert best < 0.01


# --- barriers ----------------------------------------------------------------------------


def test_barriers_with_results_and_numbers():
    body = "setp.lt.u32 %p1, %r0, 40; barrier.red.popc.aligned.u32 %r1, 1, %p1;"
    assert of_threads(body).tolist() == [40] * 64
    body = "setp.lt.u32 %p1, %r0, 40; bar.red.and.pred %p2, 0, {}%p1; selp.u32 %r1, 1, 0, %p2;"
    assert not of_threads(body.replace("{}", "")).any()
    body = body.replace("and", "or").replace("{}", "!")
    assert of_threads(body).all()


def test_warps_that_produce_and_warps_that_consume():
    body = """setp.lt.u32 %p1, %r0, 32; @%p1 bra CONSUME;
    sub.u32 %r2, %r0, 32; mul.wide.u32 %x5, %r2, 4; mov.u64 %x6, kept; add.s64 %x5, %x5, %x6;
    st.shared.u32 [%x5], %r0; bar.arrive 3, 64; mov.u32 %r1, 1; bra END;
    CONSUME: bar.sync 3, 64; mul.wide.u32 %x5, %r0, 4; mov.u64 %x6, kept; add.s64 %x5, %x5, %x6;
    ld.shared.u32 %r1, [%x5]; END:"""
    np.testing.assert_array_equal(of_threads(body, module=SHARED), np.where(T < 32, T + 32, 1))


def test_warps_may_meet_at_different_instructions_of_a_counted_barrier():
    body = """setp.lt.u32 %p1, %r0, {}; @%p1 bra L; bar.sync 3, 64; mov.u32 %r1, 1; bra END;
    L: bar.sync 3, 64; mov.u32 %r1, 2; END:"""
    np.testing.assert_array_equal(of_threads(body.replace("{}", "32")), np.where(T < 32, 2, 1))
    with pytest.raises(PtxError, match="lanes of one warp wait at different barriers"):
        of_threads(body.replace("{}", "20"))


def test_nobody_waits_for_threads_that_have_returned():
    body = "mov.u32 %r1, 1; setp.lt.u32 %p1, %r0, 5; @%p1 ret; bar.sync 0; mov.u32 %r1, 2;"
    np.testing.assert_array_equal(of_threads(body, grid=(3,)), np.where(np.arange(192) < 5, 0, 2))
    late = """mov.u32 %r1, 1; setp.lt.u32 %p1, %r0, 5; @%p1 bra LATE; bar.sync 0;
    mov.u32 %r1, 2; bra END; LATE: mov.u32 %r2, 0;
    L: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 50; @%p2 bra L; ret; END:"""
    np.testing.assert_array_equal(of_threads(late), np.where(T < 5, 0, 2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "setp.lt.u32 %p1, %r0, 5; @%p1 bra L; bar.sync 0; bra D; L: bar.sync 0; D:",
            "threads of one block wait at different barriers",
        ),
        (
            "setp.lt.u32 %p1, %r0, 5; @%p1 bra L; bar.sync 0; bra D; L: bar.sync 1; D:",
            "threads of one block wait at different barriers: a part of the block never gets there",
        ),
        (
            "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; bar.sync 2, 64; L:",
            "barrier 2 must be reached by all that it waits for; only 32 came",
        ),
        ("bar.sync 0, 20;", "a multiple of 32 threads; got barrier 0 of 20 threads"),
        (
            "setp.lt.u32 %p1, %r0, 5; @%p1 bra L; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; bra D;"
            "L: bar.sync 0; D:",
            "must be reached by all lanes in its member mask",
        ),
        (
            "setp.lt.u32 %p1, %r0, 5; @%p1 exit; shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;",
            r"a read of the inactive lane 4.*thread \(5, 0, 0\)",
        ),
        ("shfl.sync.idx.b32 %r1, %r0, 9, 31, 0xff;", "must be in the member mask that it gives"),
        (
            "setp.lt.u32 %p1, %r0, 8; @!%p1 bra D; shfl.sync.idx.b32 %r1, %r0, 9, 31, 0xff; D:",
            "a read of the inactive lane 9",
        ),
    ],
)
def test_lanes_that_wait_in_vain(body, message):
    with pytest.raises(PtxError, match=message):
        of_threads(body)


def test_barriers_that_are_not_aligned_may_differ():
    body = """setp.lt.u32 %p1, %r0, 5; @%p1 bra L; barrier.sync 0; mov.u32 %r1, 1; bra D;
    L: barrier.sync 0; mov.u32 %r1, 2; D:"""
    np.testing.assert_array_equal(of_threads(body), np.where(T < 5, 2, 1))


# --- warps -------------------------------------------------------------------------------


def shuffled(mode, b, width=32):
    """CUDA's definition of __shfl_sync and its relatives, lane by lane."""
    lanes_of = []
    for t in range(64):
        lane, base = t % 32, t - t % 32
        first = lane // width * width
        chosen = first + b % width
        source = {"idx": chosen, "up": lane - b, "down": lane + b, "bfly": lane ^ b}[mode]
        inside = {
            "idx": True,
            "up": source >= first,
            "down": source < first + width,
            "bfly": source < first + width,
        }[mode]
        lanes_of.append((base + source if inside else t, inside))
    return lanes_of


@pytest.mark.parametrize("mode", ["idx", "up", "down", "bfly"])
@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(mode, width):
    for b in (0, 1, 5, 7):
        c = (32 - width) << 8 | (0 if mode == "up" else 31)
        body = f"shfl.sync.{mode}.b32 %r1|%p1, %r0, {b}, {c}, 0xffffffff;"
        want = shuffled(mode, b, width)
        assert of_threads(body).tolist() == [value for value, _ in want]
        body += "selp.u32 %r1, 1, 0, %p1;"
        assert of_threads(body).tolist() == [inside for _, inside in want]


def test_shuffles_of_some_lanes_and_by_register():
    body = """mov.u32 %r1, 99; setp.lt.u32 %p1, %r0, 8; @!%p1 bra D;
    sub.u32 %r2, 7, %r0; shfl.sync.idx.b32 %r1, %r0, %r2, 31, 0xff; D:"""
    np.testing.assert_array_equal(of_threads(body), np.where(T < 8, 7 - np.minimum(T, 7), 99))


def test_lanes_meet_at_a_shuffle_that_they_reach_at_different_times():
    body = """mov.u32 %r2, 0; and.b32 %r3, %r0, 3;
    L: add.u32 %r2, %r2, 1; setp.le.u32 %p1, %r2, %r3; @%p1 bra L;
    shfl.sync.down.b32 %r1, %r2, 1, 31, -1;"""
    lane = T % 32
    want = np.where(lane == 31, 4, (T + 1) % 4 + 1)
    np.testing.assert_array_equal(of_threads(body), want)


def test_votes():
    below = "setp.lt.u32 %p1, %r0, 40;"
    result = of_threads(below + "vote.sync.ballot.b32 %r1, %p1, -1;")
    assert result.tolist() == [2**32 - 1] * 32 + [255] * 32
    for mode, want in (("all", [1, 0]), ("any", [1, 1]), ("uni", [1, 0])):
        body = below + f"vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 %r1, 1, 0, %p2;"
        assert of_threads(body).tolist() == np.repeat(want, 32).tolist()
    body = (
        below
        + """setp.lt.u32 %p2, %r0, 8; @%p2 bra A; vote.sync.ballot.b32 %r1, %p1, -256;
    bra E; A: vote.sync.ballot.b32 %r1, %p2, 255; E:"""
    )
    result = of_threads(body, 32)
    assert result.tolist() == [255] * 8 + [2**32 - 256] * 24


def test_active_lanes_and_the_elected_one():
    body = "mov.u32 %r1, 0; setp.lt.u32 %p1, %r0, 5; @%p1 activemask.b32 %r1;"
    np.testing.assert_array_equal(of_threads(body), np.where(T < 5, 31, 0))
    body = "elect.sync %r1|%p1, -1; @!%p1 mov.u32 %r1, 50;"
    np.testing.assert_array_equal(of_threads(body), np.where(T % 32, 50, 0))


def test_matches():
    body = "rem.u32 %r2, %r0, 3; match.any.sync.b32 %r1, %r2, -1;"
    want = [sum(1 << k for k in range(32) if (t - t % 32 + k) % 3 == t % 3) for t in range(64)]
    assert of_threads(body).tolist() == want
    body = """shr.u32 %r2, %r0, 4; min.u32 %r2, %r2, 2; match.all.sync.b32 %r1|%p1, %r2, -1;
    @%p1 sub.u32 %r1, %r1, 1;"""
    assert of_threads(body).tolist() == [0] * 32 + [2**32 - 2] * 32
    body = "cvt.u64.u32 %x5, %r0; shr.u64 %x5, %x5, 1; match.any.sync.b64 %r1, %x5, -1;"
    assert of_threads(body).tolist() == [3 << (t % 32 // 2 * 2) for t in range(64)]


REDUCE = {
    "add.u32": lambda v: sum(v) % 2**32,
    "min.u32": min,
    "max.u32": max,
    "and.b32": np.bitwise_and.reduce,
    "or.b32": np.bitwise_or.reduce,
    "xor.b32": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("form", REDUCE)
def test_reductions_of_a_warp(form):
    values = np.random.default_rng(0).integers(0, 2**32, 64).astype(U32)
    result = lanes(f"redux.sync.{form} $0, $1, -1;", values)
    want = [REDUCE[form]([v.item() for v in part]) for part in (values[:32], values[32:])]
    np.testing.assert_array_equal(result, np.repeat(want, 32))
    signed = lanes("redux.sync.min.s32 $0, $1, -1;", values).view(np.int32)
    np.testing.assert_array_equal(signed[:32], np.full(32, values[:32].view(np.int32).min()))
    x = np.array([1, -7, np.nan, 3] * 8, np.float32)
    assert lanes("redux.sync.max.f32 $0, $1, -1;", x, result=np.float32)[0] == 3
    assert lanes("redux.sync.max.abs.f32 $0, $1, -1;", x, result=np.float32)[0] == 7
    assert np.isnan(lanes("redux.sync.max.NaN.f32 $0, $1, -1;", x, result=np.float32)[0])
