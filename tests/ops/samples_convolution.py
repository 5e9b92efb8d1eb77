"""How the sweep calls conv_general_dilated, in its one layout."""

from sweep import Sample


def _params(strides, pads, lhs_dilation=None, rhs_dilation=None, groups=1):
    ones = (1,) * len(strides)
    return {
        "window_strides": strides, "padding": pads, "lhs_dilation": lhs_dilation or ones,
        "rhs_dilation": rhs_dilation or ones, "groups": groups, "preferred_element_type": None,
    }  # fmt: skip


SAMPLES = {
    "conv_general_dilated": [
        Sample(((2, 3, 5), (4, 3, 2)), _params((1,), ((0, 0),))),
        Sample(((2, 2, 4, 5), (4, 1, 3, 2)), _params((2, 1), ((1, 1), (0, 1)), groups=2)),
        Sample(((1, 2, 4), (2, 2, 2)), _params((2,), ((2, -1),), (3,), (2,))),
        Sample(((2, 3), (2, 3)), _params((), ())),
    ]
}
