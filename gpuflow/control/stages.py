"""Ahead-of-time stages of a jitted function: Traced, Lowered, Compiled, as in ``jax.stages``.

Tests: tests/control/test_stages.py, tests/control/test_jit_options.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.base.errors import JaxRuntimeError, check
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.entry import Entry
from gpuflow.control.placed_calls import WITH_SHARDINGS, run_placed, shardings_of
from gpuflow.core.aval import (
    NOT_MANUAL,
    ManualAxisType,
    ShapedArray,
    register_value_type,
)
from gpuflow.core.formats import Format, format_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.refs import type_of
from gpuflow.core.sharding import PartitionSpec, Sharding, SingleDeviceSharding
from gpuflow.core.trace import Tracer
from gpuflow.runtime.device import Device, default_device
from gpuflow.runtime.distributed import programs
from gpuflow.runtime.execute import Executable

if TYPE_CHECKING:
    from gpuflow.compiler.planning import plan as plans
    from gpuflow.kir import text as kir_text
else:
    plans = LazyModule("gpuflow.compiler.planning.plan")
    kir_text = LazyModule("gpuflow.kir.text")


@record
class ShapeDtypeStruct:
    """The shape and dtype of an array, without its values.

    Attributes:
        shape: shape of the array.
        dtype: dtype of the array.
        weak_type: whether the dtype is weak in type promotion.
        sharding: the Sharding or PartitionSpec of the array, or None.
        manual_axis_type: in shard_map, the axes along which the array varies.

    Raises:
        ValueError: if the dtype is missing, or the sharding is invalid or does not divide the
            shape.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    sharding: Any = None
    manual_axis_type: ManualAxisType = NOT_MANUAL

    def __post_init__(self) -> None:
        if self.dtype is None:
            raise ValueError(
                f"[ShapeDtypeStruct] a dtype must be given; got None for shape {self.shape}. "
                "Fix: ShapeDtypeStruct(shape, jnp.float32)."
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        if not dtypes.is_extended(self.dtype):
            object.__setattr__(self, "dtype", np.dtype(self.dtype))
        check(
            isinstance(self.sharding, Sharding | PartitionSpec | None),
            lambda: (
                "[ShapeDtypeStruct] sharding must be a Sharding, a PartitionSpec or None; got "
                f"{self.sharding!r}. Fix: x.sharding, or NamedSharding(mesh, PartitionSpec(...))."
            ),
            ValueError,
        )
        if isinstance(self.sharding, Sharding):
            self.sharding.shard_shape(self.shape)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        where = "" if self.sharding is None else f", sharding={self.sharding}"
        mat = self.manual_axis_type
        along = "" if mat.empty else f", manual_axis_type={mat}"
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype}{weak}{where}{along})"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def format(self) -> Format:
        """The layout (always row-major) and the sharding."""
        where = self.sharding if isinstance(self.sharding, Sharding) else None
        return format_of(len(self.shape), where)

    @property
    def is_ref(self) -> bool:
        """Whether it describes a Ref: always False."""
        return False

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"[len] a scalar has no length; got {self}. Fix: use .ndim or .size.")
        return self.shape[0]

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """Return the ShapeDtypeStruct of an array.

        Example:
            >>> gf.ShapeDtypeStruct.like(jnp.ones((2, 3)))
            ShapeDtypeStruct(shape=(2, 3), dtype=float32)
        """
        return struct_of(type_of(x))


