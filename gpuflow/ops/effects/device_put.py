"""device_put and sharding_constraint: placement of arrays as ops of programs.

Tests: tests/parallel/test_shardings.py, tests/runtime/test_devices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Layout
from gpuflow.core.rules import AxisData
from gpuflow.core.sharding import NamedSharding, PartitionSpec, on_mesh
from gpuflow.ops.define import define, linear_jvp, unary_transpose


def _put_shape(x: ShapedArray, *, device: Any, source: Any) -> ShapedArray:
    del device, source
    return x


def _put_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    del axis
    return device_put(operands[0], **params), dims[0]


def _put_links(x: ShapedArray, out: ShapedArray, *, device: Any, source: Any) -> Any:
    del out, device, source
    return [(d, d) for d in range(x.ndim)]


def device_put(x: Any, device: Any = None, source: Any = None) -> Any:
    """Return ``x`` on ``device``.

    Args:
        x: array of any dtype.
        device: a device, or None for the device of the program.
        source: the device of ``x``, for its cotangents.

    Returns:
        An array of the same type.
    """
    return device_put_p.bind(x, device=device, source=source)


# A program runs on one device, so within it this is the identity.
device_put_p = define(
    "device_put",
    shape=_put_shape,
    impl=lambda xp, x, *, device, source: xp.array(x),
    jvp=linear_jvp(lambda x, **params: device_put(x, **params)),
    transpose=unary_transpose(
        lambda ct, x, *, device, source: device_put(ct, device=source, source=device)
    ),
    batch=_put_batch,
    device=lambda params: params["device"],
    lower=Layout(lambda view, out, *, device, source: view, _put_links),
)


def _constraint_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, sharding: Any
) -> tuple[Any, int]:
    (x,), (dim,) = operands, dims
    if not isinstance(sharding, NamedSharding):
        return x, dim  # it has no axis for one more dimension
    spec = [*sharding.spec, *[None] * (dim - len(sharding.spec))]
    name = PartitionSpec.UNCONSTRAINED if axis.spmd_name is None else axis.spmd_name
    constraint = NamedSharding(sharding.mesh, PartitionSpec(*spec[:dim], name, *spec[dim:]))
    return sharding_constraint(x, constraint), dim


def sharding_constraint(x: Any, sharding: Any) -> Any:
    """Return ``x`` with a sharding.

    Args:
        x: array of any dtype.
        sharding: the shards of each device.

    Returns:
        An array of the same type.
    """
    return sharding_constraint_p.bind(x, sharding=sharding)


sharding_constraint_p = define(
    "sharding_constraint",
    shape=lambda x, *, sharding: x,
    impl=lambda xp, x, *, sharding: xp.array(x),
    jvp=linear_jvp(lambda x, **params: sharding_constraint(x, **params)),
    transpose=unary_transpose(lambda ct, x, *, sharding: sharding_constraint(ct, sharding)),
    batch=_constraint_batch,
    sharding=lambda params: params["sharding"],
    lower=Layout(
        lambda view, out, *, sharding: view,
        lambda x, out, *, sharding: [(d, d) for d in range(x.ndim)],
    ),
)


def in_sharding(op: str, x: Any, out_sharding: Any) -> Any:
    """Place a result of ``op`` according to its ``out_sharding=``.

    Args:
        op: the function whose argument it is.
        x: the result.
        out_sharding: a NamedSharding, a PartitionSpec for the mesh in force, or None.

    Returns:
        An array of the same type, which eagerly has that sharding.

    Raises:
        TypeError: if it is not a sharding.
        ValueError: if a PartitionSpec has no mesh, or does not divide the result.
    """
    if out_sharding is None:
        return x
    out_sharding = on_mesh(op, out_sharding, config.mesh, "out_sharding=")
    check(
        isinstance(out_sharding, NamedSharding),
        lambda: (
            f"[{op}] out_sharding must be a NamedSharding, a PartitionSpec or None; got "
            f"{out_sharding!r}. Fix: NamedSharding(mesh, PartitionSpec('x')), or device= for a "
            "device."
        ),
    )
    if out_sharding.is_of_types:
        return x
    out_sharding.shard_shape(aval_of(x).shape)
    return sharding_constraint(x, out_sharding)
