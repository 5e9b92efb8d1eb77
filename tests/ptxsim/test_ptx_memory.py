"""Memory of the PTX interpreter: accesses, atomics, copies, matrices, and every fault of them."""

import numpy as np
import pytest
from ptx_run import BF16, run, start, text

from ptxsim.checks import Checks
from ptxsim.faults import PtxError
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory, DeviceMemoryError

random = np.random.default_rng(2)
U32, F32 = np.uint32, np.float32
X = np.arange(64, dtype=U32)
OUT = np.zeros(64, U32)
FOUR = "mul.wide.u32 %x0, %r0, 4; add.s64 %x11, %x1, %x0; add.s64 %x12, %x2, %x0;"
SHARED = ".shared .align 16 .b8 kept[512];"


# --- device memory -----------------------------------------------------------------------


def test_allocations_are_aligned_counted_and_real():
    memory = DeviceMemory(4096)
    a, b = memory.allocate(1000), memory.allocate(8)
    assert a % 256 == b % 256 == 0 and memory.used == 1008
    memory.copy_in(a, np.arange(250, dtype=F32))
    view = memory.view(a + 40, 8)
    assert view.view(F32).tolist() == [10, 11] and view.ctypes.data == a + 40
    view[:] = 0
    out = np.empty(12, F32)
    memory.copy_out(a, out)
    assert out.tolist() == [*range(10), 0, 0]
    memory.free(b)
    assert (memory.used, memory.peak) == (1000, 1008)
    with pytest.raises(DeviceMemoryError, match=r"must fit; got 4000 bytes with 1000 of 4096"):
        memory.allocate(4000)
    with pytest.raises(DeviceMemoryError, match="was freed already"):
        memory.free(b)
    with pytest.raises(DeviceMemoryError, match="must be within one allocation; got 1001 bytes"):
        memory.view(a, 1001)
    with pytest.raises(ValueError, match="must have a contiguous array"):
        memory.copy_out(a, np.empty((4, 4), F32)[:, 1])


def test_freed_memory_is_used_again_but_not_at_once():
    memory = DeviceMemory()
    first = memory.allocate(100)
    memory.free(first)
    assert memory.allocate(100) != first
    addresses = set()
    for _ in range(200):
        address = memory.allocate(100)
        addresses.add(address)
        memory.free(address)
    assert len(addresses) < 50
    big = memory.allocate(1 << 22)
    memory.view(big, 8)[:] = 7
    memory.free(big)


def test_memory_that_is_freed_in_the_middle_of_a_search():
    """As garbage collection does: the search ends with the tables that it began with."""
    memory = DeviceMemory(1 << 20)
    first, second, third = (memory.allocate(256) for _ in range(3))

    class FreesWhenCompared(int):
        def __lt__(self, other):
            if memory.find(second) is not None and second not in freed:
                freed.append(second)
                memory.free(second)
            return int(self) < other

    freed = []
    assert memory.find(FreesWhenCompared(third)).start == third
    assert freed == [second] and memory.find(second) is None
    assert memory.find(first).start == first and memory.used == 512


def test_adopted_arrays_are_used_in_place():
    raw = np.zeros(100, np.uint8)
    memory, inside = DeviceMemory(), raw[3:67]
    address = memory.adopt(inside)
    assert address == inside.ctypes.data and memory.used == 0
    ptx = text(start(1) + "add.s64 %x1, %x1, %x0; st.global.u8 [%x1OFFSET], 7;", 1)
    PtxModule(ptx.replace("OFFSET", "")).entry("k").launch((1,), (8,), [address], memory)
    assert raw.tolist() == [7 if k >= 3 and k < 67 and (k - 3) % 8 == 0 else 0 for k in range(100)]
    for offset, message in (("+-1", "byte -1 of|in no allocation"), ("+64", "byte 64 of an")):
        kernel = PtxModule(ptx.replace("OFFSET", offset)).entry("k")
        with pytest.raises(PtxError, match=message):
            kernel.launch((1,), (8,), [address], memory)
    memory.free(address)
    with pytest.raises(ValueError, match="must be contiguous"):
        memory.adopt(raw[::2])


# --- loads and stores --------------------------------------------------------------------


