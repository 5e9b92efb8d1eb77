"""Random slices, pads, rolls, windows and updates of split arrays, compared with one device.

``layout_fuzz_program.py rank size port count seed``: ``count`` programs on four processes. Values
are small integers, so that sums in any order are equal.
"""

import random
import sys
import warnings

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import NamedSharding, P, lax
from gpuflow.experimental import multihost_utils

SPECS = [P("x"), P("y"), P(("x", "y")), P(None, "x"), P("y", "x"), P("x", "y"), P()]
MODES = ["clip", "fill", "promise_in_bounds"]


def sliced(choose, x):
    bounds = []
    for size in x.shape:
        first = choose.randrange(size)
        step = choose.choice([1, 1, 1, 2, 3])
        bounds.append(
            (first, choose.randrange(first + 1, size + 1), step) if size > 3 else (0, size, 1)
        )
    starts, limits, steps = zip(*bounds)
    return lambda x: lax.slice(x, starts, limits, steps)


def padded(choose, x):
    config = []
    for size in x.shape:
        low, high = choose.randrange(-min(2, size - 1), 4), choose.randrange(0, 4)
        config.append((low, high, choose.choice([0, 0, 1, 2]) if size < 16 else 0))
    value = x.dtype.type(choose.randrange(3))
    return lambda x: lax.pad(x, value, config)


def rolled(choose, x):
    axis = choose.randrange(x.ndim)
    shift = choose.randrange(-x.shape[axis], x.shape[axis] + 1)
    return lambda x: jnp.roll(x, shift, axis)


def reversed_(choose, x):
    axes = [axis for axis in range(x.ndim) if choose.random() < 0.6]
    return lambda x: jnp.flip(x, axes) if axes else x


def joined(choose, x):
    axis, count = choose.randrange(x.ndim), choose.choice([2, 3])
    cuts = [choose.randrange(x.shape[axis] + 1) for _ in range(count - 1)]

    def apply(x):
        pieces = [lax.slice_in_dim(x, cut, None, axis=axis) for cut in cuts]
        return jnp.concatenate([x, *pieces], axis)

    return apply


def windowed(choose, x):
    axis = choose.randrange(x.ndim)
    size = min(choose.choice([1, 2, 3]), x.shape[axis])
    sizes = [size if d == axis else 1 for d in range(x.ndim)]
    strides = [choose.choice([1, 1, 2]) if d == axis else 1 for d in range(x.ndim)]
    padding = [
        (choose.randrange(3), choose.randrange(3)) if d == axis else (0, 0) for d in range(x.ndim)
    ]
    dilation = [choose.choice([1, 2]) if d == axis else 1 for d in range(x.ndim)]
    if sum(padding[axis]) + x.shape[axis] < 2 * size:
        return None
    first, op = choose.choice([(0, lax.add), (x.dtype.type(-100), lax.max)])
    return lambda x: lax.reduce_window(
        x, x.dtype.type(first), op, sizes, strides, padding, window_dilation=dilation
    )


def convolved(choose, x):
    if x.ndim != 2 or x.dtype != np.float32:
        return None
    kernel = np.asarray(choose.choices([0, 1, 2], k=9), np.float32).reshape(1, 1, 3, 3)
    strides = choose.choice([(1, 1), (2, 1), (1, 2)])
    padding = [(choose.randrange(3), choose.randrange(3)) for _ in range(2)]
    dilation = choose.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
    if any(size + sum(p) < 3 for size, p in zip(x.shape, padding)):
        return None
    return lambda x: lax.conv_general_dilated(
        x[None, None], kernel, strides, padding, lhs_dilation=dilation
    )[0, 0]


def updated(choose, x):
    sizes = [choose.randrange(1, size + 1) for size in x.shape]
    starts = [np.int32(choose.randrange(-2, size + 2)) for size in x.shape]
    value = np.arange(np.prod(sizes)).reshape(sizes).astype(x.dtype) % 5
    return lambda x: lax.dynamic_update_slice(x, value, starts)


def windows_of(choose, x):
    sizes = [choose.randrange(1, size + 1) for size in x.shape]
    starts = [np.int32(choose.randrange(-2, size + 2)) for size in x.shape]
    return lambda x: lax.dynamic_slice(x, starts, sizes)


