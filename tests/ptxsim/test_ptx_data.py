"""Bits, comparisons, moves and conversions of the PTX interpreter, one test for every entry."""

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from ptx_run import BF16, lanes, run

from ptxsim.faults import PtxError
from ptxsim.instruction_table import TABLE
from ptxsim.instructions import MODULES

random = np.random.default_rng(1)
U32, I32, U64, F32 = np.uint32, np.int32, np.uint64, np.float32


def words(count=64, dtype=U32):
    bits = random.integers(0, 2**64, count, dtype=np.uint64)
    bits >>= random.integers(0, 64, count, dtype=np.uint64)
    return bits.astype(dtype)


def test_every_entry_of_the_table_has_a_test():
    """Whoever enters an instruction also tests it: its name stands in one of these files."""
    assert MODULES
    named = "".join(path.read_text() for path in Path(__file__).parent.glob("test_ptx_*.py"))
    missing = [code for code in TABLE if f"{code}." not in named and f'"{code}' not in named]
    assert not missing


# --- bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits):
    dtype = np.dtype(f"u{bits // 8}")
    x, y = words(dtype=dtype), words(dtype=dtype)
    for opcode, want in (("and", x & y), ("or", x | y), ("xor", x ^ y)):
        result = lanes(f"{opcode}.b{bits} $0, $1, $2;", x, y, result=dtype)
        np.testing.assert_array_equal(result, want)
    np.testing.assert_array_equal(lanes(f"not.b{bits} $0, $1;", x, result=dtype), ~x)
    np.testing.assert_array_equal(lanes(f"cnot.b{bits} $0, $1;", x, result=dtype), x == 0)


def test_logic_of_predicates():
    x, y = words() & 1, words() & 1
    body = "setp.ne.u32 %p1, $1, 0; setp.ne.u32 %p2, $2, 0;"
    for opcode, want in (("and", x & y), ("or", x | y), ("xor", x ^ y)):
        result = lanes(f"{body} {opcode}.pred %p3, %p1, %p2; selp.u32 $0, 1, 0, %p3;", x, y)
        np.testing.assert_array_equal(result, want)
    result = lanes(f"{body} not.pred %p3, %p1; selp.u32 $0, 1, 0, %p3;", x, y)
    np.testing.assert_array_equal(result, 1 - x)


def test_any_function_of_three_bits():
    a, b, c = words(), words(), words()
    want = {0x80: a & b & c, 0x96: a ^ b ^ c, 0xE8: a & b | b & c | a & c, 0xCA: a & b | ~a & c}
    for table, value in want.items():
        result = lanes(f"lop3.b32 $0, $1, $2, $3, {table:#x};", a, b, c)
        np.testing.assert_array_equal(result, value)


def test_shifts():
    distance = (np.arange(64) % 40).astype(U32)
    x = words()
    short = np.minimum(distance, 31)
    left = np.where(distance > 31, 0, x << short).astype(U32)
    np.testing.assert_array_equal(lanes("shl.b32 $0, $1, $2;", x, distance), left)
    right = np.where(distance > 31, 0, x >> short).astype(U32)
    np.testing.assert_array_equal(lanes("shr.u32 $0, $1, $2;", x, distance), right)
    result = lanes("shr.s32 $0, $1, $2;", x, distance)
    np.testing.assert_array_equal(result, (x.view(I32) >> short.astype(I32)).view(U32))
    np.testing.assert_array_equal(lanes("shl.b32 $0, $1, 5;", x), x << 5)
    np.testing.assert_array_equal(lanes("shl.b32 $0, $1, 99;", x), 0 * x)
    y = words()
    both = [int(h) << 32 | int(lo) for lo, h in zip(x, y, strict=True)]
    for mode, limit in (("wrap", lambda d: d & 31), ("clamp", lambda d: min(d, 32))):
        pairs = [(v, limit(int(d))) for v, d in zip(both, distance, strict=True)]
        want = [(v << d >> 32) & 0xFFFFFFFF for v, d in pairs]
        result = lanes(f"shf.l.{mode}.b32 $0, $1, $2, $3;", x, y, distance)
        np.testing.assert_array_equal(result, np.array(want, U32))
        want = [(v >> d) & 0xFFFFFFFF for v, d in pairs]
        result = lanes(f"shf.r.{mode}.b32 $0, $1, $2, $3;", x, y, distance)
        np.testing.assert_array_equal(result, np.array(want, U32))


