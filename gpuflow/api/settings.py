"""Settings as context managers: each changes one setting of this thread inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuflow.base.config import config


@contextmanager
def debug_nans(enable: bool = True) -> Iterator[None]:
    """Inside the block, an op whose result holds NaN raises FloatingPointError."""
    with config.override("debug_nans", enable):
        yield


@contextmanager
def debug_infs(enable: bool = True) -> Iterator[None]:
    """Inside the block, an op whose result holds an infinity raises FloatingPointError."""
    with config.override("debug_infs", enable):
        yield


@contextmanager
def debug_key_reuse(enable: bool = True) -> Iterator[None]:
    """Inside the block, a random key that is used twice raises KeyReuseError.

    Sampling and ``split`` use a key, ``fold_in`` and ``key_data`` do not, ``clone`` makes another.
    Raw keys are not followed.
    """
    with config.override("debug_key_reuse", enable):
        yield


@contextmanager
def numpy_rank_promotion(mode: str) -> Iterator[None]:
    """Inside the block, operands of different rank are allowed, warned of or refused.

    Args:
        mode: ``"allow"``, ``"warn"`` or ``"raise"``.

    Raises:
        ValueError: another mode.
    """
    with config.override("numpy_rank_promotion", mode):
        yield


@contextmanager
def numpy_dtype_promotion(mode: str) -> Iterator[None]:
    """Inside the block, operands of different dtypes are converted or refused.

    Args:
        mode: ``"standard"``, or ``"strict"``: only Python numbers are converted.

    Raises:
        ValueError: another mode.
    """
    with config.override("numpy_dtype_promotion", mode):
        yield


@contextmanager
def default_matmul_precision(precision: str | None) -> Iterator[None]:
    """Inside the block, products and convolutions have this precision unless they name one.

    Args:
        precision: what ``precision=`` of ``lax.dot_general`` takes. On GPUs float32 operands are
            rounded to TF32 unless it is ``"highest"`` or ``"float32"``: see ``lax.Precision``.
    """
    with config.override("default_matmul_precision", precision):
        yield


@contextmanager
def default_prng_impl(name: str) -> Iterator[None]:
    """Inside the block, keys are made for this generator unless they name one.

    Raises:
        ValueError: a generator that does not exist.
    """
    with config.override("default_prng_impl", name):
        yield


@contextmanager
def threefry_partitionable(enable: bool = True) -> Iterator[None]:
    """Inside the block, random bits have the layout that can be computed in parts, or the old."""
    with config.override("threefry_partitionable", enable):
        yield


@contextmanager
def log_compiles(enable: bool = True) -> Iterator[None]:
    """Inside the block, ``jit`` logs what it traces and compiles, and how long that takes.

    The logger is ``logging.getLogger("gpuflow")``, the level WARNING.
    """
    with config.override("log_compiles", enable):
        yield


@contextmanager
def explain_cache_misses(enable: bool = True) -> Iterator[None]:
    """Inside the block, ``jit`` logs why a call could not use a program that it had."""
    with config.override("explain_cache_misses", enable):
        yield


@contextmanager
def check_tracer_leaks(enable: bool = True) -> Iterator[None]:
    """Inside the block, a transformation whose tracers are still referred to at its end raises.

    It says of each where it was made. Functions that were traced before are not traced again.

    Raises:
        UnexpectedTracerError: from the call of a transformed function.

    Cost:
        A search through all Python objects for each trace: for debugging.
    """
    with config.override("check_tracer_leaks", enable):
        yield


checking_leaks = check_tracer_leaks


@contextmanager
def no_tracing(enable: bool = True) -> Iterator[None]:
    """Inside the block, a jitted function that would have to be traced raises RuntimeError."""
    with config.override("no_tracing", enable):
        yield
