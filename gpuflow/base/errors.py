"""Exception classes and the one way to raise them.

Messages have the form ``[op] what must hold; got what. Fix: what to write.`` Classes keep the
names that JAX's users catch.
"""

from __future__ import annotations

from collections.abc import Callable


class JAXTypeError(TypeError):
    """Base of errors about traced values where a known one is needed."""


class JAXIndexError(IndexError):
    """Base of errors about indices."""


class JaxRuntimeError(RuntimeError):
    """Base of errors while programs run."""


class ConcretizationTypeError(JAXTypeError):
    """A traced value was needed as a concrete Python or NumPy value."""


class TracerBoolConversionError(ConcretizationTypeError):
    """A traced value was used as a truth value, as in ``if x > 0``."""


class TracerArrayConversionError(JAXTypeError):
    """A traced value was handed to NumPy."""


class TracerIntegerConversionError(JAXTypeError):
    """A traced value was used as a Python integer, as in ``range(n)``."""


class TracedArgumentError(TracerIntegerConversionError, ConcretizationTypeError):
    """A traced value was given for an axis or a number of parts."""


class UnexpectedTracerError(JAXTypeError):
    """A tracer was used after the transformation that made it had finished."""


class NonConcreteBooleanIndexError(JAXIndexError):
    """A boolean mask without known values was used as an index under a transformation."""


class TypePromotionError(ValueError):
    """Two dtypes have no implicit common dtype."""


class OutOfMemoryError(JaxRuntimeError, MemoryError):
    """A device has less memory than an array or a program needs."""


class DeletedArrayError(JaxRuntimeError, ValueError):
    """An array was used after it had been donated or deleted."""


class CommunicationError(JaxRuntimeError):
    """Processes could not exchange data: one ended, stalled, or runs another program."""


class CheckpointError(JaxRuntimeError):
    """A checkpoint cannot be read, or could not be written: files are damaged or missing."""


class ExportError(ValueError):
    """A function cannot be exported, or an exported one cannot be read or called as it was."""


class KeyReuseError(JAXTypeError):
    """A random key was used twice while ``debug_key_reuse`` was on."""


class InconclusiveDimensionOperation(Exception):
    """Unknown sizes of ``export.symbolic_shape`` were compared; in traced code sizes are known."""


class CacheWarning(UserWarning):
    """The kernel cache folder could not be used; kernels were built again."""


class UnpartitionedWarning(UserWarning):
    """Each device computes all of an operation, on operands of more than 1 MB that are gathered.

    A program warns once for each line of the user's code.
    """


def check(condition: bool, message: Callable[[], str], error: type[Exception] = TypeError) -> None:
    """Raise ``error(message())`` unless ``condition`` holds; the text is built only then."""
    if not condition:
        raise error(message())
