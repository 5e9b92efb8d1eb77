"""Small sums between memories that are made by one call."""

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.compiler.passes.merge_collectives import merge_collectives
from gpuflow.compiler.passes.program import dce, inline
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import PROCESSES, Across, serving
from gpuflow.core.jaxpr import check_jaxpr
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.runtime.device import Device, device_counts, set_process

X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def total(x, name="i"):
    return psum_p.bind(x, axes=(Across(name),), axis_index_groups=None)


def sums_in(function, shape=(6, 5), dtype=np.float32):
    """How many elements each sum of the program has."""
    jaxpr, _ = trace_to_jaxpr(function, [ShapedArray(shape, np.dtype(dtype))])
    joined = merge_collectives(jaxpr)
    check_jaxpr(joined)
    return [eqn.inputs[0].aval.size for eqn in joined.eqns if eqn.primitive is psum_p]


def test_sums_that_nothing_reads_between_are_joined():
    assert sums_in(lambda x: [total(x), total(x[0]), total(x.sum())]) == [36]
    # A reader ends it, also one of another sum's operand; what comes later is a new one.
    assert sums_in(lambda x: [total(total(x) + 1), total(x[0])]) == [30, 35]
    assert sums_in(lambda x: [total(x) * 2, total(x[0]), total(x[1])]) == [30, 10]


def test_sums_of_other_axes_or_types_and_large_ones_are_not():
    assert sums_in(lambda x: [total(x), total(x[0], "j"), total(x[1])]) == [5, 35]
    assert sums_in(lambda x: [total(x), total(x.astype(np.float16)), total(x + 1)]) == [30, 60]
    assert sums_in(lambda x: [total(x), total(x[0])], (200, 200)) == [40000, 200]
    assert sums_in(lambda x: [total(x[0]), total(x), total(x[1])], (200, 200)) == [40000, 400]
    assert sums_in(lambda x: [total(x), total(x[:0]), total(x[0])]) == [0, 35]


class Doubling:
    """A communicator of two ranks with equal data."""

    rank, size, name = 0, 2, "two"

    def __init__(self):
        self.shapes = []

    def all_reduce(self, data, op, out=None):
        self.shapes.append(data.shape)
        out[...] = data * 2
        return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_joined_sums_have_the_values_of_single_ones(dtype):
    x = jnp.asarray(X * 8).astype(dtype)
    with serving(PROCESSES, communicator := Doubling()):
        result = gf.jit(lambda x: (total(x.T), total(x[1]), total(x[2, 3])))(x)
    assert communicator.shapes == [(36,)]
    for got, own in zip(result, (x.T, x[1], x[2, 3]), strict=True):
        assert got.shape == own.shape and got.dtype == own.dtype
        np.testing.assert_array_equal(got, own + own)


@pytest.fixture
def mesh():
    counts = {**device_counts(), "cpu": 2}
    set_process(0, 2, (counts, counts))
    yield gf.make_mesh((4,), ("x",), devices=[Device("cpu", k, k // 2, k % 2) for k in range(4)])
    set_process(0, 1, ({},))


def test_gradients_in_shard_map_make_one_sum_of_small_leaves(mesh):
    weights = {f"layer {k}": {"w": X[:5].copy(), "b": X[0]} for k in range(3)}

    def loss(weights, x):
        for layer in weights.values():
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return lax.pmean(jnp.mean(x), "x")

    def local(weights, x):
        return gf.grad(loss)(weights, x)

    mapped = gf.shard_map(local, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
    (eqn,) = gf.make_jaxpr(mapped)(weights, np.ones((8, 5), np.float32)).jaxpr.eqns
    program = dce(inline(eqn.params["jaxpr"].jaxpr))

    def sums(jaxpr):
        return [e.inputs[0].aval.size for e in jaxpr.eqns if e.primitive is psum_p]

    assert len(sums(program)) == 6 and sums(merge_collectives(program)) == [3 * 30]
