"""orbax: checkpoints of a training, saved, restored and gone on with."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from common import digits, show

POINTS, LABELS = digits()


def training():
    one, two = jax.random.split(jax.random.key(0))
    params = {
        "first": {"w": jax.random.normal(one, (16, 32)) / 4, "b": jnp.zeros(32)},
        "second": [jax.random.normal(two, (32, 5)) / 6, jnp.zeros(5, jnp.bfloat16)],
    }
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state):
        def loss_of(params):
            hidden = jnp.tanh(POINTS @ params["first"]["w"] + params["first"]["b"])
            scores = hidden @ params["second"][0] + params["second"][1]
            return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    return params, optimizer.init(params), step


def after(params, state, step, count=3):
    losses = []
    for _ in range(count):
        params, state, loss = step(params, state)
        losses.append(loss)
    return losses, params, state


def saved_and_restored():
    params, state, step = training()
    _, params, state = after(params, state, step)
    everything = {"params": params, "state": state, "step": 3}
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder) / "one", everything)
        checkpointer.wait_until_finished()
        wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, everything)
        back = checkpointer.restore(Path(folder) / "one", wanted)
        plain = checkpointer.restore(Path(folder) / "one")
    assert jax.tree.structure(back) == jax.tree.structure(everything)
    same = jax.tree.map(lambda a, b: (jnp.asarray(a) == jnp.asarray(b)).all(), back, everything)
    dtypes = jax.tree.map(lambda a, b: jnp.result_type(a) == jnp.result_type(b), back, everything)
    losses, params, _ = after(back["params"], back["state"], step)
    return same, dtypes, losses, params, plain["params"]


def managed():
    params, state, step = training()
    with tempfile.TemporaryDirectory() as folder:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=2)
        with ocp.CheckpointManager(Path(folder), options=options) as manager:
            losses = []
            for k in range(7):
                params, state, loss = step(params, state)
                losses.append(loss)
                manager.save(
                    k,
                    args=ocp.args.Composite(
                        params=ocp.args.StandardSave(params), notes=ocp.args.JsonSave({"step": k})
                    ),
                )
            manager.wait_until_finished()
            steps = manager.all_steps()
            back = manager.restore(
                manager.latest_step(),
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(params), notes=ocp.args.JsonRestore()
                ),
            )
    return losses, sorted(steps), back["notes"], back["params"]


if __name__ == "__main__":
    show({"saved_and_restored": saved_and_restored(), "managed": managed()})
