"""Random keys and numbers."""

import gpuflow.numpy as jnp
from gpuflow import Array, random

key = random.key(42)
key, subkey = random.split(key)
first, second, third = random.split(subkey, 3)
keys: Array = random.split(key, (2, 3))
noise = random.normal(first, (3, 4), dtype=jnp.float32)
numbers = random.randint(second, (5,), 0, 10)
coins = random.bernoulli(third, 0.3, (4,)).astype(jnp.int32)
order = random.permutation(random.fold_in(key, 1), 10)
picks = random.choice(random.fold_in(key, 2), jnp.arange(5), (2,), replace=False)
classes = random.categorical(random.fold_in(key, 3), noise, axis=-1)
print(noise.mean(), numbers.max(), coins.sum(), order[0], picks.shape, classes.dtype, keys.shape)
print(random.uniform(random.PRNGKey(0), minval=-1.0, maxval=1.0).item())
print(random.gamma(random.fold_in(key, 4), 2.0, (3,)), random.key_data(key), random.key_impl(key))
