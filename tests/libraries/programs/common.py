"""What the programs of libraries share. They are programs of JAX: run.py runs them on gpuflow."""

import itertools
import json
import sys

import jax
import numpy as np


def digits(count=128, size=16, classes=5):
    """Points around one center per class, and their labels."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(classes, size))
    labels = rng.integers(0, classes, count)
    points = centers[labels] + 0.7 * rng.normal(size=(count, size))
    return points.astype(np.float32), labels.astype(np.int32)


def numbers(tree):
    """The leaves of a tree as lists of floats."""
    return [np.asarray(leaf).astype(float).ravel().tolist() for leaf in jax.tree.leaves(tree)]


def show(results):
    """Print what a program found, by name, and which modules of JAX's inside were imported."""
    found = {name: list(itertools.chain(*numbers(tree))) for name, tree in results.items()}
    private = sorted(name for name in sys.modules if name.startswith("jax._src."))
    print(json.dumps({"results": found, "private": private}))
