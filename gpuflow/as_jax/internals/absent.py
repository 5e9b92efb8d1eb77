"""Names that libraries need while they are imported, of things that gpuflow does not have."""

from __future__ import annotations

from typing import Any, NoReturn


def absent_class(name: str, reason: str) -> type:
    """A class without instances: annotations and ``isinstance`` work, calling it raises.

    Args:
        name: in JAX, such as ``jax.experimental.layout.Format``.
        reason: the requirement, and the recommended replacement.
    """

    message = f"[{name}] {reason}"

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(message)

    namespace = {"__new__": refuse, "__doc__": message, "is_absent": True}
    return type(name.rpartition(".")[2], (), namespace)
