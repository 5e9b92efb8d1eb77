"""Derivatives of all kinds."""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array


def f(x: Array, y: Array) -> Array:
    return (jnp.sin(x) * y).sum()


def with_aux(x: Array) -> tuple[Array, dict[str, Array]]:
    return x.sum(), {"square": x**2}


x, y = jnp.ones(3), jnp.arange(3.0)
dx, dy = gf.grad(f, argnums=(0, 1))(x, y)
value, gradient = gf.value_and_grad(f)(x, y)
(value, aux), gradient = gf.value_and_grad(with_aux, has_aux=True)(x)
print(aux["square"].shape, dx, dy, value.item(), gradient)
out, tangent = gf.jvp(f, (x, y), (x, y))
out, pull = gf.vjp(f, x, y)
out, push = gf.linearize(f, x, y)
print(out.item(), tangent.shape, pull(jnp.float32(1.0)), push(x, y).shape)
out, pull, more = gf.vjp(with_aux, x, has_aux=True)
print(more["square"], gf.jacfwd(f)(x, y), gf.jacrev(jnp.sin)(x), gf.hessian(f)(x, y))