def extracted(value, position, length, bits, signed):
    """bfe, bit by bit as the PTX manual defines it."""
    top = min(position + length - 1, bits - 1)
    sign = value >> top & 1 if signed and length else 0
    result = 0
    for place in range(bits):
        inside = place < length and position + place < bits
        result |= (value >> position + place & 1 if inside else sign) << place
    return result


@pytest.mark.parametrize("bits", [32, 64])
def test_fields(bits):
    dtype = np.dtype(f"u{bits // 8}")
    x, y = words(128, dtype), words(128, dtype)
    start, length = (random.integers(0, 70, 128).astype(U32) for _ in range(2))
    for kind in "us":
        result = lanes(f"bfe.{kind}{bits} $0, $1, $2, $3;", x, start, length, result=dtype)
        fields = zip(x, start, length, strict=True)
        want = [extracted(*map(int, three), bits, kind == "s") for three in fields]
        np.testing.assert_array_equal(result, np.array(want, dtype))
    mask = [
        ((1 << min(int(n), bits)) - 1) << int(s) & ((1 << bits) - 1)
        for s, n in zip(start, length, strict=True)
    ]
    want = [
        (int(b) & ~m | int(v) << int(s) & m) & ((1 << bits) - 1)
        for v, b, s, m in zip(x, y, start, mask, strict=True)
    ]
    result = lanes(f"bfi.b{bits} $0, $1, $2, $3, $4;", x, y, start, length, result=dtype)
    np.testing.assert_array_equal(result, np.array(want, dtype))


def test_masks_and_extensions():
    start, length = np.array([0, 4, 30, 40], U32), np.array([32, 8, 8, 3], U32)
    result = lanes("bmsk.clamp.b32 $0, $1, $2;", start, length)
    assert [hex(v) for v in result] == ["0xffffffff", "0xff0", "0xc0000000", "0x0"]
    result = lanes("bmsk.wrap.b32 $0, $1, $2;", start, length)
    assert [hex(v) for v in result] == ["0x0", "0xff0", "0xc0000000", "0x700"]
    x, count = np.full(4, 0xABCD80, U32), np.array([8, 7, 0, 33], U32)
    result = lanes("szext.clamp.s32 $0, $1, $2;", x, count)
    assert [hex(v) for v in result] == ["0xffffff80", "0x0", "0x0", "0xabcd80"]
    assert lanes("szext.wrap.u32 $0, $1, $2;", x, count).tolist() == [0x80, 0, 0, 0]


def test_counts():
    x, y = words(), words(dtype=U64)
    for bits, values in ((32, x), (64, y)):
        numbers = [int(v) for v in values]
        result = lanes(f"popc.b{bits} $0, $1;", values)
        assert result.tolist() == [v.bit_count() for v in numbers]
        result = lanes(f"clz.b{bits} $0, $1;", values)
        assert result.tolist() == [bits - v.bit_length() for v in numbers]
        result = lanes(f"brev.b{bits} $0, $1;", values, result=values.dtype)
        assert result.tolist() == [int(f"{v:0{bits}b}"[::-1], 2) for v in numbers]
        result = lanes(f"bfind.u{bits} $0, $1;", values).view(I32)
        assert result.tolist() == [v.bit_length() - 1 for v in numbers]
    signed = np.array([0, -1, 5, -6], I32)
    assert lanes("bfind.s32 $0, $1;", signed).view(I32).tolist() == [-1, -1, 2, 2]
    assert lanes("bfind.shiftamt.s32 $0, $1;", signed).view(I32).tolist() == [-1, -1, 29, 29]


def test_the_nth_set_bit():
    mask = np.full(5, 0b101100, U32)
    base, offset = np.array([0, 0, 5, 2, 1], U32), np.array([1, 3, -2, 0, 0], I32)
    result = lanes("fns.b32 $0, $1, $2, $3;", mask, base, offset)
    assert result.view(I32).tolist() == [2, 5, 3, 2, -1]


