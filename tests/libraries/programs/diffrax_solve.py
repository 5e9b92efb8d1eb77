"""diffrax: ordinary and stochastic equations, adaptive steps, adjoints, and a neural ODE."""

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from common import show


def field(t, y, args):
    return jnp.stack([y[1], -args * jnp.sin(y[0]) - 0.1 * y[1]])


Y0 = jnp.array([1.0, 0.0])


def solve(args, solver=None, adjoint=None, **options):
    adjoint = dfx.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
    return dfx.diffeqsolve(
        dfx.ODETerm(field),
        solver or dfx.Tsit5(),
        0.0,
        3.0,
        0.1,
        Y0,
        args=args,
        saveat=dfx.SaveAt(ts=jnp.linspace(0.0, 3.0, 5)),
        adjoint=adjoint,
        **options,
    )


def solvers():
    adaptive = dfx.PIDController(rtol=1e-4, atol=1e-6)
    results = [solve(2.0).ys, jax.jit(solve)(2.0).ys]
    for solver in (dfx.Heun(), dfx.Dopri5()):
        results.append(solve(2.0, solver).ys)
    results.append(solve(2.0, stepsize_controller=adaptive).ys)
    results.append(solve(2.0, dfx.Kvaerno3(), stepsize_controller=adaptive).ys)
    dense = dfx.diffeqsolve(
        dfx.ODETerm(field), dfx.Tsit5(), 0.0, 2.0, 0.1, Y0, args=1.0, saveat=dfx.SaveAt(dense=True)
    )
    return results, dense.evaluate(0.77)


def adjoints():
    results = []
    for adjoint in (
        dfx.RecursiveCheckpointAdjoint(),
        dfx.BacksolveAdjoint(),
        dfx.DirectAdjoint(),
    ):

        def loss(args, adjoint=adjoint):
            return jnp.sum(solve(args, adjoint=adjoint).ys ** 2)

        results.append(jax.jit(jax.grad(loss))(2.0))
    mapped = jax.vmap(lambda a: solve(a).ys[-1])(jnp.array([1.0, 2.0, 3.0]))
    return results, mapped


def stochastic():
    path = dfx.VirtualBrownianTree(0.0, 1.0, tol=1e-3, shape=(2,), key=jr.key(5))
    terms = dfx.MultiTerm(
        dfx.ODETerm(lambda t, y, _: -y),
        dfx.ControlTerm(lambda t, y, _: 0.1 * jnp.eye(2), path),
    )
    return dfx.diffeqsolve(terms, dfx.EulerHeun(), 0.0, 1.0, 0.05, Y0).ys


def events():
    event = dfx.Event(lambda t, y, args, **_: y[0] < 0)
    return dfx.diffeqsolve(
        dfx.ODETerm(field), dfx.Tsit5(), 0.0, 5.0, 0.05, Y0, args=2.0, event=event
    ).ts


class Field(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, t, y, args):
        return self.mlp(y)


def neural():
    model = Field(eqx.nn.MLP(2, 2, 8, 1, activation=jnp.tanh, key=jr.key(0)))
    wanted = solve(2.0).ys

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss_of(model):
        ys = dfx.diffeqsolve(
            dfx.ODETerm(model),
            dfx.Tsit5(),
            0.0,
            3.0,
            0.2,
            Y0,
            saveat=dfx.SaveAt(ts=jnp.linspace(0.0, 3.0, 5)),
        ).ys
        return jnp.mean((ys - wanted) ** 2)

    losses = []
    for _ in range(5):
        loss, grads = loss_of(model)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.05 * g, grads))
        losses.append(loss)
    return losses


if __name__ == "__main__":
    show({part.__name__: part() for part in (solvers, adjoints, stochastic, events, neural)})