def struct_of(aval: ShapedArray) -> ShapeDtypeStruct:
    """Convert an aval to the public ShapeDtypeStruct."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, aval.weak_type, manual_axis_type=aval.mat)


def _struct_aval(struct: ShapeDtypeStruct) -> ShapedArray:
    dtype = dtypes.canonicalize(struct.dtype)
    return ShapedArray(struct.shape, dtype, struct.weak_type, struct.manual_axis_type)


register_value_type(ShapeDtypeStruct, _struct_aval)


_DIALECTS = (None, "jaxpr", "stablehlo", "hlo")


def _check_dialect(name: str, dialect: str | None) -> None:
    check(
        dialect in _DIALECTS,
        lambda: f"[{name}] dialect must be one of {_DIALECTS}; got {dialect!r}. Fix: {name}().",
        ValueError,
    )


# XLA's options that are not xla_ flags.
_OPTIONS = frozenset(
    {
        "exec_time_optimization_effort",
        "memory_fitting_effort",
        "memory_fitting_level",
        "optimization_level",
    }
)


def check_compiler_options(options: Mapping[str, Any] | None) -> None:
    """Check that options are options of XLA; they have no effect.

    Raises:
        JaxRuntimeError: if an option is not an option of XLA.
    """
    for name in options or ():
        check(
            name.startswith("xla_") or name in _OPTIONS,
            lambda name=name: (
                f"[compiler_options] options must be XLA's; got {name!r}. Fix: leave it out: "
                "options have no effect here."
            ),
            JaxRuntimeError,
        )


@record
class ArgInfo:
    """The shape and dtype of an argument of a traced function, and whether it is donated."""

    shape: tuple[int, ...]
    dtype: Any
    donated: bool


Finish = Callable[[list[Any]], list[Any]]


@record
class Requested:
    """The shardings and the device that the caller requested.

    Attributes:
        inputs: for each leaf of the arguments its sharding, or None if it is on ``device``.
        outputs: for each leaf of the results its sharding, or None if it is propagated from the
            arguments.
        device: the device of values without a sharding; None is the default device.
    """

    inputs: tuple[Sharding | None, ...] = ()
    outputs: tuple[Sharding | None, ...] = ()
    device: Device | None = None


class Stage:
    """Common data of all stages: the types of arguments and results.

    Args:
        entry: the traced signature.
        in_tree: the structure of ``(args, kwargs)``.
        name: name of the function.
        finish: converts the outputs of the program to the leaves of the result; None if they are
            the same.
        requested: devices and shardings of arguments and results.
    """

    def __init__(
        self,
        entry: Entry,
        in_tree: tree.TreeDef,
        name: str,
        finish: Finish | None = None,
        requested: Requested | None = None,
    ) -> None:
        self._entry, self.in_tree = entry, tree.check_keys(in_tree)
        self.fun_name, self._finish = name, finish
        self._requested = requested or Requested()

    @property
    def out_tree(self) -> tree.TreeDef:
        return tree.check_keys(self._entry.out_tree)

    @property
    def in_avals(self) -> Any:
        """The types of the arguments: a tuple of positional ones, and a dict."""
        hidden = self._entry.hidden
        return tree.unflatten(self.in_tree, self._entry.jaxpr.in_avals[hidden:])

    @property
    def args_info(self) -> Any:
        """The arguments as a tree like ``in_avals``, each with ``donated``."""
        avals = self._entry.jaxpr.in_avals[self._entry.hidden :]
        donated = self._entry.donated[len(self._entry.donated) - len(avals) :]
        infos = [ArgInfo(a.shape, a.dtype, flag) for a, flag in safe_zip(avals, donated)]
        return tree.unflatten(self.in_tree, infos)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Indices of the argument leaves that are donated."""
        flags = [info.donated for info in tree.leaves(self.args_info)]
        return tuple(k for k, flag in enumerate(flags) if flag)

    @property
    def out_avals(self) -> Any:
        """The types of the results, as a tree."""
        return tree.unflatten(self.out_tree, self._result_avals)

    @property
    def out_info(self) -> Any:
        """The results as a tree of ShapeDtypeStructs; only ``Traced`` includes weak types."""
        avals = [aval.update(weak_type=False) for aval in self._result_avals]
        return tree.unflatten(self.out_tree, [struct_of(a) for a in avals])

    @property
    def _result_avals(self) -> list[ShapedArray]:
        return self._entry.jaxpr.out_avals[: self.out_tree.num_leaves]