@pytest.mark.parametrize("space", ["global", "shared", "local", ""])
@pytest.mark.parametrize(
    ("name", "count"),
    [("u8", 1), ("s8", 4), ("b16", 2), ("f32", 1), ("f32", 4), ("u64", 2), ("f64", 1), ("u8", 16)],
)
def test_accesses_of_every_width(space, name, count):
    """From global memory through another space back to global memory."""
    size = int(name[1:]) // 8 * count
    letter = {1: "h", 2: "h", 4: "f", 8: "x"}[size // count]
    letter = "d" if name == "f64" else letter
    registers = [f"%{letter}{k + (20 if letter == 'x' else 0)}" for k in range(count)]
    if count == 16:
        registers = [f"%h{k}" for k in range(16)]
    listed = registers[0] if count == 1 else "{" + ", ".join(registers) + "}"
    vector = "" if count == 1 else f".v{count}"
    kept, module = "[%x13]", ""
    form = f".{space}{vector}.{name}"
    middle = f"st{form} [%x5], {listed}; ld{form} {listed}, [%x5];"
    place = f"mul.wide.u32 %x5, %r0, {size};"
    if space == "shared":
        module = ".shared .align 16 .b8 kept[1024];"
        place += "mov.u64 %x6, kept; add.s64 %x5, %x5, %x6;"
    elif space == "local":
        module, place = "", "mov.u64 %x5, stack;"
    elif space == "global":
        place += "add.s64 %x5, %x5, %x3;"
    else:
        module = ".shared .align 16 .b8 kept[1024];"
        place += "cvta.shared.u64 %x6, kept; add.s64 %x5, %x5, %x6;"
        middle = middle.replace("..", ".")
    body = f"""
    .local .align 16 .b8 stack[16];
    mul.wide.u32 %x0, %r0, {size}; add.s64 %x11, %x1, %x0; add.s64 %x13, %x2, %x0;
    ld.global.nc{vector}.{name} {listed}, [%x11];
    {place} {middle} st.global.wb{vector}.{name} {kept}, {listed};"""
    data = random.integers(0, 256, 64 * size).astype(np.uint8)
    after, done = run(body, [data, 0 * data, 0 * data], 64, module)
    np.testing.assert_array_equal(after[1], data)
    assert done.loads == (128 if space == "global" else 64)
    assert done.bytes == (4 if space == "global" else 2) * 64 * size


def test_narrow_loads_extend_by_the_sign():
    body = FOUR + "ld.global.s8 %r1, [%x11]; st.global.u32 [%x12], %r1;"
    after, _ = run(body, [np.full(32, 0x80, U32), np.zeros(32, U32)])
    assert after[1][0] == 0xFFFFFF80
    after, _ = run(body.replace(".s8", ".u8"), [np.full(32, 0x180, U32), np.zeros(32, U32)])
    assert after[1][0] == 0x80


def test_volatile_relaxed_and_hinted_accesses():
    hinted = (".global.L1::no_allocate", ".global.cg")
    for form in (".volatile.global", ".relaxed.gpu.global", *hinted):
        body = FOUR + f"ld{form}.u32 %r1, [%x11]; st.global.cs.u32 [%x12], %r1;"
        after, _ = run(body, [X, OUT], 64)
        np.testing.assert_array_equal(after[1], X)
    after, _ = run(FOUR + "ldu.global.u32 %r1, [%x11]; st.global.u32 [%x12], %r1;", [X, OUT], 64)
    np.testing.assert_array_equal(after[1], X)


def test_lanes_in_several_arrays_and_spaces():
    body = (
        FOUR
        + """
    and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %x5, %x11, %x12, %p1;
    ld.global.u32 %r2, [%x5]; add.u32 %r2, %r2, 1; st.global.u32 [%x5], %r2;
    mov.u64 %x7, kept; add.s64 %x7, %x7, %x0; cvta.shared.u64 %x6, %x7;
    st.shared.u32 [%x7], 50; selp.b64 %x5, %x6, %x12, %p1;
    ld.u32 %r3, [%x5]; add.s64 %x3, %x3, %x0; st.global.u32 [%x3], %r3;"""
    )
    after, _ = run(body, [X, 100 + X, OUT], 64, SHARED)
    even = X % 2 == 0
    np.testing.assert_array_equal(after[0], X + even)
    np.testing.assert_array_equal(after[1], 100 + X + ~even)
    np.testing.assert_array_equal(after[2], np.where(even, 50, 101 + X))


def test_constants_and_variables_of_the_module():
    module = """
    .const .align 4 .u32 table[4] = {10, 0x14, 30, 40};
    .global .align 4 .u32 counter = 5;
    .global .align 4 .f32 numbers[2] = {0f3F800000, 2.5};"""
    body = (
        FOUR
        + """
    and.b32 %r1, %r0, 3; mul.wide.u32 %x5, %r1, 4; mov.u64 %x6, table; add.s64 %x5, %x5, %x6;
    ld.const.u32 %r2, [%x5]; ld.const.u32 %r3, [table+8]; ld.global.f32 %f1, [numbers+4];
    cvt.rzi.u32.f32 %r4, %f1; add.u32 %r2, %r2, %r3; add.u32 %r2, %r2, %r4;
    st.global.u32 [%x11], %r2; atom.global.add.u32 %r5, [counter], 1;"""
    )
    memory = DeviceMemory()
    after, _ = run(body, [OUT], 64, module, memory=memory)
    np.testing.assert_array_equal(after[0], np.tile([42, 52, 62, 72], 16))
    assert memory.used == 0
    with pytest.raises(PtxError, match="store to a read-only"):
        run("mov.u64 %x5, table; st.global.u32 [%x5], 1;", [OUT], 64, module)


def test_parameters_narrower_and_wider_than_a_word():
    ptx = (
        text("", 0)
        .replace("k()", "k(.param .u64 o, .param .u16 a, .param .f32 b, .param .align 8 .b8 c[12])")
        .replace(
            "    ret;",
            """
    ld.param.u64 %x1, [o]; ld.param.u16 %h1, [a]; ld.param.f32 %f1, [b];
    ld.param.u32 %r1, [c+4]; ld.param.u32 %r2, [c+8]; cvt.u32.u16 %r3, %h1;
    cvt.rzi.u32.f32 %r4, %f1; st.global.v4.u32 [%x1], {%r3, %r4, %r1, %r2}; ret;""",
        )
    )
    memory = DeviceMemory()
    address = memory.allocate(16)
    half = int(np.float32(2.0).view(U32)) | 0xABCD << 32
    words = [address, 0xFFFF_FFFF_0007, half, 5 << 32 | 4, 6]
    kernel = PtxModule(ptx).entry("k")
    kernel.launch((1,), (1,), words, memory)
    assert memory.view(address, 16).view(U32).tolist() == [7, 2, 5, 6]
    kernel.launch((1, 1, 1), (1, 1, 1), np.array(words, np.uint64), memory)
    with pytest.raises(PtxError, match="must have 5 parameter slots; got 2"):
        kernel.launch((1,), (1,), [1, 2], memory)


# --- faults ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.global.u32 %r1, [%x11+4];", r"out of bounds; .* is byte 256 of an allocation of 256"),
        ("ld.global.u32 %r1, [%x0];", "out of bounds; .* is in no allocation"),
        ("ld.global.v2.u32 {%r1, %r2}, [%x11];", "misaligned 8-byte access"),
        ("ld.global.u32 %r1, [%x11+2];", "misaligned 4-byte access"),
        ("st.global.u32 [%x11], %r0;", "store to a read-only argument"),
        ("atom.global.add.u32 %r1, [%x11], 1;", "store to a read-only argument"),
        ("st.shared.u32 [kept+512], 1;", r"the 512 bytes of the block; got bytes 512 to 516"),
        ("st.shared.u32 [kept+2], 1;", "misaligned 4-byte access"),
        ("ld.shared.u32 %r1, [kept];", "must be set before it is read"),
        ("ld.local.u32 %r1, [stack+16];", r"inside the 16 bytes of the thread; got bytes 16 to 20"),
        ("mov.u64 %x6, kept; st.shared.u32 [%x6], %r0;", "race in shared memory: .* written"),
        (
            "mov.u64 %x6, kept; add.s64 %x6, %x6, %x0; st.shared.u32 [%x6], %r0;"
            "xor.b32 %r2, %r0, 1; mul.wide.u32 %x7, %r2, 4; mov.u64 %x6, kept; add.s64 %x7, %x7, "
            "%x6;"
            "ld.shared.u32 %r3, [%x7];",
            "race in shared memory: .* written must not be read",
        ),
        (
            "mov.u64 %x6, kept; add.s64 %x6, %x6, %x0; st.shared.u32 [%x6], 0; bar.sync 0;"
            "xor.b32 %r2, %r0, 33; mul.wide.u32 %x7, %r2, 4; mov.u64 %x8, kept; add.s64 %x7, %x7, "
            "%x8;"
            "ld.shared.u32 %r3, [%x7]; st.shared.u32 [%x6], %r0;",
            "race in shared memory: .* read must not be written",
        ),
        (
            "st.shared.u32 [kept], 0; bar.sync 0; ld.shared.u32 %r1, [kept];"
            "setp.eq.u32 %p1, %r0, 3; @%p1 st.shared.u32 [kept], 9;",
            "race in shared memory: .* read must not be written",
        ),
    ],
)
def test_faults_name_their_place(body, message):
    body = ".local .align 4 .b8 stack[16];" + FOUR + body
    with pytest.raises(PtxError, match=message) as caught:
        run(body, [X, OUT], 64, SHARED, read_only=[0])
    place = caught.value.location
    assert place.kernel == "k" and place.instruction in body and place.block == (0, 0, 0)
    assert place.thread is not None and "line " in place.source
    assert "Fix: " in str(caught.value) and f"`{place.instruction}`" in str(caught.value)


