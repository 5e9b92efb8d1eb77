"""ShardedArray: an Array with a sharding.

The devices share a driver, so the elements are in one array in global order. Operations treat it
like any other value; code that depends on shardings uses ``whole`` and wraps its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuflow.base.caches import lru_cache
from gpuflow.base.recent import Recent
from gpuflow.compiler.shardings import result_shardings
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import Sharding, SingleDeviceSharding
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, different_devices


class _TypeKey:
    """A key that is compared by identity, so that dict lookups are cheap."""

    __slots__ = ("__weakref__",)


@lru_cache(4096)
def type_key(aval: ShapedArray, sharding: Sharding) -> object:
    """An object for the type of an array with a sharding, the same one for equal types."""
    del aval, sharding
    return _TypeKey()


class ShardedArray(Array):
    """An Array with a sharding.

    Args:
        whole: all elements.
        sharding: one that divides its shape.
        key: ``type_key`` of the two.
    """

    __slots__ = ("_sharding", "_type_key", "whole")

    def __init__(self, whole: Array, sharding: Sharding, key: object = None) -> None:
        # The slot of the data stays empty: code that reads it is for unsharded arrays.
        self.whole, self.aval, self.device = whole, whole.aval, whole.device
        self._sharding = sharding
        self._type_key = key or type_key(whole.aval, sharding)

    @property
    def data(self) -> Any:
        """All elements, see ``Array.data``."""
        return self.whole.data

    @property
    def sharding(self) -> Sharding:
        """The assignment of shards to devices."""
        return self._sharding

    def devices(self) -> set[Device]:
        """Return the devices that hold shards of the array."""
        return set(self._sharding.device_set)

    def is_deleted(self) -> bool:
        """Return whether the array was donated or deleted."""
        return self.whole.is_deleted()

    def delete(self) -> None:
        """Free the memory immediately; later use raises an error."""
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


def check_same_devices(
    name: str, values: Iterable[Any], requested: Iterable[Sharding] = ()
) -> None:
    """Check that arrays with explicit placement are on the same devices, in one order.

    Args:
        name: of the operation.
        values: its operands; uncommitted ones follow the others.
        requested: shardings that its operands or results must have.

    Raises:
        ValueError: it is not.
    """
    committed = [x for x in values if isinstance(x, Array) and not isinstance(x, Tracer)]
    committed = [x for x in committed if type(x) is not Array or x.device.is_committed]
    device_orders = {x.sharding._devices for x in committed}
    others = [sharding for sharding in requested if sharding._devices not in device_orders]
    if len(device_orders) > 1:
        raise different_devices(name, committed)
    if len(device_orders | {sharding._devices for sharding in others}) > 1:
        raise ValueError(
            f"[{name}] arrays that were put on devices must be on those that are asked for; got "
            f"{', '.join(map(str, [x.sharding for x in committed] + others))}. "
            "Fix: move the arrays with device_put(x, sharding)."
        )


def whole_of(value: Any) -> Any:
    """The plain Array of a sharded one; other values are unchanged."""
    return value.whole if type(value) is ShardedArray else value


def evaluate_sharded(
    evaluate: Callable[..., Any],
    primitive: Primitive,
    operands: Sequence[Any],
    params: dict[str, Any],
) -> Array | Sequence[Array]:
    """Apply a primitive to operands with shardings: its results have those that follow.

    Args:
        evaluate: applies it to plain arrays.
        primitive, operands, params: the op.
    """
    types = [x._type_key if type(x) is ShardedArray else aval_of(x) for x in operands]
    key = primitive, tuple(types), tuple(params.items())
    try:
        cached = _results.get(key)
    except TypeError:  # params without a hash
        key, cached = None, None
    if cached is None or any(type(x) is Array and x.device.is_committed for x in operands):
        check_same_devices(primitive.name, operands)
    results = evaluate(primitive, tuple(map(whole_of, operands)), params)
    outs = results if primitive.multiple_results else [results]
    if cached is None:
        cached = _shardings_of_results(primitive, operands, params, outs)
        if key is not None:
            _results.put(key, cached)
    sharded = [
        out if kind is None else ShardedArray(out, *kind)
        for out, kind in zip(outs, cached, strict=True)
    ]
    return sharded if primitive.multiple_results else sharded[0]


# For an op with operands of certain types and shardings: of each result its sharding and type key;
# None for a plain one.
_Kinds = tuple["tuple[Sharding, object] | None", ...]
_results: Recent[Any, _Kinds] = Recent(4096)


def _shardings_of_results(
    primitive: Primitive, operands: Sequence[Any], params: dict[str, Any], outs: Sequence[Array]
) -> _Kinds:
    inputs = tuple(Var(aval_of(value)) for value in operands)
    outputs = tuple(Var(out.aval) for out in outs)
    program = Jaxpr((), inputs, outputs, (Eqn(primitive, inputs, outputs, params),))
    operand_shardings = [x.sharding if type(x) is ShardedArray else None for x in operands]
    shardings = result_shardings(program, operand_shardings)
    if shardings is None:
        return (None,) * len(outs)
    sharded = [with_sharding(out, sharding) for out, sharding in zip(outs, shardings, strict=True)]
    return tuple([(x._sharding, x._type_key) if type(x) is ShardedArray else None for x in sharded])
