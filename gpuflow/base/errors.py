"""Exception classes, and ``check``, which raises them.

Messages have the form ``[op] what must hold; got what. Fix: what to write.`` Classes keep the
names that JAX's users catch.

Tests: tests/test_api_errors.py, tests/numpy/test_numpy_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable


class JAXTypeError(TypeError):
    """Base class of errors about traced values that must be concrete."""


class JAXIndexError(IndexError):
    """Base class of errors about indices."""


class JaxRuntimeError(RuntimeError):
    """Base class of errors at run time."""


class ConcretizationTypeError(JAXTypeError):
    """A traced value was used as a concrete Python or NumPy value."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used as a truth value, as in ``if x > 0``."""


class TracerArrayConversionError(JAXTypeError):
    """A traced value was passed to NumPy."""


class TracerIntegerConversionError(JAXTypeError):
    """A traced value was used as a Python integer, as in ``range(n)``."""


class TracedArgumentError(TracerIntegerConversionError, ConcretizationTypeError):
    """A traced value was given for an axis or a count."""


class UnexpectedTracerError(JAXTypeError):
    """A tracer was used after its transformation had finished."""


class NonConcreteBooleanIndexError(JAXIndexError):
    """A traced boolean mask was used as an index."""


class TypePromotionError(ValueError):
    """Two dtypes have no implicit common dtype."""


class OutOfMemoryError(JaxRuntimeError, MemoryError):
    """An array or a program needs more memory than the device has."""


class DeletedArrayError(JaxRuntimeError, ValueError):
    """An array was used after it had been donated or deleted."""


class CommunicationError(JaxRuntimeError):
    """Processes could not exchange data: one ended, stalled, or runs another program."""


class CheckpointError(JaxRuntimeError):
    """A checkpoint cannot be read, or could not be written: files are damaged or missing."""


class ExportError(ValueError):
    """A function cannot be exported, or an export cannot be read or called."""


class KeyReuseError(JAXTypeError):
    """A random key was used twice while ``debug_key_reuse`` was enabled."""


class InconclusiveDimensionOperation(Exception):
    """Symbolic sizes were compared outside of traced code, where they are unknown."""


class CacheWarning(UserWarning):
    """The kernel cache folder could not be used; kernels were compiled again."""


class UnpartitionedWarning(UserWarning):
    """Every device computes the whole operation, after gathering operands of more than 1 MB.

    A program warns once for each line of user code.
    """


def check(condition: bool, message: Callable[[], str], error: type[Exception] = TypeError) -> None:
    """Raise ``error(message())`` unless ``condition`` holds; the text is built only then."""
    if not condition:
        raise error(message())