def test_faults_name_the_line_of_the_source():
    body = FOUR + "\n.loc 1 42 5\nld.global.u32 %r1, [%x11+4];\n"
    ptx = text(start(2) + body, 2) + '.file 1 "softmax.py"\n'
    memory = DeviceMemory()
    x = memory.allocate(256)
    with pytest.raises(
        PtxError,
        match=r"At softmax.py:42, `ld.global.u32 %r1, \[%x11\+4\]`, "
        r"block \(2, 0, 0\), thread \(31, 0, 0\)",
    ):
        memory.copy_in(x, X)
        shift = "mov.u32 %r9, %ctaid.x; mad.lo.u32 %r0, %r9, 16, %r0;"
        ptx = ptx.replace("mul.wide.u32 %x0, %r0, 4;", shift + "mul.wide.u32 %x0, %r0, 4;")
        PtxModule(ptx).entry("k").launch((3,), (32,), [x, x], memory)


def test_use_after_free_is_found():
    memory = DeviceMemory()
    x = memory.allocate(256)
    memory.free(x)
    ptx = text(start(1) + "ld.global.u32 %r1, [%x1];")
    with pytest.raises(PtxError, match="must not use freed memory"):
        PtxModule(ptx).entry("k").launch((1,), (1,), [x], memory)


