"""``Exported``: a function that can be serialized, and called without its source.

Tests: tests/test_export.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from gpuflow.base import dtypes, tree
from gpuflow.base.cached import cached_property
from gpuflow.base.errors import ExportError, JaxRuntimeError, JAXTypeError, check
from gpuflow.base.records import record
from gpuflow.base.tree import TreeDef
from gpuflow.control.custom.vjp import custom_vjp
from gpuflow.control.jit import operand_avals
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.trace import Tracer, eval_trace, thread_state
from gpuflow.export.dimensions import Sizes
from gpuflow.export.files import Container, packed
from gpuflow.export.kernels import Built, built_kernels, give_kernels, kernels_record
from gpuflow.export.program import Program, program_from, program_record, trees_of
from gpuflow.export.shapes import type_at
from gpuflow.export.size_inference import sizes_to_trace
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import default_device
from gpuflow.runtime.execute import executable_of

# Inner extents up to this are constants in kernels, which therefore differ.
_SHORT = 16
_LARGE = 1 << 12
_MAX_CLASSES = 64
# Errors of a first call that concern its arguments, the machine, or a platform.
_PASS_THROUGH = (
    JaxRuntimeError,
    JAXTypeError,
    MemoryError,
    NotImplementedError,
    OSError,
    Warning,
)

minimum_supported_calling_convention_version = 1
maximum_supported_calling_convention_version = 1


def default_export_platform() -> str:
    """Return the platform for which ``export`` compiles kernels: that of new arrays.

    Returns:
        "cpu", "cuda" or "cuda_sim".

    Example:
        >>> from gpuflow import export
        >>> export.default_export_platform() in ("cpu", "cuda", "cuda_sim")
        True
    """
    return default_device().platform


@record
class DisabledSafetyCheck:
    """A check that ``export`` or a call skips.

    Example:
        >>> from gpuflow import export
        >>> export.DisabledSafetyCheck.platform()
        platform
    """

    _impl: str

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Disable the check of the platform."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Accepted as in JAX; no effect, because there are no custom calls."""
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """Return the target that was passed to ``custom_call``."""
        kind, _, name = self._impl.partition(":")
        return name if kind == "custom_call" else None

    def __repr__(self) -> str:
        return self._impl


