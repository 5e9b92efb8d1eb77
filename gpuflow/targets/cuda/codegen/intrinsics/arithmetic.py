"""Numba intrinsics for arithmetic that Numba lacks, or defines differently from KernelIR.

docs/kernel_ir.md defines operations that are undefined on a GPU: division by zero, shifts by the
width or more, conversions of nan and of values out of range. Max and min treat nan and -0.0 as
defined there, too.

Tests: tests/targets/cuda/test_cuda_scalar.py, tests/targets/cuda/test_cuda_halves.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.kir.scalar import FLOAT8_DTYPES
from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda
from gpuflow.targets.llvm.ir_values import IRValue, cast
from gpuflow.targets.llvm.narrow_formats import NARROW_FORMATS, narrow_by_bits, widen_by_bits

if TYPE_CHECKING:
    from llvmlite.ir import NamedValue, Type

# Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and table 2.
THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREEFRY_PARITY = 0x1BD11BDA


def arithmetic_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All intrinsics of this module by name."""
    return {
        **_extremes(tools),
        **_conversions(tools),
        **_half_conversions(tools),
        **_float8_conversions(tools),
        **_integer_division(tools),
        **_bit_functions(tools),
        **_random_bits(tools),
    }


# Numba calls the body of an intrinsic with the types of its arguments (and a typing context). It
# returns the signature and an emitter, or None if it does not support the types. The emitter gets
# llvmlite's builder and the arguments' LLVM values.


def _by_name(*functions: Any) -> dict[str, Any]:
    """Intrinsics by the names that printed source calls."""
    return {function._name: function for function in functions}


def _asm(
    ir: ModuleType, builder: Any, text: str, constraints: str, result: Type, args: list[NamedValue]
) -> NamedValue:
    """Emit one PTX instruction without side effects; returns its result."""
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(ir.InlineAsm(function_type, text, constraints), args)


def _extremes(tools: NumbaCuda) -> dict[str, Any]:
    """Float maximum and minimum: nan if any operand is nan; -0.0 is less than 0.0."""
    ir, types = tools.llvm, tools.types

    def emit(mnemonic):
        def emit_extreme(context, builder, signature, args):
            float_type = args[0].type
            if float_type == ir.FloatType():
                text = f"{mnemonic}.NaN.f32 $0, $1, $2;"
                return _asm(ir, builder, text, "=f,f,f", float_type, args)
            # There is no NaN form for float64; x + y is nan when either is.
            text = f"{mnemonic}.f64 $0, $1, $2;"
            extreme = _asm(ir, builder, text, "=d,d,d", float_type, args)
            unordered = builder.fcmp_unordered("uno", *args)
            return builder.select(unordered, builder.fadd(*args), extreme)

        return emit_extreme

    @tools.intrinsic
    def maximum(typingctx, x, y):
        return (x(x, y), emit("max")) if isinstance(x, types.Float) and x == y else None

    @tools.intrinsic
    def minimum(typingctx, x, y):
        return (x(x, y), emit("min")) if isinstance(x, types.Float) and x == y else None

    return _by_name(maximum, minimum)


def _conversions(tools: NumbaCuda) -> dict[str, Any]:
    """Float to integer with saturation, and reinterpretation of bits."""
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def saturate(typingctx, value, dtype):
        """Float32 or float64 to integer: truncates, and saturates to the range of ``dtype``.

        Nan gives 0.
        """
        target = dtype.instance_type

        def emit(context, builder, signature, args):
            source, bits = args[0].type, target.bitwidth
            wide = ir.IntType(max(bits, 32))
            sign = "s" if target.signed else "u"
            letter = "d" if source == ir.DoubleType() else "f"
            source_bits = 64 if source == ir.DoubleType() else 32
            # cvt saturates at the range of 32 and 64 bits; only for 64 it does not map nan to 0.
            text = f"cvt.rzi.{sign}{wide.width}.f{source_bits} $0, $1;"
            register = "l" if wide.width == 64 else "r"
            result = _asm(ir, builder, text, f"={register},{letter}", wide, [args[0]])
            if bits < 32:
                result = _clamp(ir, builder, result, target)
                result = builder.trunc(result, ir.IntType(bits))
            is_nan = builder.fcmp_unordered("uno", args[0], args[0])
            return builder.select(is_nan, ir.Constant(result.type, 0), result)

        return target(value, dtype), emit

    @tools.intrinsic
    def bitcast(typingctx, value, dtype):
        """The same bits as another type of the same width; None for other widths."""
        target = dtype.instance_type

        def emit(context, builder, signature, args):
            return builder.bitcast(args[0], context.get_value_type(target))

        plain = types.unliteral(value)
        return (target(plain, dtype), emit) if plain.bitwidth == target.bitwidth else None

    return _by_name(saturate, bitcast)


def _clamp(ir: ModuleType, builder: Any, value: NamedValue, target: Any) -> NamedValue:
    """Keep a 32-bit integer within the range of a narrower type."""
    compare = builder.icmp_signed if target.signed else builder.icmp_unsigned
    for limit, side in ((target.minval, "<"), (target.maxval, ">")):
        bound = ir.Constant(value.type, limit)
        value = builder.select(compare(side, value, bound), bound, value)
    return value