def test_uninitialized_global_memory_is_found_when_asked_for():
    memory = DeviceMemory()
    memory.track_writes()
    x = memory.allocate(256)
    ptx = text(start(1) + "add.s64 %x1, %x1, %x0; STORE ld.global.u32 %r1, [%x1];")
    check = Checks(uninitialized_global=True)
    texts = [ptx.replace("STORE", store) for store in ("", "st.global.u32 [%x1], 1;")]
    plain, stored = (PtxModule(each).entry("k") for each in texts)
    plain.launch((1,), (32,), [x], memory)
    with pytest.raises(PtxError, match="read of byte 0 of 256, which nobody has written"):
        plain.launch((1,), (32,), [x], memory, checks=check)
    stored.launch((1,), (32,), [x], memory, checks=check)
    plain.launch((1,), (32,), [x], memory, checks=check)


def test_checks_can_be_left_out():
    off = Checks(races=False, uninitialized_shared=False)
    run(
        FOUR + "mov.u64 %x6, kept; ld.shared.u32 %r1, [%x6]; st.shared.u32 [%x6], %r0;",
        [X, OUT],
        64,
        SHARED,
        checks=off,
    )


def test_a_barrier_ends_a_race_and_equal_values_are_none():
    body = (
        FOUR
        + """
    mov.u64 %x6, kept; add.s64 %x7, %x6, %x0; st.shared.u32 [%x7], %r0; bar.sync 0;
    xor.b32 %r2, %r0, 33; mul.wide.u32 %x8, %r2, 4; add.s64 %x8, %x8, %x6;
    ld.shared.u32 %r3, [%x8]; st.global.u32 [%x12], %r3; st.shared.u32 [kept+400], 7;"""
    )
    after, _ = run(body, [X, OUT], 64, SHARED)
    np.testing.assert_array_equal(after[1], X ^ 33)
    body = (
        FOUR
        + """
    mov.u64 %x6, kept; add.s64 %x7, %x6, %x0; st.shared.u32 [%x7], %r0; bar.warp.sync -1;
    xor.b32 %r2, %r0, {}; mul.wide.u32 %x8, %r2, 4; add.s64 %x8, %x8, %x6;
    ld.shared.u32 %r3, [%x8]; st.global.u32 [%x12], %r3;"""
    )
    after, _ = run(body.replace("{}", "5"), [X, OUT], 64, SHARED)
    np.testing.assert_array_equal(after[1], X ^ 5)
    with pytest.raises(PtxError, match="race"):
        run(body.replace("{}", "33"), [X, OUT], 64, SHARED)


