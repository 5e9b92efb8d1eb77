"""Names of algorithms for decompositions; those that LAPACK lacks raise an error.

Tests: tests/ops/test_linalg_rest.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from gpuflow.base.errors import check


class SvdAlgorithm(enum.Enum):
    """Algorithms for singular values; ``JACOBI`` and ``POLAR`` raise an error."""

    DEFAULT = "default"
    QR = "QR"
    JACOBI = "Jacobi"
    POLAR = "polar"
    DIVIDE_AND_CONQUER = "divide_and_conquer"


class EighImplementation(enum.Enum):
    """Algorithms for eigenvalues of symmetric matrices; all but ``QR`` raise an error."""

    QR = "qr"
    JACOBI = "jacobi"
    QDWH = "qdwh"


class EigImplementation(enum.Enum):
    """Libraries for eigenvalues of general matrices; all but ``LAPACK`` raise an error."""

    CUSOLVER = "cusolver"
    MAGMA = "magma"
    LAPACK = "lapack"


SVD_ALGORITHMS = (SvdAlgorithm.DEFAULT, SvdAlgorithm.QR, SvdAlgorithm.DIVIDE_AND_CONQUER)
EIGH_IMPLEMENTATIONS = (EighImplementation.QR,)
EIG_IMPLEMENTATIONS = (EigImplementation.LAPACK,)


def check_algorithm(
    name: str,
    argument: str,
    selected: Any,
    supported: Sequence[enum.Enum],
    error: type[Exception] = NotImplementedError,
) -> None:
    """Raise an error unless ``selected`` is None or in ``supported``, the algorithms of LAPACK."""
    check(
        selected is None or selected in supported,
        lambda: (
            f"[{name}] {argument} must be None or one of {', '.join(map(str, supported))}; got "
            f"{selected}. Fix: {argument}=None."
        ),
        error,
    )


def check_no_magma(name: str, use_magma: bool | None) -> None:
    """Raise if MAGMA, JAX's other library on GPUs, is requested."""
    check(
        not use_magma,
        lambda: (
            f"[{name}] use_magma must be None or False: MAGMA is not called; got {use_magma!r}. "
            "Fix: leave it out."
        ),
        ValueError,
    )
