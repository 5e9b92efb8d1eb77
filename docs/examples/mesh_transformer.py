"""A transformer, four ways to split it over a mesh, and the plan of one device for each.

    python mesh_transformer.py plan                  # of a large model on 64 GPUs; none is needed
    GPUFLOW_CPU_DEVICES=8 python mesh_transformer.py # trains a small one on virtual devices
    gpuflow launch -n 8 mesh_transformer.py          # the same on 8 processes

The functions of the model know nothing of devices: only the shardings of arguments differ.
"""

import sys

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import NamedSharding, P, lax, nn

AXES = ("data", "model")
WAYS = ("data parallel", "FSDP", "tensor parallel", "sequence parallel")
SMALL = {"layers": 2, "width": 64, "words": 256, "batch": 8, "length": 32}
LARGE = {"layers": 32, "width": 4096, "words": 32_768, "batch": 64, "length": 4096}
HEADS = 8


def norm(x):
    return x * lax.rsqrt((x.astype(jnp.float32) ** 2).mean(-1, keepdims=True) + 1e-6).astype(
        x.dtype
    )


def layer(x, w):
    h, heads = norm(x), (*x.shape[:2], HEADS, -1)
    q, k, v = ((h @ w[name]).reshape(heads) for name in "qkv")
    x = x + nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ w["out"]
    return x + nn.gelu(norm(x) @ w["up"]) @ w["down"], None


def loss(params, tokens):
    x = params["embedding"][tokens]
    x, _ = lax.scan(gf.checkpoint(layer), x, params["layers"])
    scores = (norm(x) @ params["embedding"].T).astype(jnp.float32)[:, :-1]
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], -1)[..., 0]
    return (nn.logsumexp(scores, -1) - right).mean()


def step(params, tokens):
    value, slopes = gf.value_and_grad(loss)(params, tokens)
    return gf.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, slopes), value


def specs(way):
    """Specs of the parameters and of the tokens."""
    columns = rows = P()
    if way == "FSDP":  # each matrix is gathered before its product
        columns = rows = P(None, AXES)
    if way == "tensor parallel":  # pairs of products need one sum (Megatron)
        columns, rows = P(None, None, "model"), P(None, "model")
    layers = {name: columns for name in ("q", "k", "v", "up")} | {"out": rows, "down": rows}
    words = {"FSDP": P(AXES), "tensor parallel": P("model")}.get(way, P())
    tokens = {"tensor parallel": P("data"), "sequence parallel": P("data", "model")}
    return {"embedding": words, "layers": layers}, tokens.get(way, P(AXES))


def shapes(layers, width, words, batch, length, dtype=jnp.float32):
    """Shapes of the parameters and of the tokens."""
    square, wide, tall = (width, width), (width, 4 * width), (4 * width, width)
    sizes = {"q": square, "k": square, "v": square, "out": square, "up": wide, "down": tall}
    matrices = {name: gf.ShapeDtypeStruct((layers, *size), dtype) for name, size in sizes.items()}
    embedding = gf.ShapeDtypeStruct((words, width), dtype)
    tokens = gf.ShapeDtypeStruct((batch, length), jnp.int32)
    return {"embedding": embedding, "layers": matrices}, tokens


def plan(way, mesh, sizes, topology=None, dtype=jnp.bfloat16):
    """The plan of one device."""
    params, tokens = shapes(**sizes, dtype=dtype)
    param_specs, token_spec = specs(way)
    params = gf.tree.map(lambda s, spec: s.update(sharding=spec), params, param_specs)
    jitted = gf.jit(step, out_shardings=(param_specs, P()), donate_argnums=0)
    arguments = params, tokens.update(sharding=token_spec)
    return gf.explain(jitted, *arguments, mesh=mesh, topology=topology)


def train(way, mesh, steps=5, sizes=SMALL):
    """The losses of some steps."""
    rng = np.random.default_rng(0)
    params, tokens = shapes(**sizes)
    params = gf.tree.map(lambda s: rng.normal(0, 0.1, s.shape).astype(np.float32), params)
    tokens = rng.integers(0, sizes["words"], tokens.shape, np.int32)
    param_specs, token_spec = specs(way)
    params = gf.tree.map(lambda x, s: gf.device_put(x, NamedSharding(mesh, s)), params, param_specs)
    tokens = gf.device_put(tokens, NamedSharding(mesh, token_spec))
    jitted = gf.jit(
        step, out_shardings=gf.tree.map(lambda s: NamedSharding(mesh, s), (param_specs, P()))
    )
    losses = []
    for _ in range(steps):
        params, value = jitted(params, tokens)
        losses.append(value)
    return [float(value) for value in losses]


def main():
    if sys.argv[1:] == ["plan"]:
        mesh = gf.sharding.AbstractMesh((8, 8), AXES)
        for way in WAYS:
            found = plan(way, mesh, LARGE)
            print(f"\n{way}: {found}")
            found.to_html(f"{way.replace(' ', '_')}.html")
        return
    mesh = gf.make_mesh((gf.device_count() // 4 or 1, min(4, gf.device_count())), AXES)
    for way in WAYS:
        print(way, train(way, mesh))


if __name__ == "__main__":
    main()
