"""dm-pix: changes of colors and shapes of images, and how far two of them differ."""

import dm_pix as pix
import jax
import jax.numpy as jnp
import numpy as np
from common import show

RNG = np.random.default_rng(0)
IMAGE = jnp.float32(RNG.random((16, 20, 3)))


def colors():
    return (
        pix.adjust_brightness(IMAGE, 0.1),
        pix.adjust_contrast(IMAGE, 0.7),
        pix.adjust_gamma(IMAGE, 1.4),
        pix.adjust_hue(IMAGE, 0.2),
        pix.adjust_saturation(IMAGE, 1.5),
        pix.solarize(IMAGE, 0.4),
        pix.rgb_to_hsl(IMAGE),
        pix.hsv_to_rgb(pix.rgb_to_hsv(IMAGE)),
        pix.rgb_to_grayscale(IMAGE),
    )


def shapes():
    keys = jax.random.split(jax.random.key(0), 3)
    turned = jax.jit(lambda image: pix.rotate(image, 0.4, order=1, mode="reflect"))
    return (
        turned(IMAGE),
        pix.gaussian_blur(IMAGE, 1.3, kernel_size=5.0),
        pix.elastic_deformation(keys[0], IMAGE, alpha=8.0, sigma=2.0),
        pix.random_crop(keys[1], IMAGE, (7, 9, 3)),
        jax.vmap(pix.random_flip_left_right)(keys, jnp.stack([IMAGE] * 3)),
        pix.resize_with_crop_or_pad(IMAGE, 12, 24),
        pix.rot90(IMAGE, 3),
        pix.space_to_depth(IMAGE, 4),
        pix.extract_patches(IMAGE[None], (1, 4, 4, 1), (1, 4, 4, 1), (1, 1, 1, 1), padding="VALID"),
    )


def metrics():
    other = jnp.float32(RNG.random(IMAGE.shape))
    names = ("mae", "mse", "psnr", "rmse", "simse")
    similar = jax.value_and_grad(lambda image: pix.ssim(image, other, filter_size=7))
    return [getattr(pix, name)(IMAGE, other) for name in names], similar(IMAGE)


if __name__ == "__main__":
    show({part.__name__: part() for part in (colors, shapes, metrics)})