def _half_conversions(tools: NumbaCuda) -> dict[str, Any]:
    """Conversions between float32 and the 16 bits of a bfloat16 or float16, to nearest even.

    A pair is rounded, with zero as the other value. ``cvt.rn.bf16.f32`` of a single value becomes
    F2F, for which a multiprocessor has few units. That of a pair becomes F2FP, which runs on the
    arithmetic units (in the SASS of sm_80, sm_90 and sm_100; not measured on a GPU).
    """
    ir, types = tools.llvm, tools.types
    half, i32, single = ir.IntType(16), ir.IntType(32), ir.FloatType()

    def round_pair(builder, ptx_type, high, low):
        text = f"cvt.rn.{ptx_type}x2.f32 $0, $1, $2;"
        return _asm(ir, builder, text, "=r,f,f", i32, [high, low])

    zero = ir.Constant(single, 0.0)

    @tools.intrinsic
    def bfloat16_to_float32(typingctx, bits):
        def emit(context, builder, signature, args):
            wide = builder.shl(builder.zext(args[0], i32), ir.Constant(i32, 16))
            return builder.bitcast(wide, single)

        return types.float32(types.uint16), emit

    @tools.intrinsic
    def float32_to_bfloat16(typingctx, value):
        def emit(context, builder, signature, args):
            return builder.trunc(round_pair(builder, "bf16", zero, args[0]), half)

        return types.uint16(types.float32), emit

    @tools.intrinsic
    def round_to_bfloat16(typingctx, value):
        """Round a float32 to the nearest bfloat16, as a float32 whose lower 16 bits are 0."""

        def emit(context, builder, signature, args):
            return builder.bitcast(round_pair(builder, "bf16", args[0], zero), single)

        return types.float32(types.float32), emit

    @tools.intrinsic
    def float16_to_float32(typingctx, bits):
        def emit(context, builder, signature, args):
            return _asm(ir, builder, "cvt.f32.f16 $0, $1;", "=f,h", single, args)

        return types.float32(types.uint16), emit

    @tools.intrinsic
    def float32_to_float16(typingctx, value):
        def emit(context, builder, signature, args):
            return builder.trunc(round_pair(builder, "f16", zero, args[0]), half)

        return types.uint16(types.float32), emit

    return _by_name(
        bfloat16_to_float32,
        float32_to_bfloat16,
        round_to_bfloat16,
        float16_to_float32,
        float32_to_float16,
    )


def _float8_conversions(tools: NumbaCuda) -> dict[str, Any]:
    """Conversions between float32 and the 8 bits of each float8, in integer arithmetic.

    Only two of the formats have instructions, and those only from compute capability 8.9.
    """
    types = tools.types

    def conversions_of(storage):
        float_format = NARROW_FORMATS[storage]

        @tools.intrinsic
        def widen(typingctx, bits):
            def emit(context, builder, signature, args):
                code = cast(IRValue(builder, args[0], "uint8"), "uint32")
                return widen_by_bits(code, float_format).value

            return types.float32(types.uint8), emit

        @tools.intrinsic
        def narrow(typingctx, value):
            def emit(context, builder, signature, args):
                code = narrow_by_bits(IRValue(builder, args[0], "float32"), float_format)
                return cast(code, "uint8").value

            return types.uint8(types.float32), emit

        return {f"{storage}_to_float32": widen, f"float32_to_{storage}": narrow}

    return {name: function for s in FLOAT8_DTYPES for name, function in conversions_of(s).items()}


