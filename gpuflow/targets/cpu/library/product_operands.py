"""Copies operands of products to the workspace if a kernel or BLAS cannot read them in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gpuflow.compiler.planning.plan import CallStep, Operand
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Dims, Product
from gpuflow.core.views import View, contiguous, transpose
from gpuflow.targets.cpu.runtime.native.copies import Locations, copy_view, operand_location
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import NativeServices

_ALIGNMENT = 64
# Whether the left and the right operand are copied, in order of preference.
_SELECTIONS = ((False, False), (True, False), (False, True), (True, True))

Call = TypeVar("Call")


class Copies(NamedTuple):
    """Copies of operands at the start of the workspace.

    Attributes:
        orders: for each operand, the order of its dimensions in the copy; None: it is not copied.
        sizes: for each operand, the bytes of its copy, or 0.
    """

    orders: tuple[Dims | None, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Bytes of all copies."""
        return sum(self.sizes)

    def locations(
        self, step: CallStep, services: NativeServices, code: Code, locations: Locations
    ) -> list[Location]:
        """Emit the copies; returns the locations of operands or of their copies."""
        result, at = [], 0
        for operand, order, size in zip(step.operands, self.orders, self.sizes, strict=True):
            location = operand_location(operand, code, locations)
            if order is not None and size:  # an empty operand has nothing to copy
                assert step.workspace is not None  # reserved by the plan
                register, start = locations.of(step.workspace)
                itemsize = storage_dtype(operand.aval.dtype).itemsize
                target = register, start + at
                view = transpose(operand.layout, order)
                copy_view(view, itemsize, location, target, services, code)
                location, at = target, at + size
            result.append(location)
        return result


def readable(
    product: Product, step: CallStep, call_of: Callable[[View, View], Call | None]
) -> tuple[Call, Copies] | None:
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
    for selection in _SELECTIONS:
        copied = [order if is_copied else None for order, is_copied in zip(orders, selection)]
        layouts = [
            view if order is None else _copy(view, order) for view, order in zip(views, copied)
        ]
        call = call_of(*layouts)
        if call is not None:
            sizes = [
                0 if order is None else _bytes(operand)
                for operand, order in zip(step.operands, copied)
            ]
            return call, Copies(tuple(copied), tuple(sizes))
    return None


def _copy(view: View, order: Dims) -> View:
    """The layout of a copy that stores dimensions in ``order``, as a view of ``view.shape``."""
    stored = contiguous([view.shape[d] for d in order])
    return transpose(stored, [order.index(d) for d in range(len(order))])


def _bytes(operand: Operand) -> int:
    count = operand.aval.size * storage_dtype(operand.aval.dtype).itemsize
    return -(-count // _ALIGNMENT) * _ALIGNMENT
