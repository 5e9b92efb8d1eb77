"""Writes lax_values.json: what JAX 0.10 makes of expressions of jax.lax.

Run by hand: python tests/data/make_lax_values.py. The tests read the file and need no JAX.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from make_surface_data import FOLDER, described

OPERANDS = {
    "x": "jnp.array([[0.5, 2.0, -1.0, 0.25, 2.0], [3.0, -2.0, 0.0, 1.5, -0.5], "
    "[1.0, 4.0, 4.0, -3.0, 0.75], [-1.5, 0.125, 2.5, 1.0, -4.0]])",
    "t": "jnp.sin(jnp.arange(20.0)).reshape(4, 5)",
    "i": "jnp.array([[1], [3], [1], [7], [1]])",
    "line": "lax.ScatterDimensionNumbers((), (0,), (0,))",
    "rows": "lax.ScatterDimensionNumbers((1,), (0,), (0,))",
    "i32": "jnp.array([2**31 - 1, -2**31, 12345678, -7, 0], jnp.int32)",
    "j32": "jnp.array([2**31 - 1, 2**31 - 1, 87654321, 3, -1], jnp.int32)",
    "u8": "jnp.array([255, 128, 16, 3], jnp.uint8)",
    "state": "jnp.array([1, 2, 2**32 - 2, 4], jnp.uint32)",
    "key": "jax.random.key(7)",
    "image": "jnp.cos(jnp.arange(2 * 6 * 5 * 3.0)).reshape(2, 6, 5, 3)",
    "nhwc": "('NHWC', 'HWIO', 'NHWC')",
    "groups": "jnp.array([2, 0, 1], jnp.int32)",
    "each": "jnp.array([[2, 0, 1], [1, 1, 2]], jnp.int32)",
    "stack": "jnp.cos(jnp.arange(2 * 4 * 3.0)).reshape(2, 4, 3)",
    "matrices": "jnp.sin(jnp.arange(3 * 3 * 2.0)).reshape(3, 3, 2)",
    "pairs": "jnp.sin(jnp.arange(2 * 3 * 3 * 2.0)).reshape(2, 3, 3, 2)",
    "f16": "jnp.array([[1.0, 0.333], [2.5, -0.1]], jnp.float16)",
    "square": "jnp.array([[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.25, 2.0, 5.0]])",
}

WINDOW = "window_dimensions=(2, 3), window_strides=(2, 1), padding=((0, 0), (1, 1))"
HOLES = "base_dilation=(1, 1), window_dilation=(1, 1)"
# The places of that window in a (4, 5) array.
SOURCE = "jnp.cos(jnp.arange(10.0)).reshape(2, 5)"
LAYOUTS = "(((2,), (1,)), ((), ()))"

WINDOWS = (
    [
        f"lax.select_and_gather_add_p.bind(t, x, select_prim=lax.{prim}, {WINDOW}, {HOLES})"
        for prim in ("ge_p", "le_p")
    ]
    + [
        f"lax.select_and_scatter_add_p.bind({SOURCE}, x, select_prim=lax.{prim}, {WINDOW})"
        for prim in ("ge_p", "le_p")
    ]
    + [
        "jax.grad(lambda x: jnp.sum(t[:2] * lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (2, "
        "1), "
        "((0, 0), (1, 1)))))(x)",
        "jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, "
        "lax.max, "
        "(2, 2), (1, 1), 'VALID') ** 3))(x) ** 2))(x)",
        "lax.reduce_window_shape_tuple((5, 6), (2, 3), (2, 1), ((1, 0), (0, 2)), (1, 2), (2, 1))",
    ]
)

SCATTERS = [
    "lax.scatter_apply(x[0], i, lambda v: lax.sin(v) * 2, line, update_shape=(5,))",
    "lax.scatter_apply(x[0], i, lambda v: v + 1, line, update_shape=(5,), mode='clip')",
    "lax.scatter_apply(x, i, jnp.square, rows, update_shape=(5, 5))",
    "jax.jit(lambda x, i: lax.scatter_apply(x, i, lambda v: -v, rows, update_shape=(5, 5)))(x, i)",
    "x.at[jnp.array([1, 1, 2])].apply(lambda v: v / 2)",
]

BITS = [
    "lax.mulhi(i32, j32)",
    "lax.mulhi(u8, u8)",
    "lax.mulhi(i32, 3)",
    "jax.random.gumbel(key, (4, 5), mode='highest')",
    "jax.random.gumbel(key, (3,), dtype='bfloat16', mode='highest')",
    "jax.random.categorical(key, x, mode='highest')",
    "lax.rng_bit_generator(state, (3,))",
] + [
    f"lax.rng_bit_generator(state, {shape}, '{dtype}', lax.RandomAlgorithm.{algorithm})"
    for algorithm in ("RNG_THREE_FRY", "RNG_PHILOX")
    for dtype in ("uint8", "uint16", "uint32")
    for shape in ("()", "(5,)", "(3, 4)", "(3, 5)", "(3, 3)", "(0,)")
]

SORTED = [
    "lax.approx_max_k(x, 2)",
    "lax.approx_max_k(x, 2, reduction_dimension=0)",
    "lax.approx_min_k(x, 3, recall_target=0.9)",
    "jax.grad(lambda x: jnp.sum(lax.approx_min_k(x, 2)[0] * t[:, :2]))(x)",
    "jax.grad(lambda x: jnp.sum(lax.approx_max_k(x, 2, 0)[0] * t[:2]))(x)",
]

CONVOLUTIONS = [
    "lax.conv_general_dilated_local(image, jnp.sin(jnp.arange(324.0)).reshape(3, 3, 18, 2), "
    "(2, 1), 'VALID', (2, 3), dimension_numbers=nhwc)[:, :, :, :1]",
    "lax.conv_general_dilated_local(image[..., 0], jnp.sin(jnp.arange(192.0)).reshape(2, 24, 4), "
    "(1,), [(1, 1)], (4,), rhs_dilation=(1,))",
    "jax.grad(lambda w: jnp.sum(lax.conv_general_dilated_local(image[..., 0], w, (1,), [(1, 1)], "
    "(4,)) ** 2))(jnp.sin(jnp.arange(192.0)).reshape(2, 24, 4))",
    "lax.conv_shape_tuple((4, 3, 7, 8), (4, 3, 3, 2), (2, 1), 'SAME')",
    "lax.conv_shape_tuple((4, 3, 7, 8), (4, 3, 3, 2), (2, 1), [(1, -1), (0, 3)], 2)",
    "lax.conv_general_shape_tuple((2, 7, 8, 3), (3, 2, 3, 4), (2, 1), 'VALID', "
    "('NHWC', 'HWIO', 'NCHW'))",
    "lax.conv_transpose_shape_tuple((2, 7, 8, 3), (3, 2, 3, 4), (2, 1), 'SAME', nhwc)",
    "lax.conv_transpose_shape_tuple((2, 7, 8, 3), (3, 2, 3, 4), (2, 3), 'VALID', nhwc)",
    "lax.conv_general_permutations(('NHWC', 'WIHO', 'CHNW'))",
]

RAGGED = [
    "lax.ragged_dot(stack[0], matrices, groups)",
    "lax.ragged_dot(stack[0], matrices, groups, preferred_element_type=jnp.float32)",
    "lax.ragged_dot_general(stack, matrices, groups, "
    f"lax.RaggedDotDimensionNumbers({LAYOUTS}, [1], [0]))",
    "lax.ragged_dot_general(stack, matrices, each, "
    f"lax.RaggedDotDimensionNumbers({LAYOUTS}, [1], [0]))",
    "lax.ragged_dot_general(stack, pairs, each, "
    "lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (0,))), [1], [1]))",
    "lax.ragged_dot_general(stack, stack, each, "
    "lax.RaggedDotDimensionNumbers((((1,), (1,)), ((0,), (0,))), [1], []))",
    "lax.ragged_dot_general(stack, stack, jnp.array([[1, 1], [0, 2], [2, 2], [4, 0]])[:2], "
    "lax.RaggedDotDimensionNumbers((((0, 1), (0, 1)), ((), ())), [1], []))",
    "lax.ragged_dot_general(stack, stack, groups, "
    "lax.RaggedDotDimensionNumbers((((2,), (2,)), ((0,), (0,))), [0], []))",
    "jax.grad(lambda a, b: jnp.sum(lax.ragged_dot(a, b, groups) ** 2), (0, 1))(stack[0], matrices)",
]

OTHERS = [
    "lax.dot(x, x.T, precision=('high', 'highest'))",
    "lax.dot(x, x.T, precision='F32_F32_F32')",
    "lax.dot(f16, f16, precision=lax.DotAlgorithmPreset.DEFAULT)",
    "lax.broadcast_to_rank(x, 4)",
    "lax.broadcast_to_rank(x, 2)",
    "lax.broadcast_like(x[:, :1], x)",
    "lax.broadcast_like(3, x)",
    "jnp.asarray(lax.shape_as_value((2, 3)))",
    "lax.platform_dependent(2.0, cpu=lambda v: v * 3, default=lambda v: v)",
    "lax.platform_dependent(2.0, tpu=lambda v: v * 3, default=lambda v: v + 1)",
    "jax.jit(lax.composite(lambda v, *, scale: jnp.sin(v) * scale, 'my.sin'), "
    "static_argnames='scale')(x, scale=2.0)",
    "lax.stage(2)",
    "lax.linalg.qdwh(square)",
    "lax.linalg.qdwh(square[:, :2], max_iterations=3)",
    "lax.linalg.ormqr(*[v.mT if v.ndim == 2 else v for v in jnp.linalg.qr(square, 'raw')], x[:3], "
    "transpose=True)",
]

FAMILIES = {
    "windows": WINDOWS,
    "scatters": SCATTERS,
    "bits": BITS,
    "sorted": SORTED,
    "convolutions": CONVOLUTIONS,
    "ragged": RAGGED,
    "others": OTHERS,
}

if __name__ == "__main__":
    space = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}
    for name, text in OPERANDS.items():
        space[name] = eval(text, dict(space))
    stored = {
        family: {line: described(eval(line, dict(space))) for line in lines}
        for family, lines in FAMILIES.items()
    }
    text = json.dumps({"operands": OPERANDS, **stored}, indent=0)
    (FOLDER / "lax_values.json").write_text(text + "\n")
