"""Numba intrinsics for tensor cores, arrays in registers, and asynchronous copies.

Handwritten kernels use them. An array is in registers if it is a ``local_array`` and its indices
are constants after loops are unrolled. Matrix instructions take such arrays, each with the index at
which a fragment starts.

    load_matrices     loads four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8i to
                      8i + 7 pass the starts of the rows of matrix i, aligned to 16 bytes
    multiply_*        acc[16 x 8] += a[16 x 16] @ b[16 x 8], with float32 acc and 16-bit a and b
                      tensorfloat32: a[16 x 8] @ b[8 x 8], of float32 whose last 13 bits are ignored
    copy_async        copies 16 bytes from global to shared memory; copy_commit ends a group of
                      copies, copy_wait(n) waits until at most n groups are pending

Source of the layout of fragments: PTX manual, "Matrix fragments for mma.m16n8k16" and "m16n8k8".
Fragments are uint32: a pair of 16-bit elements, the first in the lower half, or the bits of a
float32. ``load_matrices`` loads four float32 as a row of eight 16-bit elements, which gives each
lane the elements that m16n8k8 expects.

Tests: tests/targets/cuda/test_handwritten.py, tests/kernels/test_kernel_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.targets.cuda.codegen.toolchain import NumbaCuda

if TYPE_CHECKING:
    from llvmlite.ir import InlineAsm, NamedValue

# Numba's code generator of an intrinsic: (context, builder, signature, args) -> result.
Emit = Callable[[Any, Any, Any, Any], Any]

# The last operand is the number of bytes to read; the others of the 16 become zeros.
_COPY = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
_SHARED_ALIGNMENT = 16  # bytes; rows of ``load_matrices`` and asynchronous copies require it
# PTX's names of operand types of matrix instructions.
_PTX_TYPES = {"bfloat16": "bf16", "float16": "f16", "tensorfloat32": "tf32"}


def matrix_intrinsics(tools: NumbaCuda) -> dict[str, Any]:
    """All intrinsics of this module by name."""
    return {
        **_arrays(tools),
        **_copies(tools),
        **_loads(tools),
        **_products(tools),
        **_scalars(tools),
    }


def _by_name(*functions: Any) -> dict[str, Any]:
    """Intrinsics by the names that kernels call."""
    return {function._name: function for function in functions}


def call_convergent(builder: Any, asm: InlineAsm, args: list[NamedValue]) -> NamedValue:
    """Emit a call that all threads of a warp must execute together: LLVM keeps it out of branches.

    The calling function becomes convergent too, because LLVM may move its calls before it inlines
    it.
    """
    builder.function.attributes.add("convergent")
    return builder.call(asm, args, attrs=("convergent",))


def _shared_address(
    ir: ModuleType, builder: Any, pointer: NamedValue, index: NamedValue
) -> NamedValue:
    """The 32-bit address of ``pointer[index]`` in shared memory."""
    address = builder.gep(pointer, [index])
    shared = builder.addrspacecast(address, ir.PointerType(address.type.pointee, addrspace=3))
    return builder.ptrtoint(shared, ir.IntType(32))


def _element(
    ir: ModuleType, builder: Any, array: NamedValue, at: NamedValue, offset: int
) -> NamedValue:
    """A pointer to ``array[at + offset]``, of an array in registers."""
    return builder.gep(array, [builder.add(at, ir.Constant(at.type, offset))])


def _arrays(tools: NumbaCuda) -> dict[str, Any]:
    """Arrays of a thread, and the dynamic shared memory of a block."""
    ir, types = tools.llvm, tools.types

    @tools.intrinsic
    def local_array(typingctx, dtype, count):
        """A pointer to ``count`` uninitialized elements of this thread; ``count`` is a literal."""
        if not isinstance(count, types.IntegerLiteral):
            return None  # Numba retries with the literal
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            array_type = ir.ArrayType(context.get_data_type(element), count.literal_value)
            with builder.goto_entry_block():
                array = builder.alloca(array_type)
            return builder.bitcast(array, array_type.element.as_pointer())

        return types.CPointer(element)(dtype, count), emit

    @tools.intrinsic
    def dynamic_shared(typingctx, dtype):
        """A pointer to the dynamic shared memory of the block; the same for all calls."""
        element = dtype.instance_type

        def emit(context, builder, signature, args):
            name, array_type = "dynamic_shared", ir.ArrayType(ir.IntType(8), 0)
            memory = builder.module.globals.get(name)
            if memory is None:
                memory = ir.GlobalVariable(builder.module, array_type, name, addrspace=3)
                memory.linkage = "external"
                memory.align = _SHARED_ALIGNMENT
            generic = builder.addrspacecast(memory, array_type.as_pointer())
            return builder.bitcast(generic, context.get_data_type(element).as_pointer())

        return types.CPointer(element)(dtype), emit

    return _by_name(local_array, dynamic_shared)


def _copies(tools: NumbaCuda) -> dict[str, Any]:
    """Asynchronous copies from global to shared memory."""
    ir, types = tools.llvm, tools.types
    i32, void = ir.IntType(32), ir.VoidType()

    @tools.intrinsic
    def copy_async(typingctx, shared, at, source, index, predicate):
        """Start to copy 16 bytes; if ``predicate`` is false, store zeros and read nothing.

        ``shared[at]`` and ``source[index]`` must be aligned to 16 bytes. The copy is complete for
        this thread after ``copy_commit`` and ``copy_wait``; other threads need a barrier, too.
        """

        def emit(context, builder, signature, args):
            target = _shared_address(ir, builder, args[0], args[1])
            address = builder.gep(args[2], [args[3]])
            in_global = ir.PointerType(address.type.pointee, addrspace=1)
            address = builder.ptrtoint(builder.addrspacecast(address, in_global), ir.IntType(64))
            flag = context.cast(builder, args[4], signature.args[4], types.boolean)
            size = builder.select(flag, ir.Constant(i32, 16), ir.Constant(i32, 0))
            function_type = ir.FunctionType(void, [i32, address.type, i32])
            asm = ir.InlineAsm(function_type, _COPY, "r,l,r,~{memory}", side_effect=True)
            builder.call(asm, [target, address, size])
            return context.get_dummy_value()

        return types.void(shared, at, source, index, predicate), emit

    def emit_statement(builder: Any, text: str) -> None:
        asm = ir.InlineAsm(ir.FunctionType(void, []), text, "~{memory}", side_effect=True)
        builder.call(asm, [])

    @tools.intrinsic
    def copy_commit(typingctx):
        """End a group of copies."""

        def emit(context, builder, signature, args):
            emit_statement(builder, "cp.async.commit_group;")
            return context.get_dummy_value()

        return types.void(), emit

    @tools.intrinsic
    def copy_wait(typingctx, pending):
        """Wait until at most ``pending`` groups of this thread are in flight."""
        if not isinstance(pending, types.IntegerLiteral):
            return None

        def emit(context, builder, signature, args):
            emit_statement(builder, f"cp.async.wait_group {pending.literal_value};")
            return context.get_dummy_value()

        return types.void(pending), emit

    return _by_name(copy_async, copy_commit, copy_wait)


def _loads(tools: NumbaCuda) -> dict[str, Any]:
    """Loads of fragments from shared memory."""
    ir, types = tools.llvm, tools.types
    i32 = ir.IntType(32)

    def emitter(transposed: str) -> Emit:
        text = f"ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{$0,$1,$2,$3}}, [$4];"

        def emit(context, builder, signature, args):
            address = _shared_address(ir, builder, args[2], args[3])
            function_type = ir.FunctionType(ir.LiteralStructType([i32] * 4), [i32])
            asm = ir.InlineAsm(function_type, text, "=r,=r,=r,=r,r,~{memory}", side_effect=True)
            loaded = call_convergent(builder, asm, [address])
            for k in range(4):
                value = builder.extract_value(loaded, k)
                builder.store(value, _element(ir, builder, args[0], args[1], k))
            return context.get_dummy_value()

        return emit

    @tools.intrinsic
    def load_matrices(typingctx, target, at, shared, index):
        """Load four matrices to ``target[at:+4]``; ``shared[index]`` starts this lane's row.

        All lanes of the warp must call it together. Rows must be aligned to 16 bytes.
        """
        return types.void(target, at, shared, index), emitter("")

    @tools.intrinsic
    def load_matrices_transposed(typingctx, target, at, shared, index):
        """``load_matrices``, with each matrix transposed."""
        return types.void(target, at, shared, index), emitter(".trans")

    return _by_name(load_matrices, load_matrices_transposed)


def _products(tools: NumbaCuda) -> dict[str, Any]:
    """Matrix instructions; all lanes of the warp must call them together."""
    ir, types = tools.llvm, tools.types
    i32, f32 = ir.IntType(32), ir.FloatType()

    def emitter(dtype: str) -> Emit:
        ptx_type, depth = _PTX_TYPES[dtype], 8 if dtype == "tensorfloat32" else 16
        text = (
            f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{ptx_type}.{ptx_type}.f32 "
            "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        )
        constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)

        def emit(context, builder, signature, args):
            acc, acc_at, a, a_at, b, b_at = args
            pointers = [_element(ir, builder, acc, acc_at, k) for k in range(4)]
            values = [builder.load(_element(ir, builder, a, a_at, k)) for k in range(4)]
            values += [builder.load(_element(ir, builder, b, b_at, k)) for k in range(2)]
            values += [builder.load(pointer) for pointer in pointers]
            result = ir.LiteralStructType([f32] * 4)
            function = ir.FunctionType(result, [i32] * 6 + [f32] * 4)
            sums = call_convergent(builder, ir.InlineAsm(function, text, constraints), values)
            for k, pointer in enumerate(pointers):
                builder.store(builder.extract_value(sums, k), pointer)
            return context.get_dummy_value()

        return emit

    @tools.intrinsic
    def multiply_bfloat16(typingctx, acc, acc_at, a, a_at, b, b_at):
        """``acc[acc_at:+4] += a[a_at:+4] @ b[b_at:+2]``."""
        return types.void(acc, acc_at, a, a_at, b, b_at), emitter("bfloat16")

    @tools.intrinsic
    def multiply_float16(typingctx, acc, acc_at, a, a_at, b, b_at):
        """``acc[acc_at:+4] += a[a_at:+4] @ b[b_at:+2]``."""
        return types.void(acc, acc_at, a, a_at, b, b_at), emitter("float16")

    @tools.intrinsic
    def multiply_tensorfloat32(typingctx, acc, acc_at, a, a_at, b, b_at):
        """``acc[acc_at:+4] += a[a_at:+4] @ b[b_at:+2]``."""
        return types.void(acc, acc_at, a, a_at, b, b_at), emitter("tensorfloat32")

    return _by_name(multiply_bfloat16, multiply_float16, multiply_tensorfloat32)


def _scalars(tools: NumbaCuda) -> dict[str, Any]:
    """Conversions of scalars to operands of matrix instructions, and ``exp2_approximate``."""
    ir, types = tools.llvm, tools.types
    i32, f32 = ir.IntType(32), ir.FloatType()

    def packer(dtype: str) -> tuple[Any, Emit]:
        def emit(context, builder, signature, args):
            function_type = ir.FunctionType(i32, [f32, f32])
            text = f"cvt.rn.{_PTX_TYPES[dtype]}x2.f32 $0, $2, $1;"
            return builder.call(ir.InlineAsm(function_type, text, "=r,f,f"), args)

        return types.uint32(types.float32, types.float32), emit

    @tools.intrinsic
    def pack_bfloat16(typingctx, low, high):
        """Round two float32 to a pair of bfloat16 in a uint32."""
        return packer("bfloat16")

    @tools.intrinsic
    def pack_float16(typingctx, low, high):
        """Round two float32 to a pair of float16 in a uint32."""
        return packer("float16")

    @tools.intrinsic
    def round_tensorfloat32(typingctx, values, at, count):
        """Round ``count`` float32 to 10 fraction bits in place; ties away from zero.

        ``values[at:+count]`` are their bits, uint32; ``count`` is a literal.
        """
        if not isinstance(count, types.IntegerLiteral):
            return None

        def emit(context, builder, signature, args):
            function_type = ir.FunctionType(i32, [f32])
            asm = ir.InlineAsm(function_type, "cvt.rna.tf32.f32 $0, $1;", "=r,f")
            for k in range(count.literal_value):
                pointer = _element(ir, builder, args[0], args[1], k)
                value = builder.bitcast(builder.load(pointer), f32)
                builder.store(builder.call(asm, [value]), pointer)
            return context.get_dummy_value()

        return types.void(values, at, count), emit

    @tools.intrinsic
    def exp2_approximate(typingctx, value):
        """2 ** value of a float32, to 2 units in the last place; subnormal results are 0."""

        def emit(context, builder, signature, args):
            asm = ir.InlineAsm(ir.FunctionType(f32, [f32]), "ex2.approx.ftz.f32 $0, $1;", "=f,f")
            return builder.call(asm, args)

        return types.float32(types.float32), emit

    return _by_name(pack_bfloat16, pack_float16, round_tensorfloat32, exp2_approximate)
