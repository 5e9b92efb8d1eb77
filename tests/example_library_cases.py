"""Networks of stax and steps of optimizers, for JAX's modules or ours: functions of the modules."""

import numpy as np

STEPS = 12


def networks(stax):
    """Name: the network and the shape of its input, with -1 for the batch."""
    image = (-1, 6, 5, 3)
    one_by_one = stax.serial(stax.Dense(4), stax.Tanh)
    branches = stax.parallel(stax.Dense(3), stax.Identity, one_by_one)
    channels_first = ("NCHW", "OIHW", "NCHW")
    return {
        "dense": (stax.serial(stax.Dense(5), stax.Relu, stax.Dense(2), stax.LogSoftmax), (-1, 3)),
        "activations": (
            stax.serial(
                stax.Dense(6), stax.Tanh, stax.Dense(6), stax.Exp, stax.Dense(6), stax.Softmax,
                stax.Softplus, stax.Dense(6), stax.Sigmoid, stax.Elu, stax.Dense(6),
                stax.LeakyRelu, stax.Selu, stax.Dense(6), stax.Gelu,
                stax.elementwise(abs),
            ),
            (-1, 4),
        ),
        "conv": (
            stax.serial(
                stax.Conv(4, (3, 2), (2, 1), "SAME"), stax.BatchNorm(), stax.Relu,
                stax.MaxPool((2, 2), (1, 2)), stax.Flatten, stax.Dense(3),
            ),
            image,
        ),
        "general conv": (
            stax.serial(
                stax.GeneralConv(channels_first, 4, (3, 3), padding="SAME"),
                stax.BatchNorm(axis=(0, 2, 3), center=False),
                stax.SumPool((2, 2), spec="NCHW"),
            ),
            (-1, 3, 6, 5),
        ),
        "transposed": (stax.ConvTranspose(2, (3, 3), (2, 2), "SAME"), image),
        "transposed line": (stax.Conv1DTranspose(2, (3,), (3,)), (-1, 6, 2)),
        "average": (stax.AvgPool((3, 3), (2, 2), "SAME"), image),
        "branches": (
            stax.serial(stax.FanOut(3), branches, stax.FanInConcat(), stax.Dense(2)), (-1, 4),
        ),
        "residual": (
            stax.serial(
                stax.FanOut(2),
                stax.parallel(stax.shape_dependent(lambda s: stax.Dense(s[-1])), stax.Identity),
                stax.FanInSum,
            ),
            (-1, 4),
        ),
        "dropout": (stax.serial(stax.Dense(8), stax.Dropout(0.6), stax.Dense(2)), (-1, 4)),
        "no dropout": (stax.serial(stax.Dropout(0.6, mode="test"), stax.Dense(2)), (-1, 4)),
    }  # fmt: skip


def network_results(stax, random, tree_leaves):
    """Name: shape of the output, sum of each parameter, and outputs for one input."""
    results = {}
    for name, ((init, apply), shape) in networks(stax).items():
        out_shape, params = init(random.PRNGKey(3), shape)
        sizes = [2 if size == -1 else size for size in shape]
        x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
        outputs = apply(params, x, rng=random.PRNGKey(4))
        results[name] = {
            "shape": [int(size) for size in out_shape],
            "sums": [float(np.asarray(leaf).sum(dtype=np.float64)) for leaf in tree_leaves(params)],
            "outputs": np.asarray(outputs).ravel().tolist(),
        }
    return results


def optimizer_makers(o):
    """Name: an optimizer."""
    return {
        "sgd": o.sgd(0.05),
        "sgd exponential": o.sgd(o.exponential_decay(0.1, 3, 0.5)),
        "sgd inverse": o.sgd(o.inverse_time_decay(0.1, 2, 0.4)),
        "sgd inverse staircase": o.sgd(o.inverse_time_decay(0.1, 2, 0.4, staircase=True)),
        "sgd polynomial": o.sgd(o.polynomial_decay(0.1, 8, 0.01, power=2.0)),
        "sgd piecewise": o.sgd(o.piecewise_constant([3, 7], [0.1, 0.05, 0.01])),
        "momentum": o.momentum(0.02, 0.9),
        "nesterov": o.nesterov(0.02, 0.9),
        "adagrad": o.adagrad(0.1),
        "rmsprop": o.rmsprop(0.05),
        "rmsprop_momentum": o.rmsprop_momentum(0.02),
        "adam": o.adam(0.1),
        "adamax": o.adamax(0.1),
        "sm3": o.sm3(0.1),
    }


def start():
    rng = np.random.default_rng(1)
    return {"a": rng.normal(size=(3, 2)).astype(np.float32), "b": (np.full(4, 2.0, np.float32),)}


def gradient(params):
    """Of a bowl that is steeper in some directions, in NumPy."""
    a, (b,) = (np.asarray(params["a"]), [np.asarray(leaf) for leaf in params["b"]])
    return {"a": a * np.float32([[1.0, 3.0]]), "b": ((b - np.arange(4)).astype(np.float32),)}


def optimizer_results(optimizers):
    """Name: all parameters after some steps."""
    results = {}
    for name, (init, update, get_params) in optimizer_makers(optimizers).items():
        state = init(start())
        for step in range(STEPS):
            state = update(step, gradient(get_params(state)), state)
        params = get_params(state)
        leaves = (params["a"], *params["b"])
        results[name] = np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]).tolist()
    return results
