"""haliax: named axes, layers of them, a block stacked over layers, and a training step."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
from common import show

Batch, Pos, Embed, Hidden = hax.make_axes(Batch=4, Pos=6, Embed=8, Hidden=16)
Heads, HeadDim, Vocab = hax.make_axes(Heads=2, HeadDim=4, Vocab=11)
KPos = Pos.alias("KPos")
RNG = np.random.default_rng(0)
X = hax.named(jnp.float32(RNG.normal(size=(4, 6, 8))), (Batch, Pos, Embed))


def named():
    weights = hax.random.normal(jax.random.key(0), (Embed, Hidden))
    product = hax.dot(X, weights, axis=Embed)
    outer = X["Batch", 1]["Pos", 2:4]
    order = hax.argsort(X.sum(Embed), axis=Pos)
    updated = X.at[{"Pos": 0}].set(1.0)
    return hax.tree_util.tree_map(
        lambda leaf: leaf,
        [
            product.array,
            outer.array,
            order.array,
            updated.array,
            hnn.softmax(X, axis=Pos).array,
            hax.vmap(lambda row: row.mean() + row.std(), Batch)(X).array,
            hax.flatten_axes(X, ("Pos", "Embed"), "All").array,
        ],
    )


class Block(eqx.Module):
    norm: hnn.LayerNorm
    query: hnn.Linear
    key: hnn.Linear
    value: hnn.Linear
    out: hnn.Linear

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key, 4)
        made = [hnn.Linear.init(Embed, (Heads, HeadDim), key=k) for k in keys[:3]]
        return Block(
            hnn.LayerNorm.init(Embed), *made, hnn.Linear.init((Heads, HeadDim), Embed, key=keys[3])
        )

    def __call__(self, x):
        y = self.norm(x)
        k, v = self.key(y).rename({"Pos": "KPos"}), self.value(y).rename({"Pos": "KPos"})
        mask = hnn.attention.causal_mask(Pos, KPos)
        mixed = hnn.attention.dot_product_attention(KPos, HeadDim, self.query(y), k, v, mask)
        return x + self.out(mixed)


class Model(eqx.Module):
    embed: hnn.Embedding
    blocks: hnn.Stacked

    def __call__(self, tokens):
        return self.embed.unembed(self.blocks.fold(self.embed(tokens)))


def trained():
    first, second = jax.random.split(jax.random.key(1))
    Layers = hax.Axis("Layers", 3)
    blocks = hnn.Stacked.init(Layers, Block)(key=jax.random.split(second, 3))
    model = Model(hnn.Embedding.init(Vocab, Embed, key=first), blocks)
    tokens = hax.named(jnp.int32(RNG.integers(0, 11, (4, 6))), (Batch, Pos))

    @eqx.filter_jit
    def step(model):
        def loss_of(model):
            targets = hnn.one_hot(hax.roll(tokens, -1, Pos), Vocab)
            return hnn.cross_entropy_loss(model(tokens), Vocab, targets).scalar()

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss

    losses = []
    for _ in range(5):
        model, loss = step(model)
        losses.append(loss)
    return losses, model.embed.weight.array


if __name__ == "__main__":
    show({part.__name__: part() for part in (named, trained)})
