"""Functions of gf.nn, and convolutions."""

import gpuflow.numpy as jnp
from gpuflow import Array, lax, nn, random

init = nn.initializers.he_normal()
w: Array = init(random.key(0), (4, 3), jnp.float32)
x = random.normal(random.key(1), (2, 4))
h = nn.gelu(x @ w, approximate=True)
h = nn.silu(h) + nn.softplus(h) + nn.leaky_relu(h, 0.1) + nn.sigmoid(h) + nn.relu(h)
p = nn.softmax(h, axis=-1)
loss = -(nn.one_hot(jnp.array([0, 2]), 3) * nn.log_softmax(h)).sum(-1).mean()
q = random.normal(random.key(2), (1, 5, 2, 8))
attended = nn.dot_product_attention(q, q, q, is_causal=True)
image = jnp.ones((1, 1, 8, 8))
kernel = jnp.ones((2, 1, 3, 3))
out = lax.conv_general_dilated(image, kernel, window_strides=(1, 1), padding="SAME")
print(p.sum(-1), loss.item(), attended.shape, out.shape, nn.logsumexp(h), nn.standardize(h).shape)
