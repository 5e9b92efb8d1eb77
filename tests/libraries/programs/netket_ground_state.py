"""NetKet: the Ising chain, by exact states, samples of Metropolis and natural gradients."""

import jax
import jax.numpy as jnp
import netket as nk
from common import show


def chain():
    graph = nk.graph.Chain(6)
    hilbert = nk.hilbert.Spin(0.5, 6)
    return hilbert, graph, nk.operator.IsingJax(hilbert, graph, h=0.8)


def operators():
    hilbert, graph, ising = chain()
    states = hilbert.all_states()[:5]
    neighbors, elements = ising.get_conn_padded(states)
    exact = nk.exact.lanczos_ed(ising, k=2)
    heisenberg = nk.operator.Heisenberg(hilbert, graph).to_jax_operator()
    return neighbors, elements, exact, heisenberg.get_conn_padded(states)[1]


def full():
    hilbert, _, ising = chain()
    model = nk.models.RBM(alpha=1, param_dtype=float)
    state = nk.vqs.FullSumState(hilbert, model, seed=0)
    driver = nk.driver.VMC(
        ising,
        nk.optimizer.Sgd(0.1),
        variational_state=state,
        preconditioner=nk.optimizer.SR(diag_shift=0.01),
    )
    log = nk.logging.RuntimeLog()
    driver.run(5, out=log, show_progress=False)
    return log.data["Energy"].Mean.real if hasattr(log.data["Energy"], "Mean") else 0.0


def sampled():
    hilbert, graph, ising = chain()
    sampler = nk.sampler.MetropolisExchange(hilbert, graph=graph, n_chains=8)
    state = nk.vqs.MCState(
        sampler, nk.models.RBM(param_dtype=float), n_samples=64, seed=1, sampler_seed=2
    )
    energy, gradient = state.expect_and_grad(ising)
    return state.samples, energy.mean.real, jax.tree.map(jnp.real, gradient)


if __name__ == "__main__":
    show({part.__name__: part() for part in (operators, full, sampled)})