@record(eq=False, repr=False)
class Exported:
    """A function that can be serialized to bytes, and called without its source.

    Attributes:
        fun_name: name of the function.
        in_avals: types of the leaves of the arguments, with sizes that may be symbolic.
        out_avals: types of the leaves of the results.
        platforms: platforms on which the function may be called.
        disabled_safety_checks: the checks that calls skip.
        nr_devices: 1.
        ordered_effects, unordered_effects: empty: functions with effects are not exported.
        calling_convention_version: version of the program's calling convention.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow import export
        >>> exported = export.export(gf.jit(jnp.sin))(jnp.zeros(3))
        >>> again = export.deserialize(exported.serialize())
        >>> again.call(jnp.zeros(3))
        Array([0., 0., 0.], dtype=float32)
    """

    _program: Program
    platforms: tuple[str, ...]
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...] = ()
    _get_vjp: Callable[[], Exported] | None = None
    _calls: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    nr_devices = 1
    ordered_effects = ()
    unordered_effects = ()
    calling_convention_version = maximum_supported_calling_convention_version

    @property
    def fun_name(self) -> str:
        return self._program.name

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        return self._program.in_avals

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        return self._program.out_avals

    @cached_property
    def _trees(self) -> tuple[TreeDef, TreeDef]:
        in_tree, out_tree = trees_of(self._program)
        return tree.check_keys(in_tree), tree.check_keys(out_tree)

    @property
    def in_tree(self) -> TreeDef:
        """The structure of ``(args, kwargs)``."""
        return self._trees[0]

    @property
    def out_tree(self) -> TreeDef:
        """The structure of the result."""
        return self._trees[1]

    @property
    def module_kept_var_idx(self) -> tuple[int, ...]:
        """Indices of the leaves that the program takes: always all."""
        return tuple(range(len(self.in_avals)))

    @property
    def uses_global_constants(self) -> bool:
        """Whether sizes are symbolic."""
        return bool(self._program.symbols)

    def __repr__(self) -> str:
        return f"Exported(fun_name={self.fun_name}, ...)"

    def mlir_module(self, serialized: bool = True) -> str:
        """Return the program as text: a jaxpr, not MLIR.

        Args:
            serialized: no effect.

        Returns:
            For symbolic sizes, it is the program of the smallest traced sizes.
        """
        del serialized
        return str(self._program.at(self._classes()[0] if self._program.symbols else {}))

    def has_vjp(self) -> bool:
        """Return whether ``vjp`` is available: always, unless it was deserialized without."""
        return self._get_vjp is not None

    @cached_property
    def _vjp(self) -> Exported:
        assert self._get_vjp is not None
        return self._get_vjp()

    def vjp(self) -> Exported:
        """Return the function ``(*leaves of arguments, *cotangents) -> cotangents`` of flat values.

        Raises:
            ValueError: if it was read from bytes that contain none.
        """
        check(
            self.has_vjp(),
            lambda: (
                f"[export] the derivative of {self.fun_name} must be in its bytes; got a function "
                "that "
                "was written without. Fix: exported.serialize(vjp_order=1), or 2 for second ones."
            ),
            ValueError,
        )
        return self._vjp

    def serialize(
        self, vjp_order: int = 0, *, sizes: Sequence[Mapping[str, int]] | None = None
    ) -> bytearray:
        """Serialize the function to bytes: its program, and kernels for the default device.

        Args:
            vjp_order: how many times the deserialized function can be differentiated.
            sizes: sizes for which to build additional, specialized kernels, for each symbol. None
                builds those of 1 to 16, and of sizes equal to another size.

        Returns:
            Bytes for ``deserialize``. They contain machine code: read only bytes that you trust.

        Cost: compiles the kernels that are not compiled yet.

        Raises:
            ValueError: if there is no derivative of that order, or sizes are not allowed.
        """
        content, sections = program_record(self._program)
        kernels, code = kernels_record(self._built(sizes))
        checks = [str(one) for one in self.disabled_safety_checks]
        content |= {"platforms": list(self.platforms), "checks": checks, "kernels": kernels}
        sections["code"] = code
        if vjp_order > 0:
            sections["vjp"] = bytes(self.vjp().serialize(vjp_order - 1, sizes=sizes))
        return bytearray(packed(content, sections))

    def _built(self, sizes: Sequence[Mapping[str, int]] | None) -> Built:
        program = self._program
        classes = self._classes(sizes)

        def programs() -> Iterator[tuple[Any, tuple[int, ...]]]:
            for sizes_of_class in classes:
                yield program.fresh(sizes_of_class)[0], ()
                if program.donated:
                    yield program.fresh(sizes_of_class)[0], program.donated

        with program.configured():
            return built_kernels(programs())

    def _classes(
        self, requested: Sequence[Mapping[str, int]] | None = None
    ) -> list[dict[str, int]]:
        """Sizes for which kernels differ: small ones, and those that are equal to others."""
        program = self._program
        symbols, scope = program.symbols, program.scope
        if not symbols:
            return [{}]
        usual = _usual(sizes_to_trace(symbols, scope))
        if requested is not None:
            candidates = [dict(sizes) for sizes in requested]
            for sizes in candidates:
                check(
                    set(sizes) == set(symbols),
                    lambda sizes=sizes: (
                        f"[export] sizes must name {', '.join(symbols)}; got {sizes}. "
                        f"Fix: {dict.fromkeys(symbols, 8)}."
                    ),
                    ValueError,
                )
                program.check_sizes(sizes)
            return [*usual, *candidates]
        fixed = program.at(usual[0]).jaxpr
        avals = [var.aval for var in fixed.invars] + [v.aval for e in fixed.eqns for v in e.outputs]
        known = {n for aval in avals for n in aval.shape if _SHORT < n <= _LARGE}
        known -= set(usual[0].values())
        values = [*range(1, _SHORT + 1), *sorted(known)]
        candidates = [{**usual[0], symbol: n} for symbol in symbols for n in values]
        candidates += [dict.fromkeys(symbols, n) for n in values if len(symbols) > 1]
        allowed = [sizes for sizes in candidates if all(c.holds(sizes) for c in scope.constraints)]
        return [*usual, *allowed[:_MAX_CLASSES]]

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, also inside of ``jit``, ``vmap`` and ``grad``.

        Args:
            args, kwargs: pytrees of arrays with the exported types; donation is up to the caller:
                ``jit(exported.call, donate_argnums=...)``.

        Returns:
            The result.

        Raises:
            ValueError: if structures, shapes, dtypes, sizes or the platform differ.
            TypeError: if it is differentiated in forward mode.
        """
        leaves, treedef = tree.flatten((args, kwargs))
        if treedef != self.in_tree:
            raise ExportError(
                f"[export] arguments of {self.fun_name} must have the structure "
                f"{tree.text(self.in_tree)}; "
                f"got {tree.text(treedef)}. Fix: pass the trees that it was exported for."
            )
        self._check_platform(leaves)
        avals = operand_avals(leaves)
        sizes = self._sizes(avals)
        is_traced = thread_state.trace is not eval_trace or any(
            isinstance(leaf, Tracer) for leaf in leaves
        )
        if is_traced:
            outs = self._differentiable(sizes)(*leaves)
        else:
            outs = self._run(sizes, leaves)
        return tree.unflatten(self.out_tree, outs)

    def _sizes(self, avals: Sequence[ShapedArray]) -> dict[str, int]:
        key = tuple([(aval.shape, aval.dtype) for aval in avals])
        cached = self._calls.get(key)
        if cached is None:
            self._check_ranks(avals)
            sizes = self._program.sizes_of([aval.shape for aval in avals])
            self._check_types(avals, sizes)
            cached = self._calls[key] = sizes
        return cached

    def _check_ranks(self, avals: Sequence[ShapedArray]) -> None:
        for k, (want, got) in enumerate(zip(self.in_avals, avals, strict=True)):
            fits = len(want.shape) == len(got.shape) and want.dtype == got.dtype
            check(fits, lambda at=(k, want, got): self._wrong(*at), ExportError)

    def _check_types(self, avals: Sequence[ShapedArray], sizes: Sizes) -> None:
        for k, (want, got) in enumerate(zip(self.in_avals, avals, strict=True)):
            fits = type_at(want, sizes).shape == got.shape
            check(fits, lambda at=(k, want, got): self._wrong(*at, sizes), ExportError)

    def _wrong(
        self, k: int, want: ShapedArray, got: ShapedArray, sizes: Sizes | None = None
    ) -> str:
        blank = tree.unflatten(self.in_tree, list(range(self.in_tree.num_leaves)))
        path = tree.paths(blank)[k]
        path = f"args{path[3:]}" if path.startswith("[0]") else f"kwargs{path[3:]}"
        assigned = f", where {', '.join(f'{s} = {n}' for s, n in sizes.items())}" if sizes else ""
        return (
            f"[export] {path} of {self.fun_name} must be {want}{assigned}; got {got}. "
            "Fix: convert it, or export the function for this type."
        )

    def _run(self, sizes: Sizes, leaves: Sequence[Any]) -> list[Any]:
        program = self._program
        with program.configured():
            closed = program.at(sizes)
            executable = executable_of(closed, (False,) * len(closed.in_avals))
            try:
                return executable([*program.consts_at(sizes), *leaves])
            except _PASS_THROUGH:
                raise
            except ImportError as error:
                where = f" for {', '.join(f'{s} = {n}' for s, n in sizes.items())}" if sizes else ""
                raise ExportError(
                    f"[export] kernels of {self.fun_name}{where} must be in its bytes where there "
                    f"is no compiler; got none that fit, and: {error}. Fix: install llvmlite, or "
                    f"export it on a machine like this one{_serialize_hint(sizes)}."
                ) from error
            except Exception as error:
                if executable.is_compiled:
                    raise
                raise ExportError(
                    f"[export] the program of {self.fun_name} must compile; got the error: "
                    f"{error}. Fix: export it again with this version."
                ) from error

    def _check_platform(self, leaves: Sequence[Any]) -> None:
        if DisabledSafetyCheck.platform() in self.disabled_safety_checks:
            return
        devices = [leaf.device for leaf in leaves if type(leaf) is Array]
        here = devices[-1].platform if devices else default_export_platform()
        check(
            here in self.platforms,
            lambda: (
                f"[export] {self.fun_name} must be called on {' or '.join(self.platforms)}; got "
                "arrays "
                f"on {here}. Fix: export(f, platforms=[..., {here!r}]), or "
                "disabled_checks=[DisabledSafetyCheck.platform()]."
            ),
            ExportError,
        )

    def _differentiable(self, sizes: Sizes) -> Callable[..., list[Any]]:
        """The function of flat values inside another program, with its derivative."""
        key = ("call", *sizes.values())
        cached = self._calls.get(key)
        if cached is None:
            cached = self._calls[key] = custom_vjp(lambda *leaves: self._bound(sizes, leaves))
            cached.name = self.fun_name
            cached.defvjp(lambda *leaves: (self._bound(sizes, leaves), leaves), self._backward)
        return cached

    def _bound(self, sizes: Sizes, leaves: Sequence[Any]) -> list[Any]:
        with self._program.configured():
            return list(self._program.bound(sizes, leaves))

    def _backward(self, leaves: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
        outs = self.vjp().call(*leaves, *cotangents)
        return tuple(
            None if dtypes.tangent_dtype(aval_of(leaf).dtype) == dtypes.float0 else out
            for leaf, out in zip(leaves, outs, strict=True)
        )


def _serialize_hint(sizes: Sizes) -> str:
    return f" by serialize(sizes=[{dict(sizes)}])" if sizes else ""


def _usual(sizes: list[dict[str, int]]) -> list[dict[str, int]]:
    """One or two medium sizes of those at which a function was traced, and the largest."""
    middle = [one for one in sizes if all(_SHORT < n <= _LARGE for n in one.values())]
    return [*(middle[:2] or sizes[-2:-1]), sizes[-1]]


def deserialize(blob: bytes | bytearray) -> Exported:
    """Deserialize a function from the bytes of ``Exported.serialize``.

    Args:
        blob: the bytes. They contain machine code that is executed: trust them as you would trust a
            program.

    Returns:
        The function. Calls do not need its source. If the kernels match, they do not need a
        compiler either.

    Raises:
        ExportError: if the bytes are not an export, are truncated or damaged, have another version,
            or contain an invalid program.
        TypeError: if ``blob`` is not bytes.

    Warns:
        CacheWarning: if the kernels are for another processor or version; they are compiled again.

    Example:
        >>> import gpuflow as gf, gpuflow.numpy as jnp
        >>> from gpuflow import export
        >>> blob = export.export(gf.jit(lambda x: x * 2))(jnp.float32(1)).serialize()
        >>> float(export.deserialize(blob).call(jnp.float32(4)))
        8.0
    """
    check(
        isinstance(blob, bytes | bytearray | memoryview),
        lambda: (
            f"[export] an exported function must be bytes; got a {type(blob).__name__}. "
            "Fix: export.deserialize(pathlib.Path(file).read_bytes())."
        ),
    )
    container = Container(bytes(blob))
    program, content = program_from(container), container.content
    give_kernels(content["kernels"], container.section("code"))
    checks = tuple(DisabledSafetyCheck(text) for text in content["checks"])
    get_vjp = None
    if "vjp" in container:
        get_vjp = functools.partial(_read_vjp, bytes(container.section("vjp")), program)
    return Exported(program, tuple(content["platforms"]), checks, get_vjp)


def _read_vjp(blob: bytes, program: Program) -> Exported:
    """The derivative of a function, from its section.

    Raises:
        ExportError: as for ``deserialize``, or if it is not the derivative of this program.
    """
    exported = deserialize(blob)
    got, count = exported.in_avals, len(program.in_avals)
    check(
        list(map(str, got[:count])) == list(map(str, program.in_avals))
        and len(got) == count + len(program.out_avals)
        and len(exported.out_avals) == count,
        lambda: (
            f"[export] the derivative of {program.name} must take its {count} arguments and "
            f"{len(program.out_avals)} cotangents; got one of {len(got)} to "
            f"{len(exported.out_avals)} values. Fix: export again."
        ),
        ExportError,
    )
    return exported
