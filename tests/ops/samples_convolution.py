"""How the sweep calls conv_general_dilated: batch, channels, space, and groups in between."""

from op_sweep import EXACT, Sample

from gpuflow.ops.contractions.convolution import ConvDims, Roles


def _params(strides, pads, lhs_dilation=None, rhs_dilation=None, grouped=False):
    count = len(strides)
    ones, space = (1,) * count, tuple(range(2, 2 + count))
    plain = ConvDims(*(Roles((), (0,), (1,), space) for _ in range(3)))
    moved = tuple(range(3, 3 + count))
    groups = ConvDims(
        Roles((1,), (0,), (2,), moved),
        Roles((0,), (1,), (2,), moved),
        Roles((1,), (0,), (2,), moved),
    )
    return {
        "dimension_numbers": groups if grouped else plain,
        "window_strides": strides,
        "padding": pads,
        "lhs_dilation": lhs_dilation or ones,
        "rhs_dilation": rhs_dilation or ones,
        "precision": EXACT,
        "preferred_element_type": None,
    }


SAMPLES = {
    "conv_general_dilated": [
        Sample(((2, 3, 5), (4, 3, 2)), _params((1,), ((0, 0),))),
        Sample(((2, 2, 1, 4, 5), (2, 2, 1, 3, 2)), _params((2, 1), ((1, 1), (0, 1)), grouped=True)),
        Sample(((1, 2, 4), (2, 2, 2)), _params((2,), ((2, -1),), (3,), (2,))),
        Sample(((2, 3), (2, 3)), _params((), ())),
    ]
}
