"""custom_jvp, custom_vjp and custom_gradient."""

from collections.abc import Callable

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array


@gf.custom_jvp
def log1pexp(x: Array) -> Array:
    return jnp.log1p(jnp.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (t,) = primals, tangents
    return log1pexp(x), t * (1 - 1 / (1 + jnp.exp(x)))


@gf.custom_vjp
def clipped(x: Array, limit: float) -> Array:
    del limit
    return x


def clipped_fwd(x: Array, limit: float) -> tuple[Array, float]:
    return x, limit


def clipped_bwd(limit: float, g: Array) -> tuple[Array, None]:
    return jnp.clip(g, -limit, limit), None


clipped.defvjp(clipped_fwd, clipped_bwd)


def applied(f: Callable[[Array], Array], x: Array) -> Array:
    return f(x)


apply = gf.custom_vjp(applied, nondiff_argnums=(0,))


def apply_fwd(f: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    return f(x), x


def apply_bwd(f: Callable[[Array], Array], x: Array, g: Array) -> tuple[Array]:
    return (g * f(x),)


apply.defvjp(apply_fwd, apply_bwd)


@gf.custom_gradient
def square(x: Array) -> tuple[Array, Callable[[Array], tuple[Array]]]:
    return x**2, lambda g: (g * 2 * x,)


def total(x: Array) -> Array:
    return log1pexp(x) + clipped(x, 0.1) + apply(jnp.sin, x) + square(x)


print(gf.grad(total)(jnp.float32(1.0)))