def _integer_division(tools: NumbaCuda) -> dict[str, Any]:
    """Truncating integer division, which is defined for all operands."""
    ir, types = tools.llvm, tools.types

    def safe_divisor(builder, signed, x, y):
        """``y``, or 1 if the machine's division is undefined; and whether ``y`` is zero."""
        zero, one = ir.Constant(y.type, 0), ir.Constant(y.type, 1)
        by_zero = builder.icmp_unsigned("==", y, zero)
        undefined = by_zero
        if signed:
            # INT_MIN / -1 overflows; with the divisor 1 the quotient is INT_MIN, as it must be.
            least = ir.Constant(y.type, -(1 << (y.type.width - 1)))
            overflow = builder.and_(
                builder.icmp_unsigned("==", x, least),
                builder.icmp_unsigned("==", y, ir.Constant(y.type, -1)),
            )
            undefined = builder.or_(by_zero, overflow)
        return builder.select(undefined, one, y), by_zero

    def emit_divide(context, builder, signature, args):
        signed = signature.return_type.signed
        divisor, by_zero = safe_divisor(builder, signed, *args)
        divide = builder.sdiv if signed else builder.udiv
        quotient = divide(args[0], divisor)
        return builder.select(by_zero, ir.Constant(quotient.type, -1), quotient)

    def emit_remainder(context, builder, signature, args):
        signed = signature.return_type.signed
        divisor, by_zero = safe_divisor(builder, signed, *args)
        remainder = (builder.srem if signed else builder.urem)(args[0], divisor)
        return builder.select(by_zero, args[0], remainder)

    def integers(x, y):
        return isinstance(x, types.Integer) and types.unliteral(x) == types.unliteral(y)

    def emit_split(context, builder, signature, args):
        quotient = builder.udiv(*args)
        remainder = builder.sub(args[0], builder.mul(quotient, args[1]))
        return context.make_tuple(builder, signature.return_type, (quotient, remainder))

    def emit_next(context, builder, signature, args):
        index_type = signature.return_type
        index, step = (
            context.cast(builder, operand, operand_type, index_type)
            for operand, operand_type in zip(args, signature.args, strict=True)
        )
        return builder.add(index, step, flags=["nsw"])

    @tools.intrinsic
    def split_index(typingctx, index, extent):
        """Quotient and remainder of an index by an extent, in their common integer type.

        The index must not be negative, the extent must be positive: nothing checks for 0.
        """
        index_type = types.unliteral(index)
        if index_type != types.unliteral(extent):
            return None
        return types.UniTuple(index_type, 2)(index_type, index_type), emit_split

    @tools.intrinsic
    def next_index(typingctx, index, step):
        """The sum of an index and a step, in the index's type; it must not overflow.

        LLVM relies on that to compute trip counts, as it does for Numba's sums of 64 bits.
        """
        return types.unliteral(index)(index, step), emit_next

    @tools.intrinsic
    def divide_integers(typingctx, x, y):
        return (x(x, y), emit_divide) if integers(x, y) else None

    @tools.intrinsic
    def remainder_integers(typingctx, x, y):
        return (x(x, y), emit_remainder) if integers(x, y) else None

    return _by_name(split_index, next_index, divide_integers, remainder_integers)


def _bit_functions(tools: NumbaCuda) -> dict[str, Any]:
    """Shifts that are defined for all distances, and counts of bits."""
    ir = tools.llvm

    def out_of_range(builder, distance):
        width = ir.Constant(distance.type, distance.type.width)
        return builder.icmp_unsigned(">=", distance, width)

    def emit_zero_filling(name):
        def emit(context, builder, signature, args):
            shifted = getattr(builder, name)(*args)
            zero = ir.Constant(shifted.type, 0)
            return builder.select(out_of_range(builder, args[1]), zero, shifted)

        return emit

    def emit_sign_filling(context, builder, signature, args):
        longest = ir.Constant(args[1].type, args[1].type.width - 1)
        distance = builder.select(out_of_range(builder, args[1]), longest, args[1])
        return builder.ashr(args[0], distance)

    def emit_population(context, builder, signature, args):
        return builder.ctpop(args[0])

    def emit_leading_zeros(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    @tools.intrinsic
    def shift_left_bits(typingctx, value, distance):
        return value(value, distance), emit_zero_filling("shl")

    @tools.intrinsic
    def shift_right_zeros(typingctx, value, distance):
        return value(value, distance), emit_zero_filling("lshr")

    @tools.intrinsic
    def shift_right_sign(typingctx, value, distance):
        return value(value, distance), emit_sign_filling

    @tools.intrinsic
    def count_ones(typingctx, value):
        return value(value), emit_population

    @tools.intrinsic
    def count_leading_zeros(typingctx, value):
        return value(value), emit_leading_zeros

    return _by_name(
        shift_left_bits, shift_right_zeros, shift_right_sign, count_ones, count_leading_zeros
    )


def _random_bits(tools: NumbaCuda) -> dict[str, Any]:
    """The counter-based generator of ``gpuflow.random``."""
    ir, types = tools.llvm, tools.types
    i32 = ir.IntType(32)

    def constant(value):
        return ir.Constant(i32, value)

    def rotate_left(builder, value, distance):
        left = builder.shl(value, constant(distance))
        return builder.or_(left, builder.lshr(value, constant(32 - distance)))

    def emit_threefry(context, builder, signature, args):
        key0, key1, x0, x1 = args
        parity = builder.xor(builder.xor(key0, key1), constant(THREEFRY_PARITY))
        keys = (key0, key1, parity)
        x0, x1 = builder.add(x0, key0), builder.add(x1, key1)
        for group in range(5):  # of four rounds; a key is injected after each
            for distance in THREEFRY_ROTATIONS[group % 2]:
                x0 = builder.add(x0, x1)
                x1 = builder.xor(rotate_left(builder, x1, distance), x0)
            x0 = builder.add(x0, keys[(group + 1) % 3])
            x1 = builder.add(x1, keys[(group + 2) % 3])
            x1 = builder.add(x1, constant(group + 1))
        return context.make_tuple(builder, signature.return_type, (x0, x1))

    @tools.intrinsic
    def threefry2x32(typingctx, key0, key1, x0, x1):
        """Threefry-2x32 with 20 rounds: two random uint32 from a key and a counter (x0, x1)."""
        unsigned = types.uint32
        result = types.UniTuple(unsigned, 2)
        return result(unsigned, unsigned, unsigned, unsigned), emit_threefry

    return _by_name(threefry2x32)
