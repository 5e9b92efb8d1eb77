"""How the sweep calls special functions that are not plain elementwise ops.

Some have no derivative by some operand, so the sweep checks none of theirs;
test_special_functions.py does.
"""

from op_sweep import Sample

_PAIR = ((2, 3), (2, 3))

SAMPLES = {
    "digamma": [Sample(((2, 3),))],
    "bessel_i0e": [Sample(((2, 3),))],
    "bessel_i1e": [Sample(((2, 3),))],
    "polygamma": [Sample(_PAIR, derivative=False)],
    "zeta": [Sample(_PAIR, derivative=False), Sample(((2, 1), (1, 3)), derivative=False)],
    "igamma": [Sample(_PAIR, derivative=False), Sample(((), (2, 3)), derivative=False)],
    "igammac": [Sample(_PAIR, derivative=False)],
    "igamma_grad_a": [Sample(_PAIR, derivative=False)],
    "random_gamma_grad": [Sample(_PAIR, derivative=False)],
    "regularized_incomplete_beta": [Sample(((2, 3),) * 3, derivative=False)],
    "betainc_complement": [Sample(((2, 3),) * 3, derivative=False)],
    "betainc_grad_a": [Sample(((2, 3),) * 3, derivative=False)],
    "betainc_grad_b": [Sample(((2, 3),) * 3, derivative=False)],
}
