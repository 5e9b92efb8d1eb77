"""``ShardedArray``: an Array with a sharding over devices that share one memory.

These devices share a driver, so the elements are one array in global order. Operations run on
``whole``; the shardings of results are propagated and attached afterwards.

Tests: tests/parallel/test_placed_calls.py, tests/parallel/test_shardings.py.
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
    """A key that is compared by identity, which makes dict lookups cheap."""

    __slots__ = ("__weakref__",)


@lru_cache(4096)
def type_key(aval: ShapedArray, sharding: Sharding) -> object:
    """Intern the type of a sharded array: equal avals and shardings give the same object."""
    del aval, sharding
    return _TypeKey()


class ShardedArray(Array):
    """An Array with a sharding.

    Args:
        whole: an Array with all elements.
        sharding: a sharding that divides the shape.
        key: the ``type_key`` of aval and sharding; computed if it is None.
    """

    __slots__ = ("_sharding", "_type_key", "whole")

    def __init__(self, whole: Array, sharding: Sharding, key: object = None) -> None:
        # The slot _data stays empty: fast paths that read it raise, and take the general path.
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
    """Attach a sharding to an Array; a single-device sharding returns the Array itself.

    Raises:
        ValueError: if the sharding does not divide the array.
    """
    if isinstance(sharding, SingleDeviceSharding):
        return whole
    sharding.shard_shape(whole.aval.shape)
    return ShardedArray(whole, sharding)


def check_same_devices(
    name: str, values: Iterable[Any], requested: Iterable[Sharding] = ()
) -> None:
    """Check that committed and sharded arrays are on the same devices, in the same order.

    Args:
        name: name of the operation.
        values: its operands; uncommitted ones are ignored, because they can be moved.
        requested: shardings that operands or results must have.

    Raises:
        ValueError: if devices or their order differ.
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
    """The plain Array of a ShardedArray; other values are unchanged."""
    return value.whole if type(value) is ShardedArray else value


def evaluate_sharded(
    evaluate: Callable[..., Any],
    primitive: Primitive,
    operands: Sequence[Any],
    params: dict[str, Any],
) -> Array | Sequence[Array]:
    """Run a primitive on operands with shardings, which propagate to the results.

    Args:
        evaluate: runs a primitive on plain Arrays.
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


# For an op on operands of certain types and shardings: the sharding and type key of each result;
# None for a plain Array.
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
