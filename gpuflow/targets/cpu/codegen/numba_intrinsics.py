"""The names of a kernel's text as Numba intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from gpuflow.targets.cpu.codegen import text_names
from gpuflow.targets.cpu.codegen.text_names import POINTER, Named

if TYPE_CHECKING:
    import llvmlite.ir as ir


class Intrinsics:
    """Makes intrinsics for one loaded Numba; each is made once.

    Args:
        numba: The numba module.
        intrinsic: ``numba.extending.intrinsic``.
    """

    def __init__(self, numba: Any, intrinsic: Callable[[Any], Any]) -> None:
        self.types = numba.types
        self._intrinsic = intrinsic
        self._make_once = cache(self._make)

    def reader(self, storage: str, scope: int, scopes: int) -> Any:
        """The load of an operand."""
        return self._make_once(f"load_{storage}", text_names.reader(storage, scope, scopes))

    def guarded_reader(self, storage: str, scope: int, scopes: int) -> Any:
        """The load of an operand where a condition holds."""
        meaning = text_names.guarded_reader(storage, scope, scopes)
        return self._make_once(f"load_{storage}_where", meaning)

    def writer(self, storage: str, scope: int, scopes: int) -> Any:
        """The store of an operand."""
        return self._make_once(f"store_{storage}", text_names.writer(storage, scope, scopes))

    def namespace(self, names: Iterable[str]) -> dict[str, Any]:
        """The globals of a kernel's module that uses ``names``; unknown names are left out."""
        members = {
            "reader": self.reader, "guarded_reader": self.guarded_reader, "writer": self.writer,
        }  # fmt: skip
        for name in names:
            meaning = text_names.named(name)
            if meaning is not None:
                members[name] = self._make_once(name, meaning)
        return members

    def _type(self, dtype: str) -> Any:
        if dtype == POINTER:
            return self.types.voidptr
        return self.types.boolean if dtype == "bool" else getattr(self.types, dtype)

    def _make(self, name: str, meaning: Named) -> Any:
        """An intrinsic with fixed types."""
        results = [self._type(dtype) for dtype in meaning.results]
        result = self.types.void if not results else results[0]
        if len(results) > 1:
            result = self.types.UniTuple(results[0], len(results))
        signature = result(*[self._type(dtype) for dtype in meaning.parameters])

        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            value = meaning.emit(builder, *arguments)
            if isinstance(value, tuple):
                return context.make_tuple(builder, signature.return_type, value)
            return context.get_dummy_value() if value is None else value

        # Numba reads the number of parameters off the function, so there is one per arity.
        def typing_1(context, a):
            return signature, codegen

        def typing_2(context, a, b):
            return signature, codegen

        def typing_3(context, a, b, c):
            return signature, codegen

        def typing_4(context, a, b, c, d):
            return signature, codegen

        def typing_0(context):
            return signature, codegen

        typing = (typing_0, typing_1, typing_2, typing_3, typing_4)[len(meaning.parameters)]
        typing.__name__ = name
        return self._intrinsic(typing)
