"""The steps of the plans of real models. A change that adds steps fails; one that saves some is
written down with ``UPDATE_GOLDEN=1 pytest tests/compiler/test_model_plans.py``.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.pipeline import compile_plan

sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))
import models
import optimizers

GOLDEN = Path(__file__).parent / "golden" / "model_plans.json"


def forward(loss, params, data):
    return lambda params, *data: loss(gf, jnp, params, *data), params, data


def backward(loss, params, data):
    return gf.grad(lambda params, *data: loss(gf, jnp, params, *data)), params, data


def train(loss, params, data, update, state):
    return optimizers.training_step(gf, jnp, loss, update), state(params), data


def update_only(update, state, clip=False):
    params = optimizers.many_params(100)

    def step(state, grads):
        if clip:
            grads = optimizers.clip_by_global_norm(gf, jnp, grads)
        return update(gf, jnp, state, grads)

    return step, state(params), (params,)


ADAM = (optimizers.adam, optimizers.adam_state)
SGD = (optimizers.sgd, optimizers.sgd_state)
MODELS = {
    "perceptron": (models.mlp_loss, models.mlp_params(), models.mlp_batch()),
    "perceptron, integer labels": (
        models.mlp_integer_loss,
        models.mlp_params(),
        (models.mlp_batch()[0], np.zeros(len(models.mlp_batch()[0]), np.int32)),
    ),
    "transformer block": (
        models.transformer_loss,
        models.transformer_params(64),
        models.transformer_batch(2, 32, 64),
    ),
    "convolutional network": (models.cnn_loss, models.cnn_params(), models.cnn_batch(4)),
    "recurrent network": (models.gru_loss, models.gru_params(), models.gru_batch()),
}
PROGRAMS = {
    **{f"{name}, loss": forward(*model) for name, model in MODELS.items()},
    **{f"{name}, gradient": backward(*model) for name, model in MODELS.items()},
    **{f"{name}, Adam step": train(*model, *ADAM) for name, model in MODELS.items()},
    "100 parameters, SGD": update_only(*SGD),
    "100 parameters, Adam": update_only(*ADAM),
    "100 parameters, clipped SGD": update_only(*SGD, clip=True),
    "100 parameters, clipped Adam": update_only(*ADAM, clip=True),
}


def steps_of(plan):
    """A line for each step, those of programs inside further in."""
    lines = []
    for step in plan.steps:
        lines.append(f"{step.kind} {step.name}")
        for inner in getattr(step, "programs", ()):
            lines += [f"  {line}" for line in steps_of(inner.plan)]
    return lines


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_of_models(name):
    function, state, data = PROGRAMS[name]
    jitted = gf.jit(function, donate_argnums=(0,) if "Adam" in name or "SGD" in name else ())
    donated = range(len(gf.tree.leaves(state))) if jitted._options.donate_argnums else ()
    found = steps_of(compile_plan(jitted.lower(state, *data).jaxpr, tuple(donated))[0])
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**golden, name: found}, indent=1) + "\n")
        return
    assert len(found) <= len(golden[name]), "\n".join(["more steps than before:", *found])
    assert found == golden[name], "other steps: look at them, and write them down if they are good"