@record
class MemoryAnalysis:
    """Memory use of one call in bytes, in JAX's terms.

    Libraries and host functions may allocate additional memory. Each thread of the process keeps
    buffers for packed matrices.

    Attributes:
        argument_size_in_bytes: size of the operands, including captured constants.
        output_size_in_bytes: size of the outputs.
        alias_size_in_bytes: size of the outputs that reuse memory of operands.
        temp_size_in_bytes: size of the arena for temporaries, which plans share.
        generated_code_size_in_bytes: size of the kernels' object code.
        host_argument_size_in_bytes, host_output_size_in_bytes: 0; GPU programs use no host memory.
        host_alias_size_in_bytes, host_temp_size_in_bytes: 0.
        host_generated_code_size_in_bytes: 0.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0

    @property
    def peak_memory_in_bytes(self) -> int:
        """Total size of operands, outputs and temporaries; shared memory counts once."""
        return (
            self.argument_size_in_bytes
            + self.output_size_in_bytes
            - self.alias_size_in_bytes
            + self.temp_size_in_bytes
        )


def _of_leaves(
    requested: tuple[Sharding | None, ...], structure: tree.TreeDef
) -> tuple[Sharding | None, ...]:
    """One sharding for each leaf; all are None if none was requested."""
    return requested or (None,) * structure.num_leaves


def _formats(structure: tree.TreeDef, avals: Sequence[ShapedArray], shardings: Any) -> Any:
    """A tree of formats with row-major layouts."""
    pairs = safe_zip(avals, tree.leaves(shardings))
    return tree.unflatten(structure, [format_of(aval.ndim, where) for aval, where in pairs])


class Compiled(Stage):
    """A program compiled for one signature.

    Over a mesh whose devices have memories of their own, ``steps``, texts, costs and memory are
    those of one device.
    """

    def __init__(
        self,
        entry: Entry,
        in_tree: tree.TreeDef,
        name: str,
        finish: Finish | None = None,
        requested: Requested | None = None,
    ) -> None:
        super().__init__(entry, in_tree, name, finish, requested)
        self._inputs = [*[None] * entry.hidden, *_of_leaves(self._requested.inputs, in_tree)]
        self._outputs = [*self._requested.outputs]
        if self._outputs:  # new values of refs have no shardings
            self._outputs += [None] * (len(entry.jaxpr.out_avals) - len(self._outputs))
        outputs = self._outputs or [None] * len(entry.jaxpr.out_avals)
        local = programs.local(entry.jaxpr, self._inputs, outputs)
        has_shardings = any(self._inputs) or any(self._outputs) or entry.asks
        self._is_plain = local is None and not has_shardings
        self._executable = entry.executable if local is None else local.executable(entry.donated)
        self._compiled = self._executable.compiled()

    @property
    def steps(self) -> tuple[plans.Step, ...]:
        """The steps of the plan, each with a ``kind``: kernel, library, copy or host."""
        return self._compiled.plan.steps

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        if in_tree != self.in_tree:
            raise TypeError(
                f"[compiled] arguments of {self.fun_name} must form the tree that was lowered, "
                f"{tree.text(self.in_tree)}; got {tree.text(in_tree)}. "
                "Fix: lower again for other arguments."
            )
        entry = self._entry
        for leaf, want in safe_zip(leaves, entry.jaxpr.in_avals[entry.hidden :]):
            if isinstance(leaf, Tracer):
                raise TypeError(
                    f"[compiled] a compiled program takes arrays, no traced values; got {leaf!r} "
                    f"in a call of {self.fun_name}. Fix: transform the function that was lowered."
                )
            got = type_of(leaf)
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                raise TypeError(
                    f"[compiled] arguments of {self.fun_name} must have the lowered types; got "
                    f"{got} for {want}. Fix: lower again for other shapes, or convert the argument."
                )
        operands = entry.operands("compiled", leaves, runs=True)
        if self._is_plain and WITH_SHARDINGS.isdisjoint(map(type, operands)):
            outs = entry.executable(operands)
        else:
            pairs = safe_zip(self._inputs, shardings_of(operands))
            shardings = [wanted or current for wanted, current in pairs]
            requested, run = self._outputs or None, entry.executable
            outs, _ = run_placed(entry, operands, shardings, requested, run)
        outs = entry.results(leaves, outs, ran=True)
        leaves = outs if self._finish is None else self._finish(outs)
        return tree.unflatten(self._entry.out_tree, leaves)

    @property
    def input_shardings(self) -> Any:
        """Shardings of the arguments: a tuple of positional ones, and a dict."""
        inputs = _of_leaves(self._requested.inputs, self.in_tree)
        return tree.unflatten(self.in_tree, self._on_device(inputs))

    @property
    def output_shardings(self) -> Any:
        """Shardings of the results, as a tree."""
        inputs = _of_leaves(self._requested.inputs, self.in_tree)
        requested = _of_leaves(self._requested.outputs, self.out_tree)
        derived = self._entry.shardings((*[None] * self._entry.hidden, *inputs)) or requested
        outputs = [sharding or other for sharding, other in zip(requested, derived, strict=False)]
        return tree.unflatten(self.out_tree, self._on_device(outputs))

    def _on_device(self, shardings: Sequence[Sharding | None]) -> list[Sharding]:
        """Shardings with None replaced by the single device."""
        device = self._requested.device or default_device()
        return [sharding or SingleDeviceSharding(device) for sharding in shardings]

    @property
    def input_formats(self) -> Any:
        """Layouts (always row-major) and shardings of the arguments."""
        avals = tree.leaves(self.in_avals)
        return _formats(self.in_tree, avals, self.input_shardings)

    @property
    def output_formats(self) -> Any:
        """Layouts (always row-major) and shardings of the results."""
        return _formats(self.out_tree, self._result_avals, self.output_shardings)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, as ``compiled(*args, **kwargs)`` does."""
        return self(*args, **kwargs)

    def runtime_executable(self) -> Executable:
        """Return the executable, with ``explain`` and ``cost_analysis``."""
        return self._executable

    def as_text(self) -> str:
        """Return the KernelIR of every kernel, and one line of text for every other step."""
        texts = []
        for step in self.steps:
            if isinstance(step, plans.KernelStep):
                texts.append(kir_text.kernel_text(step.kernel))
            else:
                texts.append(f"{step.kind} {plans.traffic_bytes(self._compiled.plan, step)} bytes")
        return "\n\n".join(texts)

    def explain(self, stage: str = "plan", platform: str | None = None) -> str:
        """Explain the program at one of its stages; see ``gpuflow.explain``."""
        return self._executable.explain(self.fun_name, stage, platform)

    def cost_analysis(self) -> dict[str, float]:
        """Return the ``flops`` and ``bytes accessed`` of one call."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> MemoryAnalysis:
        """Return the sizes of operands, outputs and temporaries; this compiles the kernels."""
        plan = self._compiled.plan
        return MemoryAnalysis(
            sum(map(plans.nbytes, plan.jaxpr.in_avals)),
            sum(map(plans.nbytes, plan.jaxpr.out_avals)),
            sum(plans.nbytes(atom.aval) for atom in plans.aliased_outputs(plan)),
            plan.arena_bytes,
            self._compiled.program.code_bytes(),
        )


class Lowered(Stage):
    """A program traced for one signature, ready to be compiled."""

    def of_trees(
        self, in_tree: tree.TreeDef, out_tree: tree.TreeDef, name: str, finish: Finish
    ) -> Lowered:
        """Wrap a program of leaves as one of trees, with ``finish`` applied to its outputs."""
        entry = replace(self._entry, out_tree=out_tree)
        return Lowered(entry, in_tree, name, finish)

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The traced program; captured arrays are its first inputs."""
        return self._entry.jaxpr

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Compile the program.

        Args:
            compiler_options: options of XLA, by name; no effect.

        Raises:
            JaxRuntimeError: if the option is not an option of XLA.
        """
        check_compiler_options(compiler_options)
        return Compiled(self._entry, self.in_tree, self.fun_name, self._finish, self._requested)

    def as_text(self, dialect: str | None = None, *, debug_info: bool = False) -> str:
        """Return the traced program as text: a jaxpr.

        Args:
            dialect: ``"stablehlo"`` and ``"hlo"``, which programs written for JAX request, return
                the same text.
            debug_info: accepted as in JAX; no effect.

        Raises:
            ValueError: if the dialect is unknown.
        """
        del debug_info
        _check_dialect("as_text", dialect)
        return str(self.jaxpr)

    def compiler_ir(self, dialect: str | None = None) -> ClosedJaxpr:
        """Return the traced program: a jaxpr for any dialect; see ``as_text``.

        Raises:
            ValueError: if the dialect is unknown.
        """
        _check_dialect("compiler_ir", dialect)
        return self.jaxpr

    def cost_analysis(self) -> dict[str, float]:
        """Return the costs, as ``Compiled.cost_analysis``."""
        return self.compile().cost_analysis()


class Traced(Stage):
    """A program traced for one signature."""

    @property
    def entry(self) -> Entry:
        """The traced signature."""
        return self._entry

    @property
    def requested(self) -> Requested:
        """The requested shardings and device."""
        return self._requested

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The traced program; captured arrays are its first inputs."""
        return self._entry.jaxpr

    @property
    def out_info(self) -> Any:
        """The results as a tree of ShapeDtypeStructs."""
        return tree.unflatten(self.out_tree, [struct_of(a) for a in self._result_avals])

    def lower(self, *, lowering_platforms: tuple[str, ...] | None = None) -> Lowered:
        """Return the next stage.

        Args:
            lowering_platforms: no effect: a program is lowered at its first call, for the platform
                that runs it.
        """
        del lowering_platforms
        return Lowered(self._entry, self.in_tree, self.fun_name, self._finish, self._requested)