def test_permutations_of_bytes():
    a, b = np.full(4, 0x33221100, U32), np.full(4, 0x77665584, U32)
    choice = np.array([0x7531, 0x3210, 0x000C, 0x8888], U32)
    result = lanes("prmt.b32 $0, $1, $2, $3;", a, b, choice)
    assert [hex(v) for v in result] == ["0x77553311", "0x33221100", "0xff", "0x0"]
    control = np.arange(4).astype(U32)
    want = {
        "f4e": ["0x33221100", "0x84332211", "0x55843322", "0x66558433"],
        "b4e": ["0x55667700", "0x66770011", "0x77001122", "0x112233"],
        "rc8": ["0x0", "0x11111111", "0x22222222", "0x33333333"],
        "ecl": ["0x33221100", "0x33221111", "0x33222222", "0x33333333"],
        "ecr": ["0x0", "0x11111100", "0x22221100", "0x33221100"],
        "rc16": ["0x11001100", "0x33223322", "0x11001100", "0x33223322"],
    }
    for mode, values in want.items():
        result = lanes(f"prmt.b32.{mode} $0, $1, $2, $3;", a, b, control)
        assert [hex(v) for v in result] == values, mode


# --- comparisons -------------------------------------------------------------------------

ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def holds(how, a, b):
    unordered = math.isnan(a) or math.isnan(b)
    if how in ("num", "nan"):
        return unordered == (how == "nan")
    if how.endswith("u") and how[:-1] in ORDERED:
        return unordered or holds(how[:-1], a, b)
    answers = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return answers[how] and not unordered


@pytest.mark.parametrize("how", [*ORDERED, *(f"{h}u" for h in ORDERED), "num", "nan"])
def test_comparisons_of_floats(how):
    values = np.array([0.0, -0.0, 1, -1, np.inf, np.nan], F32)
    x, y = (v.reshape(-1).copy() for v in np.meshgrid(values, values))
    want = [holds(how, float(a), float(b)) for a, b in zip(x, y, strict=True)]
    result = lanes(f"setp.{how}.f32 %p1, $1, $2; selp.u32 $0, 1, 0, %p1;", x, y)
    assert result.tolist() == want
    if how in ORDERED:
        for name, dtype in (("f64", "f8"), ("f16", "f2"), ("bf16", BF16)):
            result = lanes(f"set.{how}.u32.{name} $0, $1, $2;", x.astype(dtype), y.astype(dtype))
            assert (result != 0).tolist() == want


def test_comparisons_of_integers_see_the_sign():
    x, y = np.array([-1, 1, 5], I32), np.array([1, 1, -5], I32)
    for how, name, want in (
        ("lt", "s32", [1, 0, 0]),
        ("lt", "u32", [0, 0, 1]),
        ("lo", "u32", [0, 0, 1]),
        ("hs", "u32", [1, 1, 0]),
        ("ls", "u32", [0, 1, 1]),
        ("hi", "u32", [1, 0, 0]),
    ):
        result = lanes(f"setp.{how}.{name} %p1, $1, $2; selp.u32 $0, 1, 0, %p1;", x, y)
        assert result.tolist() == want, (how, name)


def test_comparisons_with_logic_and_two_results():
    x = np.arange(4).astype(U32)
    body = "setp.eq.u32 %p3, $1, 2; setp.lt.{}.u32 %p1|%p2, $1, 3, {}%p3;"
    both = "selp.u32 $0, 1, 0, %p1; @%p2 add.u32 $0, $0, 2;"
    for logic, negation, want in (
        ("and", "", [0, 0, 1, 0]),
        ("or", "", [1, 1, 3, 2]),
        ("xor", "!", [2, 2, 1, 1]),
    ):
        assert lanes(body.format(logic, negation) + both, x).tolist() == want, logic


