"""The machine of the interpreter: it runs the statements of one kernel on NumPy arrays.

A value is an array with one dimension for each kernel axis, of size 1 if no loop over the axis is
open. Loops over axes are evaluated for all their points at once, except SERIAL ones and those with
iterations that pass values on in a local array; a mask marks the live elements inside branches and
loops with divergent exits.

Tests: tests/kir/test_kir_interpret.py, tests/kir/test_strips.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Kernel, Mode, Role, Value
from gpuflow.kir.reference import cast
from gpuflow.kir.rewrite import copy_loops
from gpuflow.kir.rules import KernelError
from gpuflow.kir.scalar import FUNCTIONS, compute_dtype
from gpuflow.kir.walk import next_value_number, statements

Array = np.ndarray


class Pointer(NamedTuple):
    """A pointer into an allocation.

    Attributes:
        storage: a flat array of the operand's storage dtype.
        first: index of the operand's first element in it.
    """

    storage: Array
    first: int


def storage_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype in which an array's elements are stored."""
    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


class LocalArray:
    """A local array at run time.

    Attributes:
        declaration: its declaration in the kernel.
        strip_axes: the axes of which it has a strip; of the others it has all points.
        elements: the elements; flat if it has rows.
        is_stored: mask of the elements that are defined.
    """

    def __init__(self, local: nodes.Local, kernel: Kernel) -> None:
        shape = tuple([size for _, size in local.axes])
        if local.rows > 1:
            shape = (local.rows * shape[0],)
        self.declaration, self.strip_axes = local, local.cut_axes(kernel)
        self.elements = np.zeros(shape, storage_dtype(local.dtype))
        self.is_stored = np.zeros(shape, bool)


