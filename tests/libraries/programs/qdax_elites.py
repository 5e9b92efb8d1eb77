"""QDax: MAP-Elites on the arm and on Rastrigin's function, with variations along lines."""

import functools

import jax
import jax.numpy as jnp
from common import show
from qdax.core.containers.mapelites_repertoire import (
    compute_cvt_centroids,
    compute_euclidean_centroids,
)
from qdax.core.emitters.mutation_operators import isoline_variation, polynomial_mutation
from qdax.core.emitters.standard_emitters import MixingEmitter
from qdax.core.map_elites import MAPElites
from qdax.tasks.arm import arm_scoring_function
from qdax.tasks.standard_functions import rastrigin_scoring_function
from qdax.utils.metrics import default_qd_metrics


def evolved(score, size, centroids):
    emitter = MixingEmitter(
        mutation_fn=functools.partial(
            polynomial_mutation, proportion_to_mutate=0.5, eta=5.0, minval=0.0, maxval=1.0
        ),
        variation_fn=functools.partial(
            isoline_variation, iso_sigma=0.01, line_sigma=0.1, minval=0.0, maxval=1.0
        ),
        variation_percentage=0.75,
        batch_size=16,
    )
    algorithm = MAPElites(score, emitter, functools.partial(default_qd_metrics, qd_offset=30.0))
    genotypes = jax.random.uniform(jax.random.key(0), (24, size))
    state = algorithm.init(genotypes, centroids, jax.random.key(1))
    repertoire, emitter_state, _ = state
    metrics = []
    for key in jax.random.split(jax.random.key(2), 6):
        repertoire, emitter_state, found = jax.jit(algorithm.update)(repertoire, emitter_state, key)
        metrics.append(found)
    fitnesses = jnp.nan_to_num(repertoire.fitnesses, neginf=-99.0)
    return metrics, fitnesses, repertoire.descriptors


def arm():
    return evolved(arm_scoring_function, 5, compute_euclidean_centroids((6, 6), 0.0, 1.0))


def rastrigin():
    centroids = compute_cvt_centroids(2, 200, 20, 0.0, 1.0, jax.random.key(3))
    return centroids.shape, evolved(
        rastrigin_scoring_function, 3, compute_euclidean_centroids((4, 5), 0.0, 1.0)
    )


if __name__ == "__main__":
    show({part.__name__: part() for part in (arm, rastrigin)})