def test_packed_comparisons():
    low, high = np.array([1, 5], np.float16), np.array([3, 2], np.float16)
    x = np.stack([low, high], 1).view(U32).reshape(-1)
    y = np.full(4, 2.5, np.float16).view(U32)
    result = lanes(
        "setp.lt.f16x2 %p1|%p2, $1, $2; selp.u32 $0, 1, 0, %p1;@%p2 add.u32 $0, $0, 2;", x, y
    )
    assert result.tolist() == [1, 2]
    result = lanes("set.gt.f16x2.f16x2 $0, $1, $2;", x, y)
    assert result.view(np.float16).tolist() == [0, 1, 1, 0]


def test_choices():
    x, y, z = words(), words(), random.standard_normal(64).astype(F32)
    z[0] = -0.0
    result = lanes("slct.b32.f32 $0, $1, $2, $3;", x, y, z)
    np.testing.assert_array_equal(result, np.where(z >= 0, x, y))
    result = lanes("slct.b32.s32 $0, $1, $2, $3;", x, y, z.view(I32))
    np.testing.assert_array_equal(result, np.where(z.view(I32) >= 0, x, y))
    result = lanes("setp.gt.f32 %p1, $3, 0f00000000; selp.b32 $0, $1, $2, %p1;", x, y, z)
    np.testing.assert_array_equal(result, np.where(z > 0, x, y))


# --- moves -------------------------------------------------------------------------------


def test_packing_and_unpacking():
    x = words()
    result = lanes("mov.b32 {%h1, %h2}, $1; mov.b32 $0, {%h2, %h1};", x)
    np.testing.assert_array_equal(result, x << 16 | x >> 16)
    y = words(dtype=U64)
    result = lanes("mov.b64 {%r1, _}, $1; mov.u32 $0, %r1;", y)
    np.testing.assert_array_equal(result, y.astype(U32))
    result = lanes("mov.b64 {%r1, %r2}, $1; mov.b64 $0, {%r1, %r2};", y, result=U64)
    np.testing.assert_array_equal(result, y)


def test_literals():
    want = {"7": 7, "-1": 2**32 - 1, "0xff": 255, "0b101": 5, "12U": 12, "0f3F800000": 0x3F800000}
    for text, value in want.items():
        assert lanes(f"mov.b32 $0, {text};")[0] == value
    assert lanes("mov.f64 $0, 0d3FF0000000000000;", result="f8")[0] == 1
    assert lanes("add.f32 $0, 0f3F800000, 0f40000000;", result=F32)[0] == 3


