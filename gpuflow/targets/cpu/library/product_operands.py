"""Copies operands of products to the workspace if a kernel or BLAS cannot read them in place.

Tests: tests/targets/cpu/test_native_products.py, tests/targets/cpu/test_packed_products.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gpuflow.compiler.planning.plan import CallStep, StepOperand
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Dims, Product
from gpuflow.core.views import View, contiguous, transpose
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import NativeServices

_ALIGNMENT = 64  # of copies in the workspace, in bytes
# Whether the left and the right operand are copied, in order of preference.
_COPIED_OPERANDS = ((False, False), (True, False), (False, True), (True, True))

CallType = TypeVar("CallType")


class OperandCopies(NamedTuple):
    """Copies of operands at the start of the workspace.

    Attributes:
        orders: for each operand, the order of its dimensions in the copy; None: it is not copied.
        byte_counts: for each operand, the size of its copy rounded up to ``_ALIGNMENT``, or 0.
    """

    orders: tuple[Dims | None, ...]
    byte_counts: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all copies: the workspace after them is free."""
        return sum(self.byte_counts)

    def locations(
        self, step: CallStep, services: NativeServices, code: Code, locations: Locations
    ) -> list[Location]:
        """Emit the copies; returns the locations of operands or of their copies."""
        operand_locations, offset = [], 0
        copies = zip(step.operands, self.orders, self.byte_counts, strict=True)
        for operand, order, byte_count in copies:
            location = operand_location(operand, code, locations)
            if order is not None and byte_count:  # an empty operand has nothing to copy
                assert step.workspace is not None  # reserved by the plan
                itemsize = storage_dtype(operand.aval.dtype).itemsize
                target = locations.of(step.workspace).shifted(offset)
                view = transpose(operand.layout, order)
                copy_view(view, itemsize, location, target, services, code)
                location, offset = target, offset + byte_count
            operand_locations.append(location)
        return operand_locations


def call_with_fewest_copies(
    product: Product, step: CallStep, try_call: Callable[[View, View], CallType | None]
) -> tuple[CallType, OperandCopies] | None:
    """Find a call for the operands in place, or for as few copies of them as possible.

    Args:
        product: dimension numbers; a copy is a contiguous stack of matrices.
        step: the step of the product.
        call_of: returns the call for two views with offset 0, or None if it is not supported.

    Returns:
        The call and the copies; None if copies are not supported either.
    """
    orders = [tuple(d for dims in sides for d in dims) for sides in (product.left, product.right)]
    views = [operand.layout._replace(offset=0) for operand in step.operands]
    for are_copied in _COPIED_OPERANDS:
        copied = [order if is_copied else None for order, is_copied in zip(orders, are_copied)]
        layouts = [
            view if order is None else _copy_layout(view, order)
            for view, order in zip(views, copied)
        ]
        call = try_call(*layouts)
        if call is not None:
            byte_counts = [
                0 if order is None else _copy_bytes(operand)
                for operand, order in zip(step.operands, copied)
            ]
            return call, OperandCopies(tuple(copied), tuple(byte_counts))
    return None


def _copy_layout(view: View, order: Dims) -> View:
    """The layout of a copy that stores dimensions in ``order``, as a view of ``view.shape``."""
    stored = contiguous([view.shape[d] for d in order])
    return transpose(stored, [order.index(d) for d in range(len(order))])


def _copy_bytes(operand: StepOperand) -> int:
    byte_count = operand.aval.size * storage_dtype(operand.aval.dtype).itemsize
    return -(-byte_count // _ALIGNMENT) * _ALIGNMENT
