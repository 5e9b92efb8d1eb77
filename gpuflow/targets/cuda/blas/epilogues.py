"""Matrix products fused with their epilogue: bias, activation and their gradients.

A plan is searched for products whose result only one kernel reads (two, where a gradient computes
it again), and whose kernel is something that the library's GEMM can do to its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import (
    CallStep,
    KernelStep,
    Plan,
    nbytes,
    reads_of,
    scratch_of,
    writes_of,
)
from gpuflow.targets.cuda.blas.activations import aux_bytes
from gpuflow.targets.cuda.blas.epilogue_kernels import (
    MatrixKernel,
    forward_values,
    is_way_back,
    matrix_kernel,
)
from gpuflow.targets.cuda.driver.api import Epilogue, Gemm

Fused = Callable[..., None]
Make = Callable[[Gemm, Epilogue], Fused | None]

_DTYPES = ("float32", "float16", "bfloat16")
EXTRA_BUFFER = -2  # no buffer of the plan


@record
class FusedProduct:
    """A product and the kernel after it, as one call.

    Attributes:
        product, kernel: the two steps; the call replaces the kernel.
        run: a function of the addresses of left, right, out, bias and aux.
        offsets: bytes from the start of the buffers of left and right.
        out, bias, aux: buffers; None where there is none, EXTRA_BUFFER where none is free.
        aux_bytes: the size of ``aux``.
        pair: the product on the way there, of calls that share ``aux``.
        moves_out: the memory of ``out`` in the arena is still in use; it needs separate memory.
    """

    product: int
    kernel: int
    run: Fused
    offsets: tuple[int, int]
    out: int
    bias: int | None
    aux: int | None
    aux_bytes: int
    pair: int
    moves_out: bool


def fused_products(plan: Plan, make: Make) -> list[FusedProduct]:
    """The products of a plan that are fused with the kernels after them.

    Args:
        plan: of the whole program.
        make: the library's implementation; None if it is not supported.
    """
    search = _Search(plan, make)
    calls: list[FusedProduct] = []
    for position in search.products:
        calls += search.fused(position)
    return calls


def at_offsets(run: Fused, offsets: tuple[int, int]) -> Fused:
    """The function for operands at an offset in their buffers."""
    at_left, at_right = offsets

    def shifted(left: int, right: int, *others: int) -> None:
        run(left + at_left, right + at_right, *others)

    return shifted


@record
class _Candidate:
    """A product of two matrices, in the only call that it takes."""

    position: int
    gemm: Gemm
    offsets: tuple[int, int]
    out: int


@record
class _Part:
    """A product, the kernel after it at a position, and their combination."""

    product: _Candidate
    position: int
    reader: MatrixKernel
    epilogue: Epilogue
    out: int
    aux: int | None


class _Search:
    def __init__(self, plan: Plan, make: Make) -> None:
        self._plan, self._make = plan, make
        self._taken: set[int] = set()
        self._readers: dict[int, list[int]] = {}
        for position, step in enumerate(plan.steps):
            for buffer in set(reads_of(step)):
                self._readers.setdefault(buffer, []).append(position)
        candidates = [_candidate(plan, position) for position in range(len(plan.steps))]
        self.products = {one.position: one for one in candidates if one is not None}
        self._by_out = {one.out: one for one in self.products.values()}

    def fused(self, position: int) -> list[FusedProduct]:
        """The calls that a product becomes a part of; none if it stays as it is."""
        product = self.products[position]
        if position in self._taken:
            return []
        readers = self._readers.get(product.out, [])
        calls = self._forward(product, readers[0]) if len(readers) == 1 else []
        for back in () if calls else self._ways_back(readers):
            calls = calls or self._pair(product, readers[0], back)
        self._taken |= {one.product for one in calls} | {one.kernel for one in calls}
        return calls

    def _forward(self, product: _Candidate, position: int) -> list[FusedProduct]:
        """A product and a kernel that alone reads it."""
        reader = self._reader(product, position)
        if reader is None or len(reader.writes) != 1 or reader.written_rows:
            return []
        for activation in ("", "relu", "gelu"):
            if forward_values(reader, product.out, activation, reader.writes[0]) is not None:
                epilogue = Epilogue(activation, bias=bool(reader.rows))
                part = _Part(product, position, reader, epilogue, reader.writes[0], None)
                return self._calls([part])
        return []

    def _ways_back(self, readers: list[int]) -> list[int]:
        """Kernels that may be backward passes: they read the product, or its reader's result."""
        if len(readers) != 1:
            return readers[1:] if len(readers) == 2 else []
        step = self._plan.steps[readers[0]]
        found = [self._readers.get(b, []) for b in writes_of(step)]
        return [ones[0] for ones in found if len(ones) == 1]

    def _pair(self, product: _Candidate, first: int, second: int) -> list[FusedProduct]:
        """A product with its activation, and the product whose result goes back through it."""
        forward, back = self._reader(product, first), self._reader(product, second)
        if forward is None or back is None or len(back.writes) != 1:
            return []
        others = [b for b in back.matrices if b in self._by_out and b != product.out]
        sources = [self._by_out[b] for b in others]
        if len(sources) != 1 or self._readers[sources[0].out] != [second]:
            return []
        (source,) = sources
        kept = [b for b in forward.writes if b in back.matrices]
        outs = [b for b in forward.writes if b not in kept]
        only_back = all(
            self._readers[b] == [second] and b in self._plan.offsets for b in kept
        )
        known = {source.out, *kept}
        unknown = set(back.matrices) - {product.out} - known
        if len(outs) != 1 or not only_back or unknown or forward.written_rows:
            return []
        if (source.gemm.m, source.gemm.n) != (product.gemm.m, product.gemm.n):
            return []
        for activation in ("relu", "gelu"):
            values = forward_values(forward, product.out, activation, outs[0], back)
            if values is None:
                continue
            if not is_way_back(back, product.out, source.out, activation, forward, values):
                continue
            there = Epilogue(activation, bias=bool(forward.rows), keeps=True)
            returned = Epilogue(activation, bias=bool(back.written_rows), gradient=True)
            # Nothing reads the product itself any more, nor what the kernel kept. Their memory is
            # free for what the products keep until the way back only if the way back read them.
            lasting = [b for b in (product.out, *kept) if b in back.matrices]
            for aux in (*lasting, EXTRA_BUFFER):
                parts = (
                    _Part(product, first, forward, there, outs[0], aux),
                    _Part(source, second, back, returned, back.writes[0], aux),
                )
                calls = self._calls(parts)
                if calls:
                    return calls
        return []

    def _reader(self, product: _Candidate, position: int) -> MatrixKernel | None:
        """A kernel on matrices like the product; None where a step is something else."""
        step = self._plan.steps[position]
        taken = position in self._taken or position < product.position
        if taken or not isinstance(step, KernelStep) or len(step.launches) != 1:
            return None
        (calls,) = step.launches
        if len(calls) != 1:
            return None
        return matrix_kernel(calls[0], product.gemm.m, product.gemm.n, product.gemm.dtype)

    def _calls(self, parts: Sequence[_Part]) -> list[FusedProduct]:
        """The calls, or none if one of them cannot be made."""
        calls = []
        for part in parts:
            product, reader = part.product, part.reader
            rows = reader.written_rows if part.epilogue.gradient else reader.rows
            bias = rows[0] if part.epilogue.bias else None
            epilogue_buffers = [b for b in (bias, part.aux) if b is not None and b != EXTRA_BUFFER]
            may_move_out = part.out in self._plan.offsets
            with_out = [*epilogue_buffers, part.out]
            moves_out = may_move_out and not self._may_move(part, with_out)
            if not self._may_move(part, epilogue_buffers if moves_out else with_out):
                return []
            run = self._make(product.gemm, part.epilogue)
            if run is None:
                return []
            place = (product.position, part.position)
            count = aux_bytes(product.gemm, part.epilogue)
            pair = parts[0].product.position
            where = (product.offsets, part.out, bias, part.aux, count, pair, moves_out)
            calls.append(FusedProduct(*place, run, *where))
        return calls

    def _may_move(self, part: _Part, buffers: list[int]) -> bool:
        """Whether the product may run instead of the kernel, writing the kernel's outputs."""
        steps, first = self._plan.steps, part.product.position
        needed = [self._place(b) for b in reads_of(steps[first])]
        between = [
            buffer
            for step in steps[first + 1 : part.position]
            for buffer in (*writes_of(step), *scratch_of(step))
        ]
        if any(_overlap(self._place(b), place) for b in between for place in needed):
            return False
        places = [self._place(b) for b in buffers]
        mine = [(a, b) for k, a in enumerate(places) for b in [*places[k + 1 :], *needed]]
        return not any(_overlap(a, b) for a, b in mine)

    def _place(self, buffer: int) -> tuple[Any, int, int]:
        """The location of a buffer, and its lifetime."""
        plan = self._plan
        size = nbytes(plan.aval(buffer))
        if buffer in plan.offsets:
            return "arena", plan.offsets[buffer], plan.offsets[buffer] + size
        return ("array", plan.in_place.get(buffer, buffer)), 0, size


def _overlap(one: tuple[Any, int, int], other: tuple[Any, int, int]) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _candidate(plan: Plan, position: int) -> _Candidate | None:
    step = plan.steps[position]
    schedule = step.choice if isinstance(step, CallStep) else None
    products = None if schedule is None else schedule.gemm
    if products is None or len(products.places) != 1 or len(reads_of(step)) != 2:
        return None  # a literal is no buffer that is read
    gemm, (out,) = products.gemm, writes_of(step)
    if gemm.count != 1 or gemm.dtype != gemm.out_dtype or out not in plan.offsets:
        return None
    if gemm.dtype.name not in _DTYPES or gemm.n % 8 or out in plan.outputs:
        return None
    left, right, _ = products.places[0]
    return _Candidate(position, gemm, (left, right), out)