SPECIAL = {
    "%tid.x": lambda t: t % 4,
    "%tid.y": lambda t: t // 4 % 3,
    "%tid.z": lambda t: t // 12,
    "%ntid.x": lambda t: 4,
    "%ntid.y": lambda t: 3,
    "%ntid.z": lambda t: 4,
    "%ctaid.x": lambda t: 0,
    "%nctaid.x": lambda t: 1,
    "%laneid": lambda t: t % 32,
    "%warpid": lambda t: t // 32,
    "%nwarpid": lambda t: 2,
    "WARP_SZ": lambda t: 32,
    "%lanemask_eq": lambda t: 1 << t % 32,
    "%lanemask_lt": lambda t: (1 << t % 32) - 1,
    "%lanemask_le": lambda t: (2 << t % 32) - 1,
    "%lanemask_gt": lambda t: 2**32 - (2 << t % 32),
    "%smid": lambda t: 0,
    "%lanemask_ge": lambda t: 2**32 - (1 << t % 32),
    "%total_smem_size": lambda t: 64,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_registers(name):
    body = f"""
    mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r1, %r2, 3, %r1;
    mad.lo.u32 %r0, %r1, 4, %r0; mul.wide.u32 %x0, %r0, 4; add.s64 %x1, %x1, %x0;
    mov.u32 %r3, {name}; st.global.u32 [%x1], %r3;"""
    (out,), _ = run(body, [np.zeros(48, U32)], block=(4, 3, 4), shared_bytes=64)
    assert out.tolist() == [SPECIAL[name](t) for t in range(48)]


def test_blocks_of_a_grid():
    body = """
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
    mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
    mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;
    mul.wide.u32 %x0, %r6, 4; add.s64 %x1, %x1, %x0;
    mad.lo.u32 %r7, %r2, 10, %r1; mad.lo.u32 %r7, %r3, 100, %r7; st.global.u32 [%x1], %r7;"""
    (out,), _ = run(body, [np.zeros(24, U32)], grid=(2, 3, 4), threads=1)
    assert out.tolist() == [
        100 * z + 10 * y + x for z in range(4) for y in range(3) for x in range(2)
    ]


def test_unknown_special_registers_are_named():
    with pytest.raises(PtxError, match=r"%envreg3.*Fix: "):
        lanes("mov.u32 $0, %envreg3;")


@pytest.mark.parametrize("counter", ["%clock", "%clock64", "%globaltimer"])
def test_clocks_grow(counter):
    size = "u32" if counter == "%clock" else "u64"
    letter = "r" if size == "u32" else "x"
    result = lanes(
        f"mov.{size} %{letter}20, {counter}; mov.{size} %{letter}21, {counter};"
        f"setp.gt.{size} %p1, %{letter}21, %{letter}20; selp.u32 $0, 1, 0, %p1;"
    )
    assert result.all()
    assert not lanes("mov.u32 $0, %clock_hi;").any()


def test_address_spaces():
    body = """
    cvta.shared.u64 %x5, %x0; isspacep.shared %p1, %x5; isspacep.global %p2, %x5;
    isspacep.global %p3, %x1; isspacep.local %p4, %x5;
    selp.u32 %r1, 1, 0, %p1; @%p2 add.u32 %r1, %r1, 2; @%p3 add.u32 %r1, %r1, 4;
    @%p4 add.u32 %r1, %r1, 8; cvta.to.shared.u64 %x6, %x5; cvt.u32.u64 %r2, %x6;
    mad.lo.u32 %r1, %r2, 100, %r1; add.s64 %x1, %x1, %x0; st.global.u32 [%x1], %r1;"""
    (out,), _ = run(body, [np.zeros(64, U32)])
    assert out[::2].tolist() == [800 * t + 5 for t in range(32)]


def test_what_changes_nothing():
    for text in (
        "membar.gl",
        "fence.acq_rel.gpu",
        "fence.proxy.async",
        "prefetch.global.L2 [%x1]",
        "prefetchu.L1 [%x1]",
        "nanosleep.u32 20",
        "griddepcontrol.wait",
        "pmevent.mask 1",
        "applypriority.global.L2::evict_normal [%x1], 128",
    ):
        assert lanes(f"mov.u32 $0, 3; {text};").tolist() == [3] * 32


# --- conversions -------------------------------------------------------------------------


def test_integers_to_integers():
    x = words().view(I32)
    for name, dtype in (("u8", "u1"), ("s8", "i1"), ("u16", "u2"), ("s16", "i2")):
        result = lanes(f"cvt.{name}.s32 $0, $1;", x, result=I32)
        np.testing.assert_array_equal(result, x.astype(dtype).astype(I32))
        info = np.iinfo(dtype)
        result = lanes(f"cvt.sat.{name}.s32 $0, $1;", x, result=I32)
        np.testing.assert_array_equal(result, np.clip(x, info.min, info.max))
    np.testing.assert_array_equal(lanes("cvt.s64.s32 $0, $1;", x, result="i8"), x)
    np.testing.assert_array_equal(lanes("cvt.u64.u32 $0, $1;", x, result=U64), x.view(U32))
    np.testing.assert_array_equal(lanes("cvt.s32.s8 $0, $1;", x, result=I32), x.astype("i1"))


@pytest.mark.parametrize("how", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_whole_numbers(how):
    function = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[how]
    x = np.append(random.standard_normal(50) * 9, [0.5, 1.5, 2.5, -0.5, -1.5, -0.0]).astype(F32)
    np.testing.assert_array_equal(lanes(f"cvt.{how}.f32.f32 $0, $1;", x, result=F32), function(x))
    np.testing.assert_array_equal(lanes(f"cvt.{how}.s32.f32 $0, $1;", x, result=I32), function(x))
    result = lanes(f"cvt.{how}.s64.f64 $0, $1;", x.astype(float), result="i8")
    np.testing.assert_array_equal(result, function(x))
    result = lanes(f"cvt.{how}.s32.bf16 $0, $1;", x.astype(BF16), result=I32)
    np.testing.assert_array_equal(result, function(x.astype(BF16).astype(F32)))


def test_floats_out_of_range_saturate():
    x = np.array([1e20, -1e20, np.inf, -np.inf, np.nan, 300, -3], F32)
    result = lanes("cvt.rzi.s32.f32 $0, $1;", x, result=I32)
    assert result.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 300, -3]
    assert lanes("cvt.rzi.u8.f32 $0, $1;", x).tolist() == [255, 0, 255, 0, 0, 255, 0]
    result = lanes("cvt.rzi.u64.f32 $0, $1;", x, result=U64)
    assert result.tolist() == [2**64 - 1, 0, 2**64 - 1, 0, 2**63, 300, 0]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_rounding_of_conversions(mode):
    x = np.append(random.standard_normal(64), [1e300, -1e300, 1e-300, 1 + 2.0**-24]).astype(float)
    for name, dtype in (("f32", F32), ("f16", np.float16), ("bf16", BF16)):
        near = lanes(f"cvt.{mode}.{name}.f64 $0, $1;", x, result=dtype).astype(float)
        error = near - x
        ok = {
            "rn": ~np.isnan(near),
            "rz": np.abs(near) <= np.abs(x),
            "rm": error <= 0,
            "rp": error >= 0,
        }[mode]
        assert ok.all()
        precision = {"f32": 24, "f16": 11, "bf16": 8}[name]
        limit = np.abs(x[:64]) * 2.0 ** (-precision + (mode != "rn"))
        assert (np.abs(error[:64]) <= limit + 2.0**-24).all()
    single = x[:64].astype(F32)
    result = lanes("cvt.rn.bf16.f32 $0, $1;", single, result=BF16)
    np.testing.assert_array_equal(result.astype(F32), single.astype(BF16).astype(F32))
    np.testing.assert_array_equal(lanes("cvt.f64.f32 $0, $1;", single, result="f8"), single)


def test_integers_to_floats():
    x = np.array([0, -1, 2**24 + 1, 2**62 + 2**37 + 1, -(2**62) - 2**38 - 1], np.int64)
    np.testing.assert_array_equal(lanes("cvt.rn.f32.s64 $0, $1;", x, result=F32), x.astype(F32))
    down = lanes("cvt.rm.f32.s64 $0, $1;", x, result=F32)
    up = lanes("cvt.rp.f32.s64 $0, $1;", x, result=F32)
    assert all(int(a) <= int(v) <= int(b) for a, v, b in zip(down, x, up, strict=True))
    assert (up > down).tolist() == [False, False, True, True, True]
    assert lanes("cvt.rz.f64.s64 $0, $1;", np.array([2**53 + 1]), result="f8")[0] == 2**53
    result = lanes("cvt.rn.bf16.s32 $0, $1;", np.array([257, 259], I32), result=BF16)
    assert result.astype(float).tolist() == [256, 260]
    assert lanes("cvt.rn.f16.u32 $0, $1;", np.array([7], U32), result="f2")[0] == 7


def test_conversions_that_saturate_floats():
    x = np.array([-1, 0.5, 2, np.nan], F32)
    assert lanes("cvt.sat.f32.f32 $0, $1;", x, result=F32).tolist() == [0, 0.5, 1, 0]
    assert lanes("cvt.rn.relu.f16.f32 $0, $1;", x, result="f2")[:3].tolist() == [0, 0.5, 2]
    tiny = np.array([1e-40], F32)
    assert lanes("cvt.ftz.f64.f32 $0, $1;", tiny, result="f8")[0] == 0


def test_conversions_of_pairs():
    x, y = (random.standard_normal(32).astype(F32) for _ in range(2))
    for name, dtype in (("f16x2", np.float16), ("bf16x2", BF16)):
        result = lanes(f"cvt.rn.{name}.f32 $0, $1, $2;", x, y).view(dtype).reshape(-1, 2)
        np.testing.assert_array_equal(result[:, 1].astype(F32), x.astype(dtype).astype(F32))
        np.testing.assert_array_equal(result[:, 0].astype(F32), y.astype(dtype).astype(F32))
    big = np.array([1000, 1.1], F32)
    small = np.array([-2, -1e9], F32)
    for name, dtype in (("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)):
        result = lanes(f"cvt.rn.satfinite.{name}.f32 $0, $1, $2;", big, small, result=np.uint16)
        most = float(ml_dtypes.finfo(dtype).max)
        want = np.array([[-2, min(1000, most)], [-most, 1.1]]).astype(dtype)
        pairs = result.view(dtype).reshape(-1, 2).astype(F32)
        np.testing.assert_array_equal(pairs, want.astype(F32))
        back = lanes(f"cvt.rn.f16x2.{name} $0, $1;", result).view(np.float16).reshape(-1, 2)
        np.testing.assert_array_equal(back.astype(F32), want.astype(F32))


def test_tf32_keeps_ten_bits():
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11], F32)
    assert lanes("cvt.rna.tf32.f32 $0, $1;", x).view(F32).tolist() == [
        1 + 2.0**-10,
        1 + 2 * 2.0**-10,
        -1 - 2.0**-10,
    ]
    assert lanes("cvt.rn.tf32.f32 $0, $1;", x).view(F32).tolist() == [1, 1 + 2 * 2.0**-10, -1]


# --- video -------------------------------------------------------------------------------


def test_video_instructions():
    x, y, z = words(), words(), words()
    a, b = x.view(I32).astype(np.int64), y.view(I32).astype(np.int64)
    for opcode, exact in (
        ("vadd", a + b),
        ("vsub", a - b),
        ("vabsdiff", abs(a - b)),
        ("vmin", np.minimum(a, b)),
        ("vmax", np.maximum(a, b)),
    ):
        result = lanes(f"{opcode}.s32.s32.s32 $0, $1, $2;", x, y)
        np.testing.assert_array_equal(result, exact.astype(U32))
        result = lanes(f"{opcode}.s32.s32.s32.sat $0, $1, $2;", x, y).view(I32)
        np.testing.assert_array_equal(result, np.clip(exact, -(2**31), 2**31 - 1))
    result = lanes("vadd.u32.u32.u32.add $0, $1.b1, $2.h1, $3;", x, y, z)
    np.testing.assert_array_equal(result, (x >> 8 & 255) + (y >> 16) + z)
    np.testing.assert_array_equal(lanes("vshl.u32.u32.u32.wrap $0, $1, $2;", x, y), x << (y & 31))
    np.testing.assert_array_equal(lanes("vshr.u32.u32.u32.wrap $0, $1, $2;", x, y), x >> (y & 31))


PARALLEL = {
    "vadd2": 2,
    "vadd4": 4,
    "vsub2": 2,
    "vsub4": 4,
    "vavrg2": 2,
    "vavrg4": 4,
    "vabsdiff2": 2,
    "vabsdiff4": 4,
    "vmin2": 2,
    "vmin4": 4,
    "vmax2": 2,
    "vmax4": 4,
}


@pytest.mark.parametrize("opcode", PARALLEL)
def test_video_instructions_of_several_parts(opcode):
    parts = PARALLEL[opcode]
    part = np.dtype(f"u{4 // parts}")
    x, y, zero = words(), words(), np.zeros(64, U32)
    a, b = x.view(part).astype(int), y.view(part).astype(int)
    exact = {
        "vadd": a + b,
        "vsub": a - b,
        "vavrg": (a + b + 1) >> 1,
        "vabsdiff": abs(a - b),
        "vmin": np.minimum(a, b),
        "vmax": np.maximum(a, b),
    }[opcode[:-1]]
    result = lanes(f"{opcode}.u32.u32.u32 $0, $1, $2, $3;", x, y, zero)
    np.testing.assert_array_equal(result.view(part), exact.astype(part))
    result = lanes(f"{opcode}.u32.u32.u32.add $0, $1, $2, $3;", x, y, x)
    np.testing.assert_array_equal(result, (exact.reshape(-1, parts).sum(1) + x).astype(U32))
