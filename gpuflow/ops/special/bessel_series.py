"""Modified Bessel functions as Chebyshev series, in kernels.

    exp(-x) I0(x), exp(-x) I1(x) / x            for x from 0 to 8, in x/4 - 1
    exp(-x) I0(x) sqrt(x), exp(-x) I1(x) sqrt(x)    from there on, in 16/x - 1

Source: the coefficients are sums over 60 Chebyshev points, of values of mpmath with 40 digits.

Tests: tests/ops/test_special_points.py, tests/ops/test_special_functions.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Largest omitted term, relative to the first.
_LEAST = {"float64": 1e-18, "float32": 1e-9}

_NEAR_0 = (
    0.3383976372047380425, -0.3046826723431983987, 0.1716209015222087753,
    -0.09490109704804764442, 0.04930528423967070849, -0.02373741480589946882,
    0.01054646039459499832, -0.004324309995050575944, 0.001639475616941335798,
    -0.0005763755745385823659, 0.0001885028850958416557, -0.00005754195010082103704,
    0.00001644844807072889709, -4.416738358458750564e-6, 1.117387539120103718e-6,
    -2.670793853940611734e-7, 6.046995022541918949e-8, -1.300025009986248042e-8,
    2.65982372468238665e-9, -5.189795601635262907e-10, 9.675809035373236912e-11,
    -1.726826291441555707e-11, 2.955052663129639835e-12, -4.856446783111929461e-13,
    7.676185498604935617e-14, -1.168533287799345168e-14, 1.715391285555133031e-15,
    -2.431279846547954694e-16, 3.330794518822238098e-17, -4.415341646479339379e-18,
    5.669178006921496157e-19,
)  # fmt: skip
_FAR_0 = (
    0.4022452055070544158, 0.00336911647825569409, 0.00006889758346916823984,
    2.891370520834756483e-6, 2.048918589469063742e-7, 2.266668990498178065e-8,
    3.396232025708386345e-9, 4.940602388224969589e-10, 1.188914710784643834e-11,
    -3.149916527963241365e-11, -1.321581184044771312e-11, -1.794178531506806118e-12,
    7.180124451383666234e-13, 3.852778382742142701e-13, 1.540086217521409827e-14,
    -4.150569347287222087e-14, -9.554846698828307649e-15, 3.811680669352622421e-15,
    1.772560133056526384e-15, -3.425485619677219135e-16, -2.827623980516583485e-16,
    3.461222867697461093e-17, 4.465621420296759999e-17, -4.830504485944182071e-18,
    -7.233180487874753955e-18, 9.921475412173698599e-19, 1.193650890845982086e-18,
    -2.488709837150807236e-19, -1.938426454160905929e-19,
)  # fmt: skip
_NEAR_1 = (
    0.1262935932218168274, -0.1764165183578340552, 0.1026436586898470954,
    -0.05294598120809499143, 0.02472644903062651683, -0.01056408489462619816,
    0.004156422944312888157, -0.001513572450631253149, 0.0005122859561685757729,
    -0.0001617608158258967456, 0.00004781565107550054226, -0.00001327316365603943583,
    3.470251308137678477e-6, -8.568720264695454741e-7, 2.003294753552135262e-7,
    -4.445059128796328081e-8, 9.381537386495771784e-9, -1.887249751722829288e-9,
    3.625590281552117037e-10, -6.663489723502027742e-11, 1.173618629889090163e-11,
    -1.983974397764943715e-12, 3.22379336594557471e-13, -5.042185504727911687e-14,
    7.600684294735406934e-15, -1.105596947735386308e-15, 1.553631957736200469e-16,
    -2.111421214358166078e-17, 2.77791411276104637e-18, -3.541581772542136205e-19,
    4.379302756655070995e-20,
)  # fmt: skip
_FAR_1 = (
    0.3892881175091400602, -0.009761097491361468408, -0.0001105889387626237163,
    -3.882564808877690393e-6, -2.512236237870208925e-7, -2.631468846889519507e-8,
    -3.835380385964237022e-9, -5.589743462196583807e-10, -1.897495812350541234e-11,
    3.252603583015488239e-11, 1.412580743661378133e-11, 2.035628544147089507e-12,
    -7.198551776245908512e-13, -4.083551111092197318e-13, -2.101541842772664313e-14,
    4.272440016711951354e-14, 1.042027698412880276e-14, -3.814403072437007805e-15,
    -1.880354775510782449e-15, 3.308202310920928283e-16, 2.962628997645950139e-16,
    -3.209525921993423959e-17, -4.650305368489358326e-17, 4.41434832307170795e-18,
    7.517296310842104805e-18, -9.314178867326883376e-19, -1.242193275194890956e-18,
    2.414276719454848469e-19, 2.026944384053285179e-19,
)  # fmt: skip


def i0e_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """``exp(-abs(x)) I0(x)``."""
    del in_avals, params, out_aval
    size, near, far = _series(builder, values[0], _NEAR_0, _FAR_0)
    return builder.select(_is_near(builder, size), near, far)


def i1e_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """``exp(-abs(x)) I1(x)``; 0.0 for -0.0, as in JAX and SciPy."""
    del in_avals, params, out_aval
    (x,) = values
    size, near, far = _series(builder, x, _NEAR_1, _FAR_1)
    near = builder.apply("mul", near, size)
    out = builder.select(_is_near(builder, size), near, far)
    is_negative = builder.apply("lt", x, builder.const(x.dtype, 0.0))
    return builder.select(is_negative, builder.apply("neg", out), out)


def _is_near(builder: Any, size: Any) -> Any:
    return builder.apply("le", size, builder.const(size.dtype, 8.0))


def _series(builder: Any, x: Any, near: Any, far: Any) -> tuple[Any, Any, Any]:
    """The magnitude of ``x`` and both series; the second one over its root."""
    apply, dtype = builder.apply, x.dtype
    size, one = apply("abs", x), builder.const(dtype, 1.0)
    at = apply("sub", apply("mul", size, builder.const(dtype, 0.25)), one)
    close = _clenshaw(builder, at, near)
    at = apply("sub", apply("div", builder.const(dtype, 16.0), size), one)
    return size, close, apply("mul", _clenshaw(builder, at, far), apply("rsqrt", size))


def _clenshaw(builder: Any, t: Any, coefficients: tuple[float, ...]) -> Any:
    """The sum of coefficients times Chebyshev polynomials at ``t``."""
    apply, least = builder.apply, _LEAST[t.dtype] * abs(coefficients[0])
    needed = np.flatnonzero(np.abs(coefficients) >= least)[-1] + 1
    *lower_coefficients, last = [builder.const(t.dtype, c) for c in coefficients[:needed]]
    twice = apply("add", t, t)
    upper, value = builder.const(t.dtype, 0.0), last
    for coefficient in lower_coefficients[:0:-1]:
        term = apply("sub", coefficient, upper)
        upper, value = value, apply("fma", twice, value, term)
    return apply("fma", t, value, apply("sub", lower_coefficients[0], upper))
