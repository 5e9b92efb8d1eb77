"""ShardedArray: an Array that says which device has which part.

The devices share a driver, so that the elements lie in one array in global order. Operations work
on it as on any other value; what knows shardings asks for ``whole`` and wraps its results again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuflow.compiler.shardings import result_shardings
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import Sharding, SingleDeviceSharding
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, different_devices


class ShardedArray(Array):
    """An Array with a sharding.

    Args:
        whole: all elements.
        sharding: fits its shape.
    """

    __slots__ = ("_sharding", "whole")

    def __init__(self, whole: Array, sharding: Sharding) -> None:
        # The slot of the data stays empty: what trusts it is for arrays without parts.
        self.whole, self.aval, self.device = whole, whole.aval, whole.device
        self._sharding = sharding

    @property
    def data(self) -> Any:
        """All elements, see ``Array.data``."""
        return self.whole.data

    @property
    def sharding(self) -> Sharding:
        """Which device has which part."""
        return self._sharding

    def devices(self) -> set[Device]:
        """The devices that hold parts of the array."""
        return set(self._sharding.device_set)

    def is_deleted(self) -> bool:
        """Whether the array was donated or deleted."""
        return self.whole.is_deleted()

    def delete(self) -> None:
        """Free the memory now; later use raises."""
        self.whole.delete()

    def __deepcopy__(self, memo: Any) -> Array:
        return ShardedArray(self.whole.__deepcopy__(memo), self._sharding)


def _sharded_aval(array: ShardedArray) -> ShapedArray:
    return array.aval


register_value_type(ShardedArray, _sharded_aval)


def with_sharding(whole: Array, sharding: Sharding) -> Array:
    """The array with a sharding; on one device it is an Array as any other.

    Raises:
        ValueError: the sharding does not divide the array.
    """
    if isinstance(sharding, SingleDeviceSharding):
        return whole
    sharding.shard_shape(whole.aval.shape)
    return ShardedArray(whole, sharding)


def check_places(name: str, values: Iterable[Any], asked: Iterable[Sharding] = ()) -> None:
    """Check that what was put on devices is on the same ones, in one order.

    Args:
        name: of the operation.
        values: its operands; those that nobody put anywhere follow the others.
        asked: shardings that its operands or results are to have.

    Raises:
        ValueError: it is not.
    """
    placed = [x for x in values if isinstance(x, Array) and not isinstance(x, Tracer)]
    placed = [x for x in placed if type(x) is not Array or x.device.is_committed]
    places = {x.sharding._devices for x in placed}
    wanted = [sharding for sharding in asked if sharding._devices not in places]
    if len(places) > 1:
        raise different_devices(name, placed)
    if len(places | {sharding._devices for sharding in wanted}) > 1:
        raise ValueError(
            f"[{name}] arrays that were put on devices must be on those that are asked for; got "
            f"{', '.join(map(str, [x.sharding for x in placed] + wanted))}. "
            "Fix: move the arrays with device_put(x, sharding)."
        )


def whole_of(value: Any) -> Any:
    """The plain Array of a sharded one; anything else as it is."""
    return value.whole if type(value) is ShardedArray else value


def evaluate_sharded(
    evaluate: Callable[..., Any], primitive: Primitive, operands: Sequence[Any],
    params: dict[str, Any],
) -> Array | Sequence[Array]:  # fmt: skip
    """Apply a primitive to operands with shardings: its results have those that follow.

    Args:
        evaluate: applies it to plain arrays.
        primitive, operands, params: the op.
    """
    check_places(primitive.name, operands)
    results = evaluate(primitive, tuple(map(whole_of, operands)), params)
    outs = results if primitive.multiple_results else [results]
    inputs = tuple(Var(aval_of(value)) for value in operands)
    outputs = tuple(Var(out.aval) for out in outs)
    program = Jaxpr((), inputs, outputs, (Eqn(primitive, inputs, outputs, params),))
    operand_shardings = [x.sharding if type(x) is ShardedArray else None for x in operands]
    shardings = result_shardings(program, operand_shardings)
    if shardings is None:
        return results
    placed = [with_sharding(out, sharding) for out, sharding in zip(outs, shardings, strict=True)]
    return placed if primitive.multiple_results else placed[0]
