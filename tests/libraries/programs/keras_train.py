"""keras with its JAX backend: fit, evaluate and predict of several kinds of models."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
from common import digits, show

keras.config.set_floatx("float64" if jax.config.jax_enable_x64 else "float32")
keras.config.set_epsilon(1e-7)
POINTS, LABELS = digits()


def weights_of(model):
    """Known weights: Keras' own come from a seed of each layer."""
    rng = np.random.default_rng(1)
    model.set_weights([0.3 * rng.normal(size=np.shape(w)) for w in model.get_weights()])
    return model


def functional():
    inputs = keras.Input((16,))
    x = keras.layers.Dense(32, activation="gelu")(inputs)
    x = keras.layers.LayerNormalization()(x)
    skip = keras.layers.Dense(32, activation="tanh")(inputs)
    outputs = keras.layers.Dense(5)(keras.layers.Add()([x, skip]))
    model = weights_of(keras.Model(inputs, outputs))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(POINTS, LABELS, epochs=4, batch_size=32, shuffle=False, verbose=0).history
    scores = model.evaluate(POINTS, LABELS, verbose=0)
    return history["loss"], history["accuracy"], scores, model.predict(POINTS[:4], verbose=0)


def convolutional():
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    weights_of(model)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy")
    targets = np.eye(5, dtype=np.float32)[LABELS]
    images = POINTS.reshape(-1, 4, 4, 1)
    fitted = model.fit(images, targets, epochs=3, batch_size=64, shuffle=False, verbose=0)
    return fitted.history["loss"]


def sequences():
    model = keras.Sequential(
        [
            keras.Input((4, 4)),
            keras.layers.LSTM(6, return_sequences=True),
            keras.layers.GRU(5),
            keras.layers.Dense(1),
        ]
    )
    weights_of(model)
    model.compile(optimizer=keras.optimizers.RMSprop(1e-3), loss="mse")
    targets = np.float32(LABELS)[:, None]
    steps = POINTS.reshape(-1, 4, 4)
    losses = model.fit(steps, targets, epochs=2, batch_size=64, shuffle=False, verbose=0)
    attention = weights_of(keras.Sequential([keras.Input((4, 4)), Attention()]))
    return losses.history["loss"], attention.predict(steps[:3], verbose=0)


class Attention(keras.layers.Layer):
    """A layer of one's own, with others in it."""

    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 3)
        self.attention.build(shape, shape)
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return keras.ops.softmax(self.attention(x, x) * self.scale)


if __name__ == "__main__":
    parts = (functional, convolutional, sequences)
    show({part.__name__: part() for part in parts})