def scattered(choose, x):
    count, axis = choose.randrange(1, 6), choose.randrange(x.ndim)
    dtype = choose.choice([np.int32, np.int8, np.uint32, np.uint8])
    low = -2 if np.issubdtype(dtype, np.signedinteger) else 0
    index = np.array([choose.randrange(low, x.shape[axis] + 3) for _ in range(count)], dtype)
    mode = choose.choice(MODES[:2])
    where = (slice(None),) * axis + (index,)
    if choose.random() < 0.5:
        return lambda x: x.at[where].add(x.dtype.type(3), mode=mode)
    where = (slice(None),) * axis + (np.unique(np.clip(index, 0, x.shape[axis] - 1)),)
    return lambda x: x.at[where].set(x.dtype.type(2), mode=mode)


def taken(choose, x):
    count, axis = choose.randrange(1, 6), choose.randrange(x.ndim)
    index = np.array([choose.randrange(x.shape[axis]) for _ in range(count)], np.int32)
    return lambda x: jnp.take(x, index, axis)


def along(choose, x):
    axis = choose.randrange(x.ndim)
    function = choose.choice([jnp.sort, jnp.cumsum, lax.cummax, jnp.argsort])
    return lambda x: function(x, axis=axis).astype(x.dtype)


def reduced(choose, x):
    if x.ndim < 2:
        return None
    axis = choose.randrange(x.ndim)
    function = choose.choice([jnp.sum, jnp.max, jnp.min, jnp.argmax, jnp.prod])
    return lambda x: function(x % 3, axis=axis).astype(x.dtype)


def multiplied(choose, x):
    if x.ndim != 2:
        return None
    return lambda x: (x % 3) @ (x.T % 3)


def arranged(choose, x):
    if choose.random() < 0.5:
        return lambda x: x.T
    return lambda x: x - jnp.sum(x, axis=0)


OPS = [
    sliced,
    padded,
    rolled,
    reversed_,
    joined,
    windowed,
    convolved,
    updated,
    windows_of,
    scattered,
]
OPS += [taken, along, reduced, multiplied, arranged]


def drawn(choose, shape, dtype):
    """A list of functions, each applied to an earlier value, and of the values' numbers."""
    values = [np.zeros(shape, dtype)]
    steps = []
    for _ in range(choose.randrange(1, 6)):
        number = choose.choice([len(values) - 1, choose.randrange(len(values))])
        op = choose.choice(OPS)
        function = op(choose, values[number])
        if function is None:
            continue
        aval = gf.eval_shape(function, gf.ShapeDtypeStruct(values[number].shape, dtype))
        if 0 in aval.shape or aval.size > 5000:
            continue
        steps.append((op.__name__, number, function))
        values.append(np.zeros(aval.shape, dtype))
    return steps


def applied(steps):
    def program(x):
        values = [x]
        for _, number, function in steps:
            values.append(function(values[number]).astype(x.dtype) % 11)
        return values[-3:]

    return program


def main():
    rank, size, port, count, start = (int(argument) for argument in sys.argv[1:6])
    gf.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    warnings.simplefilter("ignore")
    for number in range(start, start + count):
        choose = random.Random(number)
        dtype = choose.choice([np.float32, np.float32, np.int32, np.int16])
        shape = choose.choice([(16, 8), (8, 4, 8), (8,), (32,), (4, 12), (16, 16)])
        steps = drawn(choose, shape, dtype)
        mesh = gf.make_mesh(*choose.choice([((2, 2), ("x", "y")), ((4, 1), ("x", "y"))]))
        spec = choose.choice([spec for spec in SPECS if len(spec) <= len(shape)])
        sizes = [np.prod([dict(mesh.shape)[n] for n in names]) for names in map(as_names, spec)]
        if any(n % count for n, count in zip(shape, sizes)):
            continue
        x = np.random.default_rng(number).integers(0, 7, shape).astype(dtype)
        program = gf.jit(applied(steps))
        text = f"{number}: {[step[0] for step in steps]} of {shape} {dtype} {spec} {mesh}"
        try:
            outs = program(gf.device_put(x, NamedSharding(mesh, spec)))
            wholes = [np.asarray(multihost_utils.process_allgather(y, tiled=True)) for y in outs]
        except Exception as error:
            raise AssertionError(text) from error
        for got, want in zip(wholes, program(x), strict=True):
            np.testing.assert_array_equal(got, np.asarray(want), err_msg=text)
    print(f"rank {rank} of {size}: {count} programs agree")


def as_names(entry):
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


main()
