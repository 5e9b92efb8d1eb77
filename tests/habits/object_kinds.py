"""Objects whose public attributes are compared with those of JAX's, by kind.

JAX makes them for make_attributes.py, gpuflow for the tests; neither is imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def tracers(package: Any) -> dict[str, Any]:
    """A value as each transformation sees it."""
    seen: dict[str, Any] = {}

    def look(kind: str) -> Any:
        def function(x: Any) -> Any:
            seen[kind] = x
            return x * 1

        return function

    package.jit(look("tracer of jit"))(np.float32(1))
    package.vmap(look("tracer of vmap"))(np.ones(2, np.float32))
    package.jvp(look("tracer of jvp"), (np.float32(1),), (np.float32(1),))
    package.grad(look("tracer of grad"))(np.float32(1))
    return seen


def objects(package: Any) -> dict[str, Any]:
    """One object of each kind."""
    jnp, sharding = package.numpy, package.sharding
    device = package.devices()[0]
    mesh = sharding.Mesh(np.array([device]), ("i",))
    x = jnp.ones((2, 3))
    function = package.jit(lambda x: jnp.sin(x) + 2.0)
    jaxpr = package.make_jaxpr(lambda x: jnp.sin(x) + 2.0)(x)
    equation = jaxpr.jaxpr.eqns[-1]
    with_vjp = package.custom_vjp(lambda x: x)
    with_vjp.defvjp(lambda x: (x, None), lambda _, g: (g,))
    traced = function.trace(x)
    lowered = traced.lower()
    compiled = lowered.compile()
    return {
        "Array": x,
        **tracers(package),
        "Array.at": x.at,
        "Array.at[0]": x.at[0],
        "Array.addressable_shards[0]": x.addressable_shards[0],
        "ShapedArray": package.typeof(x),
        "ShapeDtypeStruct": package.ShapeDtypeStruct((2,), "float32"),
        "ClosedJaxpr": jaxpr,
        "Jaxpr": jaxpr.jaxpr,
        "JaxprEqn": equation,
        "JaxprEqn.primitive": equation.primitive,
        "JaxprEqn.source_info": equation.source_info,
        "Var": jaxpr.jaxpr.invars[0],
        "Literal": next(v for v in equation.invars if hasattr(v, "val")),
        "PyTreeDef": package.tree.structure({"a": (1, 2)}),
        "typed keys": package.random.key(0),
        "dtype of keys": package.random.key(0).dtype,
        "NamedSharding": sharding.NamedSharding(mesh, sharding.PartitionSpec("i")),
        "SingleDeviceSharding": sharding.SingleDeviceSharding(device),
        "PartitionSpec": sharding.PartitionSpec("i"),
        "Mesh": mesh,
        "AbstractMesh": mesh.abstract_mesh,
        "Device": device,
        "Traced": traced,
        "Lowered": lowered,
        "Compiled": compiled,
        "Compiled.in_tree": compiled.in_tree,
        "Lowered.args_info[0][0]": lowered.args_info[0][0],
        "Traced.out_info": traced.out_info,
        "jit(f)": function,
        "pmap(f)": package.pmap(lambda x: x),
        "custom_jvp(f)": package.custom_jvp(lambda x: x),
        "custom_vjp(f)": with_vjp,
        "custom_vmap(f)": package.custom_batching.custom_vmap(lambda x: x),
        "checkpoint(f)": package.checkpoint(lambda x: x),
        "vjp's function": package.vjp(jnp.sin, x)[1],
        "linearize's function": package.linearize(jnp.sin, x)[1],
        "finfo": jnp.finfo("float32"),
        "iinfo": jnp.iinfo("int32"),
        "Partial": package.tree_util.Partial(jnp.sin),
        "DictKey": package.tree_util.DictKey("a"),
        "SequenceKey": package.tree_util.SequenceKey(0),
        "GetAttrKey": package.tree_util.GetAttrKey("a"),
        "FlattenedIndexKey": package.tree_util.FlattenedIndexKey(0),
        "Exported": package.export.export(function)(x),
        "Ref": package.new_ref(x),
        "ufunc": jnp.add,
        "scalar type": jnp.float32,
    }


def attributes(value: Any) -> list[str]:
    """Public names, as ``dir`` lists them, of those that can be read."""
    found = []
    for name in dir(value):
        try:
            getattr(value, name)
        except Exception:
            continue
        if not name.startswith("_"):
            found.append(name)
    return sorted(found)