@record(frozen=False)
class Machine:
    """The state of one run of a kernel that ``verify`` accepts.

    A mask and a value's array have one dimension for each kernel axis. A "lane" is an element of
    the product of all points of the open axes.

    Attributes:
        kernel: the kernel.
        pointers: the memory of each operand that has some.
        scalars: values of SCALAR operands, and bases of INDEX operands.
        extent_of: the extent of each axis.
        strides_of: for each operand its stride on each kernel axis, in elements.
        span: the range of the first PARALLEL axis that runs; None for all of it.
        points: for each open axis its indices, along the axis's own dimension.
        strip_ranges: for each axis that is cut the range of the current strip.
        locals: the local arrays.
        values: arrays by value number.
        store_counts: for each OUT operand and component how often each element was stored.
    """

    kernel: Kernel
    pointers: dict[str, Pointer]
    scalars: dict[str, Any]
    extent_of: dict[str, int]
    strides_of: dict[str, tuple[int, ...]]
    span: tuple[int, int] | None
    points: dict[str, Array] = field(default_factory=dict)
    strip_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    locals: dict[str, LocalArray] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    store_counts: dict[tuple[str, int | None], Array] = field(default_factory=dict)

    def run(self) -> None:
        """Run the kernel once; raises KernelError as ``interpret.run`` does."""
        num_axes = len(self.kernel.axes)
        self.locals = {local.name: LocalArray(local, self.kernel) for local in self.kernel.locals}
        with np.errstate(all="ignore"):
            self.block(self.kernel.body, np.ones((1,) * num_axes, bool))

    def block(self, block: Block, mask: Array) -> tuple[Array, ...]:
        """Run a block whose params are set; lanes outside ``mask`` touch no memory."""
        for statement in block.body:
            self.statement(statement, mask)
        return self.get(block.results)

    def get(self, values: Sequence[Value]) -> tuple[Array, ...]:
        """The arrays of values that have been defined."""
        return tuple(self.values[value.number] for value in values)

    def set(self, values: Sequence[Value], arrays: Sequence[Array]) -> None:
        """Define values by arrays, whose dtypes must be the values' compute dtypes."""
        for value, array in zip(values, arrays, strict=True):
            if array.dtype.name != value.dtype:
                raise KernelError(
                    f"[{self.kernel.name}] %{value.number} must be {value.dtype}; "
                    f"got {array.dtype.name}. Fix: verify the kernel."
                )
            self.values[value.number] = array

    def statement(self, statement: nodes.Statement, mask: Array) -> None:
        """Run a statement on the lanes of a mask."""
        match statement:
            case nodes.Const(out, value):
                self.set((out,), (np.full((1,) * mask.ndim, value, out.dtype),))
            case nodes.Load(out):
                self.set((out,), (self.load(statement, mask),))
            case nodes.Store():
                self.store(statement, mask)
            case nodes.Apply(outs, fn, args):
                self.set(outs, FUNCTIONS[fn](*self.get(args)))
            case nodes.Select(out, predicate, on_true, on_false):
                self.set((out,), (np.where(*self.get((predicate, on_true, on_false))),))
            case nodes.Cast(out, arg):
                self.set((out,), (cast(self.values[arg.number], out.dtype),))
            case nodes.Reduce():
                self.reduce(statement, mask)
            case nodes.For(axis=str() as axis):
                self.for_axis(axis, statement.body, mask)
            case nodes.For():
                self.for_count(statement, mask)
            case nodes.Strip():
                self.strip(statement, mask)
            case nodes.Copy(target, source):
                local = self.locals[source if source in self.locals else target].declaration
                first_number = next_value_number(self.kernel.body)
                self.statement(copy_loops(statement, local, first_number), mask)
            case nodes.While():
                self.while_loop(statement, mask)
            case nodes.If():
                self.branch(statement, mask)

    def address(self, name: str, offset: Value | None, mask: Array) -> Array:
        """The element address of each lane, over all open axes."""
        address = np.zeros(self.lane_shape(mask), np.int64)
        for axis, stride in zip(self.kernel.axes, self.strides_of[name], strict=False):
            if axis.name in self.points:
                address = address + self.points[axis.name] * np.int64(stride)
        return address if offset is None else address + self.values[offset.number]

    def lane_shape(self, mask: Array) -> tuple[int, ...]:
        """The shape of all lanes: points of all open axes."""
        return np.broadcast_shapes(mask.shape, *(point.shape for point in self.points.values()))

    def load(self, statement: nodes.Load, mask: Array) -> Array:
        name = statement.operand
        if name in self.locals:
            return self.load_local(self.locals[name], statement.offset, mask)
        if name not in self.pointers:
            scalar = np.asarray(self.scalars[name])
            operand = next(item for item in self.kernel.operands if item.name == name)
            if operand.mode is Mode.INDEX:
                return self.address(name, None, mask) + scalar
            return np.full((1,) * mask.ndim, scalar, statement.out.dtype)
        storage, first = self.pointers[name]
        address, live = self.checked_addresses(statement, first, mask)
        loaded = np.zeros(address.shape, statement.out.dtype)
        loaded[live] = _component(storage, statement)[address[live]].astype(statement.out.dtype)
        return loaded

    def store(self, statement: nodes.Store, mask: Array) -> None:
        name = statement.operand
        if name in self.locals:
            value = self.values[statement.value.number]
            self.store_local(self.locals[name], statement.offset, value, mask)
            return
        storage, first = self.pointers[name]
        address, live = self.checked_addresses(statement, first, mask)
        targets = address[live]
        self.require_once(statement, targets, len(storage), first)
        value = np.broadcast_to(self.values[statement.value.number], address.shape)[live]
        elements = _component(storage, statement)
        elements[targets] = value.astype(elements.dtype)

    def checked_addresses(
        self, statement: nodes.Load | nodes.Store, first: int, mask: Array
    ) -> tuple[Array, Array]:
        """Addresses in the storage and the live lanes; a live address must be in bounds."""
        address = self.address(statement.operand, statement.offset, mask)
        live = np.broadcast_to(mask, address.shape)
        if statement.where is not None:
            live = live & self.values[statement.where.number]
        address, live = np.broadcast_arrays(address + first, live)
        size = len(self.pointers[statement.operand].storage)
        out_of_bounds = live & ((address < 0) | (address >= size))
        if out_of_bounds.any():
            index = int(address[out_of_bounds][0]) - first
            raise KernelError(
                f"[{self.kernel.name}] {type(statement).__name__} of {statement.operand} must "
                f"stay in its {size} elements (the first is {first}); got index {index}."
            )
        return address, live

    def require_once(self, statement: nodes.Store, targets: Array, size: int, first: int) -> None:
        """An element is stored once by a Store, and an OUT element once by the whole kernel."""
        name, component_key = statement.operand, (statement.operand, statement.component)
        store_counts = np.bincount(targets, minlength=size)
        operand = next(item for item in self.kernel.operands if item.name == name)
        if operand.mode is Mode.OUT:
            store_counts = store_counts + self.store_counts.get(component_key, 0)
            self.store_counts[component_key] = store_counts
        if (store_counts > 1).any():
            index = int(np.argmax(store_counts > 1)) - first
            raise KernelError(
                f"[{self.kernel.name}] an element of {name} must be stored once; got index {index} "
                "again."
            )

    def local_index(
        self, local: LocalArray, offset: Value | None, mask: Array
    ) -> tuple[tuple[Array, ...], Array]:
        """The offsets of all elements, and the live ones."""
        lane_shape = self.lane_shape(mask)
        live = np.broadcast_to(mask, lane_shape)
        if offset is not None:
            offsets = self.values[offset.number]
            if local.declaration.rows > 1:
                ((axis, _),) = local.declaration.axes
                offsets = offsets + self.points[axis] - self.strip_ranges[axis][0]
            offsets = np.broadcast_to(offsets, lane_shape)
            size = local.elements.size
            if (live & ((offsets < 0) | (offsets >= size))).any():
                raise KernelError(
                    f"[{self.kernel.name}] an access of {local.declaration.name} must stay in its "
                    f"{size} elements; got offsets {offsets[live]}."
                )
            return (offsets,), live
        index = []
        for axis, _ in local.declaration.axes:
            start = self.strip_ranges[axis][0] if axis in local.strip_axes else 0
            index.append(np.broadcast_to(self.points[axis] - start, lane_shape))
        return tuple(index), live

    def load_local(self, local: LocalArray, offset: Value | None, mask: Array) -> Array:
        index, live = self.local_index(local, offset, mask)
        if not local.is_stored[tuple(i[live] for i in index)].all():
            raise KernelError(
                f"[{self.kernel.name}] an element of {local.declaration.name} must be stored "
                "before it is loaded, in the same strip."
            )
        loaded = np.where(live, local.elements[index], local.elements.dtype.type(0))
        return loaded.astype(compute_dtype(local.declaration.dtype))

    def store_local(
        self, local: LocalArray, offset: Value | None, value: Array, mask: Array
    ) -> None:
        index, live = self.local_index(local, offset, mask)
        targets = tuple(i[live] for i in index)
        if len(set(zip(*targets, strict=True))) < live.sum():
            raise KernelError(
                f"[{self.kernel.name}] two points must not store one element of "
                f"{local.declaration.name} at once."
            )
        local.elements[targets] = np.broadcast_to(value, live.shape)[live]
        local.is_stored[targets] = True

    def strip(self, statement: nodes.Strip, mask: Array) -> None:
        name = statement.axis
        lo, hi = self.range_of(name)
        enclosing = self.strip_ranges.get(name)
        for start in range(lo, hi, statement.size):
            self.strip_ranges[name] = (start, min(start + statement.size, hi))
            for local in self.locals.values():
                if name in local.strip_axes:
                    local.is_stored[:] = False
            self.block(statement.body, mask)
        self.strip_ranges.pop(name, None)
        if enclosing is not None:
            self.strip_ranges[name] = enclosing

    def range_of(self, name: str) -> tuple[int, int]:
        """The current range of a loop over an axis."""
        if name in self.strip_ranges:
            return self.strip_ranges[name]
        first_parallel = next((a.name for a in self.kernel.axes if a.role is Role.PARALLEL), None)
        if name == first_parallel and self.span is not None:
            return self.span
        return 0, self.extent_of[name]

    def points_of_axis(self, name: str, body: Block) -> list[Array]:
        """The indices to run a loop with, in turn: all points at once, or one point each."""
        position = [axis.name for axis in self.kernel.axes].index(name)
        lo, hi = self.range_of(name)
        shape = [1] * len(self.kernel.axes)
        shape[position] = -1
        points = np.arange(lo, hi, dtype=np.int64).reshape(shape)
        is_serial = self.kernel.axes[position].role is Role.SERIAL
        if not is_serial and not self._shares_elements(name, body):
            return [points]
        return [np.full([1] * len(shape), index, np.int64) for index in range(lo, hi)]

    def _shares_elements(self, axis: str, body: Block) -> bool:
        """Whether iterations of a loop over an axis store the same elements of a local array."""
        stored_arrays = {s.operand for s in statements(body) if isinstance(s, nodes.Store)}
        stored_arrays |= {s.target for s in statements(body) if isinstance(s, nodes.Copy)}
        arrays = [array.declaration for name, array in self.locals.items() if name in stored_arrays]
        return any(axis not in dict(array.axes) for array in arrays)

    def for_axis(self, name: str, body: Block, mask: Array) -> None:
        for points in self.points_of_axis(name, body):
            self.points[name] = points
            self.block(body, mask)
        self.points.pop(name, None)

    def reduce(self, statement: nodes.Reduce, mask: Array) -> None:
        axis_names = [axis.name for axis in self.kernel.axes]
        reduced_positions = [axis_names.index(name) for name in statement.axes]
        outer_shape = self.lane_shape(mask)
        for name in statement.axes:
            shape = [1] * len(axis_names)
            shape[axis_names.index(name)] = -1
            self.points[name] = np.arange(*self.range_of(name), dtype=np.int64).reshape(shape)
        inner_shape = self.lane_shape(mask)
        elements = self.block(statement.body, mask)
        for name in statement.axes:
            del self.points[name]
        running = self.get(statement.init)
        broadcast_elements = [np.broadcast_to(array, inner_shape) for array in elements]
        ranges = [self.range_of(name) for name in statement.axes]
        for point in np.ndindex(*(hi - lo for lo, hi in ranges)):
            selection: list[Any] = [slice(None)] * len(inner_shape)
            for position, index in zip(reduced_positions, point, strict=True):
                selection[position] = slice(index, index + 1)
            new = tuple(array[tuple(selection)] for array in broadcast_elements)
            self.set(statement.combine.params, (*running, *new))
            running = self.block(statement.combine, mask)
        self.set(statement.outs, [np.broadcast_to(array, outer_shape) for array in running])

    def for_count(self, statement: nodes.For, mask: Array) -> None:
        assert statement.count is not None
        count = self.values[statement.count.number]
        carries = self.get(statement.init)
        trip_count = int(np.where(mask, count, 0).max(initial=0))
        for counter in range(trip_count):
            live = mask & (counter < count)
            counter_value = np.full((1,) * mask.ndim, counter, np.int64)
            self.set(statement.body.params, (counter_value, *carries))
            carries = _merge(live, self.block(statement.body, live), carries)
        self.set(statement.outs, carries)

    def while_loop(self, statement: nodes.While, mask: Array) -> None:
        carries = self.get(statement.init)
        live = mask
        while True:
            self.set(statement.cond.params, carries)
            (condition,) = self.block(statement.cond, live)
            live = live & condition
            if not live.any():
                break
            self.set(statement.body.params, carries)
            carries = _merge(live, self.block(statement.body, live), carries)
        self.set(statement.outs, carries)

    def branch(self, statement: nodes.If, mask: Array) -> None:
        predicate = self.values[statement.predicate.number]
        then_results = self.block(statement.then, mask & predicate)
        else_results = self.block(statement.orelse, mask & ~predicate)
        self.set(statement.outs, _merge(predicate, then_results, else_results))


def _component(storage: Array, statement: nodes.Load | nodes.Store) -> Array:
    """The elements of an operand, or the component of each that is accessed."""
    if statement.component is None:
        return storage
    return storage.imag if statement.component else storage.real


def _merge(where: Array, new: Sequence[Array], old: Sequence[Array]) -> tuple[Array, ...]:
    """New values on the lanes ``where``, old ones elsewhere."""
    return tuple(np.where(where, a, b) for a, b in zip(new, old, strict=True))
