"""PennyLane: circuits on the simulator, through the interface of JAX, and a variational search."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pennylane as qml
from common import show

DEVICE = qml.device("default.qubit", wires=3)
ANGLES = jnp.asarray(np.random.default_rng(0).uniform(0, 3, (2, 3, 3)))


@qml.qnode(DEVICE, interface="jax", diff_method="backprop")
def circuit(weights, x):
    qml.AngleEmbedding(x, wires=range(3))
    qml.StronglyEntanglingLayers(weights, wires=range(3))
    return qml.expval(qml.PauliZ(0) @ qml.PauliX(2)), qml.probs(wires=[0, 1])


def outputs():
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))
    found = jax.vmap(circuit, (None, 0))(ANGLES, xs)
    compiled = jax.jit(circuit)(ANGLES, xs[0])
    jacobian = jax.jacobian(lambda w: circuit(w, xs[0])[1])(ANGLES)
    return found, compiled, jacobian


def states():
    @qml.qnode(DEVICE, interface="jax")
    def state(theta):
        qml.QFT(wires=range(3))
        qml.CRX(theta, wires=[0, 2])
        qml.MultiControlledX(wires=[0, 1, 2])
        return qml.state()

    found = jax.jit(state)(0.4)
    return found.real, found.imag, jnp.abs(qml.math.reduce_statevector(found, [0, 1]))


def ground_state():
    terms = [qml.PauliZ(0) @ qml.PauliZ(1), qml.PauliZ(1) @ qml.PauliZ(2), qml.PauliX(0)]
    hamiltonian = qml.Hamiltonian([-1.0, -0.7, -0.4], terms)

    @qml.qnode(DEVICE, interface="jax")
    def energy(weights):
        qml.BasicEntanglerLayers(weights, wires=range(3), rotation=qml.RY)
        return qml.expval(hamiltonian)

    optimizer = optax.adam(0.2)
    weights = ANGLES[:, :, 0]
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state):
        value, gradient = jax.value_and_grad(energy)(weights)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(weights, updates), state, value

    values = []
    for _ in range(8):
        weights, state, value = step(weights, state)
        values.append(value)
    return values


if __name__ == "__main__":
    show({part.__name__: part() for part in (outputs, states, ground_state)})
