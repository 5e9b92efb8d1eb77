"""Stages ahead of time: where arguments and results are meant to be, and what they refuse."""

from __future__ import annotations

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding


def test_shardings_of_a_plain_program():
    here = SingleDeviceSharding(gf.devices()[0])
    compiled = gf.jit(lambda x, *, y: {"sum": x + y, "x": x}).lower(jnp.ones(2), y=1.0).compile()
    assert compiled.input_shardings == ((here,), {"y": here})
    assert compiled.output_shardings == {"sum": here, "x": here}


def test_shardings_that_were_asked_for():
    mesh = gf.make_mesh((1,), ("a",))
    rows, whole = NamedSharding(mesh, PartitionSpec("a")), NamedSharding(mesh, PartitionSpec())
    asking = gf.jit(lambda x: (x, x.sum()), in_shardings=rows, out_shardings=(None, whole))
    compiled = asking.lower(jnp.ones(2)).compile()
    assert compiled.input_shardings == ((rows,), {})
    assert compiled.output_shardings == (rows, whole)
    struct = gf.ShapeDtypeStruct((2,), jnp.float32, sharding=rows)
    given = gf.jit(lambda x: x * 2).lower(struct).compile()
    assert given.input_shardings == ((rows,), {}) and given.output_shardings == rows


def test_dialects():
    lowered = gf.jit(jnp.sin).lower(1.0)
    assert lowered.compiler_ir() is lowered.compiler_ir("stablehlo") is lowered.jaxpr
    with pytest.raises(ValueError, match=r"\[compiler_ir\] dialect.*'mhlo'.*Fix:"):
        lowered.compiler_ir("mhlo")


@pytest.mark.parametrize("transform", [gf.jit, gf.grad, gf.vmap])
def test_compiled_programs_take_no_traced_values(transform):
    compiled = gf.jit(jnp.sum).lower(jnp.ones(2)).compile()
    x = jnp.ones((3, 2)) if transform is gf.vmap else jnp.ones(2)
    with pytest.raises(TypeError, match=r"\[compiled\].*no traced values.*Fix:"):
        transform(lambda y: compiled(y))(x)
