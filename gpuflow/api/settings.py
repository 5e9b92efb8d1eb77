"""Settings as context managers: each changes one setting of this thread inside a block.

Tests: tests/test_api_config.py, tests/test_config_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuflow.base.config import config


@contextmanager
def debug_nans(enable: bool = True) -> Iterator[None]:
    """Raise FloatingPointError inside the block if the result of an op contains NaN.

    Args:
        enable: whether to check; False disables the check of an enclosing block.

    Returns:
        A context manager.

    Raises:
        FloatingPointError: inside the block, from the op or the jitted call.

    Example:
        >>> with gf.debug_nans():
        ...     try:
        ...         jnp.log(-1.0)
        ...     except FloatingPointError:
        ...         print("found")
        found
    """
    with config.override("debug_nans", enable):
        yield


@contextmanager
def debug_infs(enable: bool = True) -> Iterator[None]:
    """Raise FloatingPointError inside the block if the result of an op contains an infinity.

    Args:
        enable: whether to check; False disables the check of an enclosing block.

    Returns:
        A context manager.

    Raises:
        FloatingPointError: inside the block, from the op or the jitted call.

    Example:
        >>> with gf.debug_infs():
        ...     try:
        ...         jnp.divide(1.0, 0.0)
        ...     except FloatingPointError:
        ...         print("found")
        found
    """
    with config.override("debug_infs", enable):
        yield


@contextmanager
def debug_key_reuse(enable: bool = True) -> Iterator[None]:
    """Raise KeyReuseError inside the block if a random key is used twice.

    Sampling and ``split`` consume a key, ``fold_in`` and ``key_data`` do not, ``clone`` makes
    another. Raw keys are not tracked.

    Args:
        enable: whether to check.

    Returns:
        A context manager.

    Raises:
        KeyReuseError: inside the block, from the function that gets the key again.

    Example:
        >>> key = gf.random.key(0)
        >>> with gf.debug_key_reuse():
        ...     x = gf.random.normal(key)
        ...     try:
        ...         y = gf.random.normal(key)
        ...     except Exception as error:
        ...         print(type(error).__name__)
        KeyReuseError
    """
    with config.override("debug_key_reuse", enable):
        yield


@contextmanager
def numpy_rank_promotion(mode: str) -> Iterator[None]:
    """Allow, warn about or reject operands of different rank inside the block.

    Args:
        mode: ``"allow"``, ``"warn"`` or ``"raise"``.

    Returns:
        A context manager.

    Raises:
        ValueError: if the mode is unknown.

    Example:
        >>> with gf.numpy_rank_promotion("raise"):
        ...     try:
        ...         jnp.ones((2, 3)) + jnp.ones(3)
        ...     except ValueError:
        ...         print("refused")
        refused
    """
    with config.override("numpy_rank_promotion", mode):
        yield


@contextmanager
def numpy_dtype_promotion(mode: str) -> Iterator[None]:
    """Convert or reject operands of different dtypes inside the block.

    Args:
        mode: ``"standard"``, or ``"strict"``: only Python numbers are converted.

    Returns:
        A context manager.

    Raises:
        ValueError: if the mode is unknown.

    Example:
        >>> with gf.numpy_dtype_promotion("strict"):
        ...     try:
        ...         jnp.float32(1) + jnp.int32(1)
        ...     except Exception as error:
        ...         print("refused")
        refused
    """
    with config.override("numpy_dtype_promotion", mode):
        yield


@contextmanager
def default_matmul_precision(precision: str | None) -> Iterator[None]:
    """Set the default precision of products and convolutions inside the block.

    Args:
        precision: a value for ``precision=`` of ``lax.dot_general``. On GPUs float32 operands are
            rounded to TF32 unless it is ``"highest"`` or ``"float32"``: see ``lax.Precision``.

    Returns:
        A context manager.

    Example:
        >>> with gf.default_matmul_precision("highest"):
        ...     y = jnp.ones((2, 3)) @ jnp.ones(3)
        >>> y
        Array([3., 3.], dtype=float32)
    """
    with config.override("default_matmul_precision", precision):
        yield


@contextmanager
def default_prng_impl(name: str) -> Iterator[None]:
    """Set the default random number generator of new keys inside the block.

    Args:
        name: name of the generator: ``"threefry2x32"``, ``"rbg"`` or ``"unsafe_rbg"``.

    Returns:
        A context manager.

    Raises:
        ValueError: if the generator is unknown.

    Example:
        >>> with gf.default_prng_impl("rbg"):
        ...     key = gf.random.key(0)
        >>> gf.random.key_impl(key)
        'rbg'
    """
    with config.override("default_prng_impl", name):
        yield


@contextmanager
def threefry_partitionable(enable: bool = True) -> Iterator[None]:
    """Use the shardable layout of random bits, or the old one, inside the block.

    Args:
        enable: True for the layout that can be computed shard by shard.

    Returns:
        A context manager.

    Example:
        >>> with gf.threefry_partitionable(False):
        ...     old = gf.random.bits(gf.random.key(0), (3,))
        >>> bool((old == gf.random.bits(gf.random.key(0), (3,))).all())
        False
    """
    with config.override("threefry_partitionable", enable):
        yield


@contextmanager
def log_compiles(enable: bool = True) -> Iterator[None]:
    """Log each trace and compilation of ``jit``, and its duration, inside the block.

    The logger is ``logging.getLogger("gpuflow")`` with the level WARNING.

    Args:
        enable: whether to log.

    Returns:
        A context manager.

    Example:
        >>> with gf.log_compiles(False):
        ...     y = gf.jit(lambda x: x + 1)(1.0)
        >>> y
        Array(2., dtype=float32, weak_type=True)
    """
    with config.override("log_compiles", enable):
        yield


@contextmanager
def explain_cache_misses(enable: bool = True) -> Iterator[None]:
    """Log the reason of each new trace of ``jit`` inside the block.

    Args:
        enable: whether to log, to ``logging.getLogger("gpuflow")``.

    Returns:
        A context manager.

    Example:
        >>> with gf.explain_cache_misses(False):
        ...     y = gf.jit(lambda x: x * 2)(1.0)
        >>> y
        Array(2., dtype=float32, weak_type=True)
    """
    with config.override("explain_cache_misses", enable):
        yield


@contextmanager
def check_tracer_leaks(enable: bool = True) -> Iterator[None]:
    """Raise an error inside the block if tracers are still referenced after a transformation.

    The error contains the source line of each tracer. Functions that are already traced are not
    checked.

    Args:
        enable: whether to check.

    Returns:
        A context manager.

    Raises:
        UnexpectedTracerError: from the call of a transformed function.

    Cost:
        A search through all Python objects for each trace: use it for debugging.

    Example:
        >>> kept = []
        >>> with gf.check_tracer_leaks():
        ...     try:
        ...         gf.jit(lambda x: kept.append(x))(1.0)
        ...     except Exception as error:
        ...         print(type(error).__name__)
        UnexpectedTracerError
    """
    with config.override("check_tracer_leaks", enable):
        yield


checking_leaks = check_tracer_leaks


@contextmanager
def no_tracing(enable: bool = True) -> Iterator[None]:
    """Raise RuntimeError inside the block if a jitted function needs to be traced.

    Args:
        enable: whether tracing is refused.

    Returns:
        A context manager.

    Raises:
        RuntimeError: inside the block, if a jitted function is called with a new signature.

    Example:
        >>> f = gf.jit(lambda x: x + 1)
        >>> y = f(1.0)
        >>> with gf.no_tracing():
        ...     print(f(2.0))
        3.0
    """
    with config.override("no_tracing", enable):
        yield
