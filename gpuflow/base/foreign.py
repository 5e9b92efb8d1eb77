"""Descriptions of objects that are neither arrays nor trees, and suggested replacements.

Tests: tests/core/test_argument_kinds.py.
"""

from __future__ import annotations

from typing import Any

STATIC = "mark it static with static_argnums or static_argnames"
_MAX_CHARACTERS = 80
_FIELDS = "__dataclass_fields__"
# Attributes of objects that `jnp.asarray` takes.
_ARRAYS = ("__array__", "__dlpack__", "__cuda_array_interface__", "__array_interface__")


def brief(value: Any) -> str:
    """Describe an object briefly: ``a pandas DataFrame of shape (3, 2)``."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    aval = getattr(value, "aval", None)
    if aval is not None:  # a ref: do not wait for its value
        return f"{aval} of type {kind.__name__}"
    if is_array(value):
        shape = tuple(value.shape) if hasattr(value, "shape") else None
        return f"a {package} {kind.__name__}{'' if shape is None else f' of shape {shape}'}"
    if is_foreign(value):
        return f"the dataclass {kind.__name__}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # lists that are nested too deep, or an error of the object's
        text = "an object without a text"
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 3]}..."
    return f"{text} of type {kind.__name__}"


def fix_for(value: Any, otherwise: str, name: str = "x") -> str:
    """Suggest a replacement for an object: ``jnp.asarray``, ``register_dataclass``, or else.

    Args:
        value: the object.
        otherwise: the suggestion for other objects.
        name: the name of the object in the program, if known.
    """
    kind = type(value)
    if is_array(value):
        return f"jnp.asarray({name})"
    if is_foreign(value):
        return (
            f"write @gpuflow.tree_util.register_dataclass above class {kind.__name__}, which makes "
            "it a tree of its fields"
        )
    return otherwise


def is_foreign(value: Any) -> bool:
    """Return whether an object has a description beyond its type."""
    return is_array(value) or (_is_of_others(value) and hasattr(type(value), _FIELDS))


def is_array(value: Any) -> bool:
    """Whether an object is an array of another library."""
    return _is_of_others(value) and any(hasattr(type(value), name) for name in _ARRAYS)


def _is_of_others(value: Any) -> bool:
    # Arrays under JAX's name have a base of gpuflow's only.
    return not any(kind.__module__.startswith("gpuflow.") for kind in type(value).__mro__)
