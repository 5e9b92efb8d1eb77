"""flax.training.checkpoints: of a training, by msgpack and by orbax, and in the background."""

import tempfile

import flax
import jax
import jax.numpy as jnp
import optax
from common import digits, show
from flax import linen as nn
from flax.training import checkpoints, train_state

POINTS, LABELS = digits()


MODEL, OPTIMIZER = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(5)]), optax.adam(1e-2)


def training():
    params = MODEL.init(jax.random.key(0), POINTS)
    return train_state.TrainState.create(apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)


@jax.jit
def step(state):
    def loss_of(params):
        scores = state.apply_fn(params, POINTS)
        return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def saved(by_orbax):
    flax.config.update("flax_use_orbax_checkpointing", by_orbax)
    state, losses = training(), []
    with tempfile.TemporaryDirectory() as folder:
        manager = None if by_orbax else checkpoints.AsyncManager()
        for k in range(4):
            state, loss = step(state)
            losses.append(loss)
            checkpoints.save_checkpoint(folder, state, k, keep=2, async_manager=manager)
            if manager is not None:
                manager.wait_previous_save()
        steps = [int(k) for k in checkpoints.available_steps(folder)]
        back = checkpoints.restore_checkpoint(folder, training())
        plain = checkpoints.restore_checkpoint(folder, None, step=2)
        everywhere = checkpoints.save_checkpoint_multiprocess(folder, state, 9)
        last = checkpoints.restore_checkpoint(everywhere, training())
    pairs = (back.params, back.opt_state), (state.params, state.opt_state)
    same = jax.tree.map(lambda a, b: (jnp.asarray(a) == b).all(), *pairs)
    losses.append(step(back)[1])
    return losses, steps, same, back.params, plain["opt_state"], last.params


if __name__ == "__main__":
    show({"msgpack": saved(False), "orbax": saved(True)})