def test_a_read_before_a_warp_barrier_is_no_race_with_a_later_write():
    """It was mixed up with the reads behind the barrier, of the lane that then writes."""
    body = (
        FOUR
        + """
    mov.u64 %x6, kept; add.s64 %x7, %x6, %x0; st.shared.u32 [%x7], %r0; bar.warp.sync -1;
    xor.b32 %r2, %r0, 5; mul.wide.u32 %x8, %r2, 4; add.s64 %x8, %x8, %x6;
    ld.shared.u32 %r3, [%x8]; {} ld.shared.u32 %r4, [%x7]; add.s32 %r4, %r4, 1;
    st.shared.u32 [%x7], %r4; st.global.u32 [%x12], %r3;"""
    )
    after, _ = run(body.replace("{}", "bar.warp.sync -1;"), [X, OUT], 64, SHARED)
    np.testing.assert_array_equal(after[1], X ^ 5)
    with pytest.raises(PtxError, match="race"):
        run(body.replace("{}", ""), [X, OUT], 64, SHARED)


def test_dynamic_shared_memory():
    module = ".shared .align 4 .b8 first[20];\n.extern .shared .align 16 .b8 rest[];"
    body = (
        FOUR
        + """
    mov.u64 %x6, rest; add.s64 %x7, %x6, %x0; st.shared.u32 [%x7], %r0;
    ld.shared.u32 %r1, [%x7]; cvt.u32.u64 %r2, %x6; add.u32 %r1, %r1, %r2;
    st.global.u32 [%x12], %r1;"""
    )
    after, _ = run(body, [X, OUT], 64, module, shared_bytes=256)
    np.testing.assert_array_equal(after[1], X + 32)
    with pytest.raises(PtxError, match="inside the 284 bytes"):
        run(body, [X, OUT], 64, module, shared_bytes=252)
    with pytest.raises(PtxError, match="at most 232448 bytes of shared memory"):
        run(body, [X, OUT], 64, module, shared_bytes=1 << 20)


def test_loads_wider_than_what_is_needed():
    """Elements of which no byte is used need neither be set nor lie in the array."""
    module = ".shared .align 16 .b8 kept[512];\n.shared .align 16 .b8 small[12];"
    body = (
        FOUR
        + """
    mov.u64 %x6, small; st.shared.u32 [%x6], %r0; st.shared.u32 [%x6+8], 7; bar.sync 0;
    {}
    ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [small]; add.u32 %r1, %r1, %r3;
    st.global.u32 [%x12], %r1;"""
    )
    lane = X[:1]
    mask = '.pragma "used_bytes_mask 3855";'  # of elements 0 and 2
    after, _ = run(body.format(mask), [lane, OUT[:1]], 1, module)
    np.testing.assert_array_equal(after[1], lane + 7)
    with pytest.raises(PtxError):
        run(body.format(""), [lane, OUT[:1]], 1, module)


# --- atomics -----------------------------------------------------------------------------

