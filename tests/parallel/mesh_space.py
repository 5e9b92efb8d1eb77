"""What tests/data/mesh_expressions.txt is written in, for a library with JAX's names."""

import numpy as np


def space_of(jax, jnp, lax):
    """The names of the expressions; ``jax`` is the library, the others its modules."""
    types = jax.sharding.AxisType
    x = np.arange(32, dtype=np.float32).reshape(8, 4)

    def put(spec, mesh):
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    def within(mesh, function):
        with jax.set_mesh(mesh):
            return function()

    def within_abstract(mesh, function):
        with jax.sharding.use_abstract_mesh(mesh):
            return function()

    return {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "lax": lax,
        "P": jax.P,
        "S": jax.sharding,
        "A": types,
        "line": jax.make_mesh((8,), ("x",)),
        "grid": jax.make_mesh((4, 2), ("x", "y")),
        "auto": jax.make_mesh((4, 2), ("x", "y"), (types.Auto,) * 2),
        "X": x,
        "put": put,
        "within": within,
        "within_abstract": within_abstract,
    }


def described(value, jax):
    """A result as data: dtype, shape and values of arrays, without Nones a spec ends in; text."""
    if isinstance(value, jax.Array | np.ndarray):
        host = np.asarray(value)
        values = [float(f"{number:.7g}") for number in host.reshape(-1).tolist()]
        return {"dtype": host.dtype.name, "shape": list(host.shape), "values": values}
    if isinstance(value, list) or type(value) is tuple:
        return [described(item, jax) for item in value]
    if isinstance(value, jax.P):
        parts = list(value)
        while parts and parts[-1] is None:
            parts.pop()
        return f"spec {jax.P(*parts)}"
    return value if isinstance(value, bool | int | str | None) else str(value)