ATOMICS = {
    "add.u32": (np.uint32, lambda old, x: old + x),
    "min.s32": (np.int32, min),
    "max.s32": (np.int32, max),
    "min.u64": (np.uint64, min),
    "exch.b32": (U32, lambda old, x: x),
    "and.b32": (U32, lambda old, x: old & x),
    "or.b64": (np.uint64, lambda old, x: old | x),
    "xor.b32": (U32, lambda old, x: old ^ x),
    "add.f64": (np.float64, lambda old, x: old + x),
    "inc.u32": (U32, lambda old, x: 0 if old >= x else old + 1),
    "add.u64": (np.uint64, lambda old, x: old + x),
    "add.f32": (F32, lambda old, x: F32(old + x)),
    "dec.u32": (U32, lambda old, x: x if old == 0 or old > x else old - 1),
    "add.noftz.f16": (np.float16, lambda old, x: np.float16(old + x)),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("form", ATOMICS)
def test_atomics_take_lanes_in_order(form, space):
    """Lane t goes to place t % 5; what it found is what the lanes before it have left."""
    dtype, function = np.dtype(ATOMICS[form][0]), ATOMICS[form][1]
    size, places = dtype.itemsize, 5
    values = random.integers(0, 9, 64).astype(dtype)
    initial = random.integers(0, 9, places).astype(dtype)
    letter = {2: "h", 4: "r", 8: "x"}[size]
    a, d = (f"%{letter}{k}" for k in ((21, 22) if letter == "x" else (11, 12)))
    b = 8 * size
    body = f"""
    mul.wide.u32 %x0, %r0, {size}; add.s64 %x11, %x1, %x0; add.s64 %x12, %x3, %x0;
    rem.u32 %r1, %r0, {places}; mul.wide.u32 %x5, %r1, {size}; add.s64 %x6, %x2, %x5;
    ld.global.b{b} {a}, [%x11]; mov.u64 %x7, kept; add.s64 %x7, %x7, %x5;
    setp.lt.u32 %p1, %r0, {places};
    """
    target = "%x6"
    if space == "shared":
        target = "%x7"
        body += f"@%p1 ld.global.b{b} {d}, [%x6]; @%p1 st.shared.b{b} [%x7], {d}; bar.sync 0;"
    body += f"atom.{space}.relaxed.gpu.{form} {d}, [{target}], {a}; st.global.b{b} [%x12], {d};"
    if space == "shared":
        body += f"bar.sync 0; @%p1 ld.shared.b{b} {d}, [%x7]; @%p1 st.global.b{b} [%x6], {d};"
    after, _ = run(body, [values, initial, np.zeros(64, dtype)], 64, SHARED)
    state, olds = list(initial), []
    for lane, value in enumerate(values):
        olds.append(state[lane % places])
        state[lane % places] = function(state[lane % places], value)
    np.testing.assert_array_equal(after[1], np.array(state, dtype))
    np.testing.assert_array_equal(after[2], np.array(olds, dtype))
    if space == "global" and "exch" not in form:
        body = body.replace("atom.", "red.").replace(f"{d}, [%x6]", "[%x6]")
        after, _ = run(body, [values, initial, np.zeros(64, dtype)], 64, SHARED)
        np.testing.assert_array_equal(after[1], np.array(state, dtype))


def test_compare_and_swap_takes_a_lock_once():
    body = FOUR + "atom.global.cas.b32 %r1, [%x1], 0, 1; st.global.u32 [%x12], %r1;"
    after, _ = run(body, [np.zeros(1, U32), OUT], 64)
    assert after[1].tolist() == [0] + [1] * 63 and after[0][0] == 1


def test_atomics_on_pairs_and_vectors():
    for name, part in (("f16x2", np.float16), ("bf16x2", BF16)):
        x = np.arange(128).astype(part)
        body = FOUR + f"ld.global.u32 %r1, [%x11]; red.global.add.noftz.{name} [%x2], %r1;"
        after, _ = run(body, [x.view(U32), np.zeros(1, U32)], 16)
        want = x[:32].astype(float).reshape(-1, 2).sum(0)
        assert after[1].view(part).astype(float).tolist() == want.tolist()
    body = """mul.wide.u32 %x5, %r0, 16; add.s64 %x5, %x1, %x5;
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%x5];
    red.global.v4.f32.add [%x2], {%f1, %f2, %f3, %f4};"""
    x = random.integers(0, 9, (32, 4)).astype(F32)
    after, _ = run(body, [x, np.zeros(4, F32)], 32)
    assert after[1].tolist() == x.sum(0).tolist()


def test_atomics_race_with_plain_accesses():
    with pytest.raises(PtxError, match="race"):
        run(
            "setp.eq.u32 %p1, %r0, 3; @%p1 st.shared.u32 [kept], 0;"
            "atom.shared.add.u32 %r1, [kept], 1;",
            [X],
            64,
            SHARED,
        )


# --- cp.async ----------------------------------------------------------------------------

COPY = """
    mul.wide.u32 %x5, %r0, 16; add.s64 %x6, %x1, %x5; mov.u64 %x7, kept; add.s64 %x7, %x7, %x5;
    add.s64 %x8, %x2, %x5;
"""
GIVE = "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%x7]; st.global.v4.u32 [%x8], {%r1, %r2, %r3, %r4};"


def copied(middle, threads=32):
    data = random.integers(0, 2**32, 4 * threads).astype(U32)
    after, _ = run(COPY + middle + GIVE, [data, 0 * data], threads, SHARED)
    return data.reshape(-1, 4), after[1].reshape(-1, 4)


def test_asynchronous_copies():
    for wait in ("cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"):
        x, after = copied("cp.async.cg.shared.global.L2::128B [%x7], [%x6], 16;" + wait)
        np.testing.assert_array_equal(after, x)
    x, after = copied(
        "setp.lt.u32 %p1, %r0, 9; selp.u32 %r5, 16, 0, %p1; selp.b64 %x6, %x6, 0, %p1;"
        "cp.async.ca.shared.global [%x7], [%x6], 16, %r5; cp.async.wait_all;"
    )
    np.testing.assert_array_equal(after, np.where(np.arange(32)[:, None] < 9, x, 0))


def test_copies_that_nobody_has_waited_for():
    copy = "cp.async.ca.shared.global [%x7], [%x6], 16;"
    for wait in ("", "cp.async.commit_group;", "cp.async.commit_group; cp.async.wait_group 1;"):
        with pytest.raises(PtxError, match="must not be touched before the copy is waited for"):
            copied(copy + wait)
    with pytest.raises(PtxError, match="all of its 16 bytes or none"):
        copied("cp.async.ca.shared.global [%x7], [%x6], 16, 5;")


# --- matrices ----------------------------------------------------------------------------


def places(shape, operand, each):
    """The PTX manual's tables, element by element: row and column in lane t of element i."""
    k = int(shape.split("k")[1])
    table = {}
    for lane in range(32):
        group, thread = lane // 4, lane % 4
        if operand == "c":
            for i in range(4):
                table[lane, i] = group + (0 if i < 2 else 8), thread * 2 + (i & 1)
        elif each == 2 and k == 16 and operand == "a":
            for i in range(8):
                row = group if i < 2 or 4 <= i < 6 else group + 8
                table[lane, i] = row, thread * 2 + (i & 1) + (0 if i < 4 else 8)
        elif each == 2 and operand == "a":
            for i in range(4):
                table[lane, i] = group + (0 if i < 2 else 8), thread * 2 + (i & 1)
        elif each == 2:
            for i in range(4 if k == 16 else 2):
                table[lane, i] = thread * 2 + (i & 1) + (0 if i < 2 else 8), group
        elif operand == "a":
            for i in range(4 if k == 8 else 2):
                table[lane, i] = group + (8 if i % 2 else 0), thread + (0 if i < 2 else 4)
        else:
            for i in range(2 if k == 8 else 1):
                table[lane, i] = thread + 4 * i, group
    return table


def fragment(matrix, shape, operand, each):
    table = places(shape, operand, each)
    count = len(table) // 32
    values = [[matrix[table[lane, i]] for i in range(count)] for lane in range(32)]
    return np.array(values, matrix.dtype)


@pytest.mark.parametrize(
    ("shape", "kind", "result"),
    [
        ("m16n8k16", "bf16", "f32"),
        ("m16n8k16", "f16", "f32"),
        ("m16n8k16", "f16", "f16"),
        ("m16n8k8", "bf16", "f32"),
        ("m16n8k8", "f16", "f16"),
        ("m16n8k8", "tf32", "f32"),
        ("m16n8k4", "tf32", "f32"),
    ],
)
def test_products_of_matrices(shape, kind, result):
    k = int(shape.split("k")[1])
    part = {"bf16": BF16, "f16": np.float16, "tf32": F32}[kind]
    added = {"f32": F32, "f16": np.float16}[result]
    each = 4 // np.dtype(part).itemsize
    a, b = (random.integers(-8, 9, size).astype(part) for size in ((16, k), (k, 8)))
    c = random.integers(-8, 9, (16, 8)).astype(added)
    inputs = [
        fragment(a, shape, "a", each),
        fragment(b, shape, "b", each),
        fragment(c, shape, "c", each),
    ]
    body, names, register = [], [], 1
    for number, array in enumerate(inputs):
        count = array.nbytes // 128
        listed = [f"%r{register + j}" for j in range(count)]
        register += count
        names.append("{" + ", ".join(listed) + "}")
        body.append(f"mul.wide.u32 %x0, %r0, {4 * count}; add.s64 %x9, %x{number + 1}, %x0;")
        body += [f"ld.global.u32 {name}, [%x9+{4 * j}];" for j, name in enumerate(listed)]
    count = inputs[2].nbytes // 128
    out = [f"%r{register + j}" for j in range(count)]
    body.append(
        f"mma.sync.aligned.{shape}.row.col.{result}.{kind}.{kind}.{result} "
        f"{{{', '.join(out)}}}, {names[0]}, {names[1]}, {names[2]};"
    )
    body.append(f"mul.wide.u32 %x0, %r0, {4 * count}; add.s64 %x9, %x4, %x0;")
    body += [f"st.global.u32 [%x9+{4 * j}], {name};" for j, name in enumerate(out)]
    words = [array.view(U32) for array in inputs]
    after, _ = run("\n".join(body), [*words, np.zeros_like(words[2])], 32)
    want = a.astype(float) @ b.astype(float) + c.astype(float)
    want = fragment(want.astype(added), shape, "c", each)
    np.testing.assert_array_equal(after[3].view(added).reshape(32, -1), want)
    if kind == "tf32":  # the last 13 bits of both operands do not count
        noisy = [words[0] | U32(0x1FFF), words[1] | U32(0x1FFF), words[2], np.zeros_like(words[2])]
        again, _ = run("\n".join(body), noisy, 32)
        np.testing.assert_array_equal(again[3], after[3])
    with pytest.raises(PtxError, match="all 32 lanes"):
        run("\n".join(body), [*words, np.zeros_like(words[2])], 31)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_matrices_in_shared_memory(count, trans):
    """Stored as rows by lanes, given out as fragments, stored again and read as rows."""
    data = random.integers(0, 2**16, (32, 8)).astype(np.uint16)
    names = "{" + ", ".join(f"%r{k + 10}" for k in range(count)) + "}"
    body = (
        COPY
        + f"""
    ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%x6]; st.shared.v4.u32 [%x7], {{%r1, %r2, %r3, %r4}};
    bar.sync 0; cvt.u32.u64 %r5, %x7;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {names}, [%r5];
    mul.wide.u32 %x0, %r0, {4 * count}; add.s64 %x9, %x2, %x0;
    """
        + "\n".join(f"st.global.u32 [%x9+{4 * k}], %r{k + 10};" for k in range(count))
        + f"""
    bar.sync 0; setp.lt.u32 %p1, %r0, {8 * count};
    @%p1 st.shared.v4.u32 [%x7], {{0, 0, 0, 0}}; bar.sync 0;
    stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r5], {names}; bar.sync 0;
    add.s64 %x8, %x3, %x5; {GIVE}"""
    )
    out = np.zeros((32, count), U32)
    after, _ = run(body, [data, out, np.zeros((32, 8), np.uint16)], 32, SHARED)
    pairs = after[1].view(np.uint16).reshape(32, count, 2)
    for lane in range(32):
        for matrix in range(count):
            block = data[8 * matrix : 8 * matrix + 8]
            block = block.T if trans else block
            want = block[lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            assert pairs[lane, matrix].tolist() == want.tolist()
    np.testing.assert_array_equal(after[2], data)


def test_transposed_fragments():
    data = random.integers(0, 2**16, (8, 8)).astype(np.uint16)
    body = (
        FOUR
        + """ld.global.u32 %r1, [%x11]; movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;
    st.global.u32 [%x12], %r2;"""
    )
    after, _ = run(body, [data.view(U32).reshape(-1), np.zeros(32, U32)], 32)
    np.testing.assert_array_equal(after[1].view(np.uint16).reshape(8, 8), data.T)
