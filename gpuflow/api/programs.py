"""The transformations as users call them: jit, make_jaxpr, devices. (vmap is in api/vmap.py.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import numpy as np

from gpuflow.api.derivatives import _named
from gpuflow.base import dtypes, tree
from gpuflow.base.config import config, extend_axes
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.control import shared_traces
from gpuflow.control.composite import forget_composites
from gpuflow.control.jit_function import JitFunction, argument_names, clear_functions
from gpuflow.control.jit_options import check_callable, make_options, name_of
from gpuflow.control.programs import forget_programs
from gpuflow.control.stages import ShapeDtypeStruct as ShapeDtypeStruct
from gpuflow.control.stages import check_compiler_options, struct_of
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.ref_programs import record_program
from gpuflow.core.refs import AbstractRef, Ref, values_of
from gpuflow.core.sharding import PartitionSpec
from gpuflow.core.trace import ConcreteTrace, Tracer, current_trace, thread_state
from gpuflow.core.types import ArrayLike, DeviceLike
from gpuflow.parallel.placement import as_sharding, put
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, process
from gpuflow.runtime.device import devices as platform_devices
from gpuflow.runtime.device import local_devices as process_devices

if TYPE_CHECKING:
    from gpuflow.compiler import pipeline
    from gpuflow.explaining import explanation, measuring
    from gpuflow.explaining.explanation import Explanation
else:
    pipeline = LazyModule("gpuflow.compiler.pipeline")
    explanation = LazyModule("gpuflow.explaining.explanation")
    measuring = LazyModule("gpuflow.explaining.measuring")

_P = ParamSpec("_P")
_T = TypeVar("_T")

# --- jit and tracing -----------------------------------------------------------------------


_NO_FUNCTION: Any = object()


@overload
def jit(
    fun: Callable[_P, _T],
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> JitFunction[_P, _T]: ...
@overload
def jit(
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Callable[[Callable[_P, _T]], JitFunction[_P, _T]]: ...
def jit(
    fun: Callable[..., Any] = _NO_FUNCTION,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """Compile ``fun``: trace it once for each signature, fuse it, run the kernels.

    All jitted functions of one plain function share its traces, as long as its globals, closure and
    defaults are the same objects.

    Args:
        fun: a function of arrays or trees, without side effects. Without it, a decorator.
        in_shardings, out_shardings: tree prefixes of Shardings for arguments and results; None
            for those that arguments have, and what follows from them.
        static_argnums, static_argnames: hashable arguments that are part of the signature.
        donate_argnums, donate_argnames: arguments whose memory the outputs may use; they are
            deleted by the call.
        keep_unused: unused arguments are kept in the signature in any case.
        device: where it runs, unless another transformation calls it; operands are moved there.
        backend: the platform whose first device that is.
        inline: under another trace, record the function's ops instead of one jit equation.
        compiler_options: of XLA; they have no effect.

    Returns:
        A function of the same arguments, with ``lower``, ``trace``, ``eval_shape`` and
        ``clear_cache``. As an attribute of a class it is a method.

    Raises:
        TypeError, ValueError: arguments that are neither arrays nor static, or not hashable.
    """
    del keep_unused
    check_compiler_options(compiler_options)

    def decorate(function: Callable[..., Any]) -> JitFunction[..., Any]:
        check_callable(function, "jit")
        options = make_options(
            function, static_argnums, static_argnames, donate_argnums, donate_argnames, inline,
            device, backend, in_shardings, out_shardings,
        )  # fmt: skip
        return JitFunction(function, options)

    return decorate if fun is _NO_FUNCTION else decorate(fun)


def clear_caches() -> None:
    """Forget all traced and compiled programs; kernels on disk stay."""
    clear_functions()
    forget_composites()
    forget_programs()
    pipeline.forget_templates()


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Inside the block ops on known values run at once, even while a function is traced.

    Those that get a traced value are traced.
    """
    with current_trace(ConcreteTrace(thread_state.trace)):
        yield


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Inside the block, jitted functions run op by op."""
    with config.override("disable_jit", disable):
        yield


def _type_of(leaf: Any) -> Any:
    """The type of a value or ref, or of anything else that has a shape and a dtype."""
    if type(leaf) is Ref:
        return leaf.aval
    if is_value(leaf) or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return aval_of(leaf)
    dtype = dtypes.canonicalize(leaf.dtype)
    return ShapedArray(tuple(leaf.shape), dtype, getattr(leaf, "weak_type", False))


def _trace(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[ClosedJaxpr, tree.TreeDef]:
    argnums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    static = tuple(k if k >= 0 else k + len(args) for k in argnums)
    dynamic = tuple(arg for k, arg in enumerate(args) if k not in static)
    leaves, in_tree = tree.flatten((dynamic, kwargs))
    out_trees: list[tree.TreeDef] = []

    def flat(*values: Any) -> list[Any]:
        call_args, call_kwargs = tree.unflatten(in_tree, values)
        rest = iter(call_args)
        full = [args[k] if k in static else next(rest) for k in range(len(args))]
        outs, out_tree = tree.flatten(fun(*full, **call_kwargs))
        out_trees.append(out_tree)
        return outs

    avals = [_type_of(leaf) for leaf in leaves]
    name = getattr(fun, "__name__", "the function")
    names = argument_names(fun, dynamic, kwargs, static)
    jaxpr, consts, refs = record_program(flat, avals, names, name)
    closed = () if refs is None else values_of(refs.closed)
    return ClosedJaxpr(jaxpr, (*consts, *closed)), out_trees[-1]


def make_jaxpr(
    fun: Callable[_P, Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[_P, Any]:
    """A function that returns the jaxpr of ``fun`` for given arguments.

    A ref that ``fun`` uses is an input of the jaxpr, and one that it writes an output behind all
    others.

    Args:
        fun: the function to trace.
        static_argnums: arguments that are not traced.
        axis_env: named axes in scope, as pairs of a name and a size.
        return_shape: also return the tree of output ShapeDtypeStructs.

    Raises:
        TypeError: ``fun`` cannot be called.
    """
    check_callable(fun, "make_jaxpr")

    def make_jaxpr_f(*args: Any, **kwargs: Any) -> Any:
        with extend_axes(*(axis_env or ())):
            jaxpr, out_tree = _trace(fun, static_argnums, args, kwargs)
        if not return_shape:
            return jaxpr
        structs = [struct_of(a) for a in jaxpr.out_avals[: out_tree.num_leaves]]
        return jaxpr, tree.unflatten(out_tree, structs)

    wrapped = _named(make_jaxpr_f, fun, "make_jaxpr")
    wrapped.__name__ = f"make_jaxpr({name_of(fun)})"
    return wrapped


def explain(
    fun: Callable[..., Any], *args: Any, stage: str = "plan", platform: str | None = None,
    top: int | None = 10, measure: bool = False, **kwargs: Any,
) -> Explanation:  # fmt: skip
    """How ``fun(*args, **kwargs)`` runs as a compiled program.

    For each step: the kernel or library call, its equations with their source lines, what it reads
    and writes, floating-point operations and bytes, the file with the generated source, and why
    its results are stored instead of being used in the same kernel. For each loop: why it is none.

    Args:
        fun: a function, jitted or not. One with arguments of the names below is wrapped:
            ``gf.explain(lambda x: f(x, top=3), x)``.
        args, kwargs: arrays or ShapeDtypeStructs, in trees.
        stage: what to show instead of the plan, in the order in which a program comes to it:
            "jaxpr", "passes", "groups", "schedule" (KernelIR before and after each schedule),
            "kernels" (KernelIR of what is launched), "text" (of the kernels), "binding" (arrays,
            and words of arguments) or "driver" (the program that runs them).
        platform: for which platform, by default that of new arrays. Another one, such as "cuda",
            need not be there for the stages up to "binding".
        top: how many steps ``str`` shows, those that take longest; None: all.
        measure: run the program some times, with all its effects, to measure its steps; on zeros
            for ShapeDtypeStructs, and on copies of what it donates. Otherwise nothing is run, and
            times are predicted from bytes and operations.

    Returns:
        Explanation: print it, look at its ``steps``, or write a page, ``.to_html("f.html")``.

    Raises:
        ValueError: there is no such stage or platform, or the stage needs a device; to measure, the
            program must use no refs.
        RuntimeError: to measure while a trace of the profiler is taken.

    Example:
        >>> found = gf.explain(lambda x: jnp.exp(x).sum(), jnp.ones(1000))
        >>> [step.kind for step in found.steps]
        ['kernel']
    """
    jitted = fun if isinstance(fun, JitFunction) else jit(fun)
    if measure:
        args, kwargs = measuring.with_values((args, kwargs))
    compiled = jitted.lower(*args, **kwargs).compile()
    operands = jitted.operands(*args, **kwargs) if measure else None
    return explanation.Explanation(compiled, stage, platform, top, operands)


# Classes of sizes that are no numbers, each with what eval_shape does where there are such.
_symbolic: dict[type, Callable[..., Any]] = {}


def register_symbolic(cls: type, evaluate: Callable[..., Any]) -> None:
    """Let ``eval_shape`` take sizes of a class, by ``evaluate(fun, args, kwargs)``."""
    _symbolic[cls] = evaluate


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of ``fun(*args, **kwargs)``, without computing anything.

    Args:
        fun: the function.
        args, kwargs: arrays or ShapeDtypeStructs, in trees.

    Returns:
        The output tree with ShapeDtypeStruct leaves.
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    if _symbolic:
        for leaf in leaves:
            for size in leaf.shape if isinstance(leaf, ShapeDtypeStruct) else ():
                if type(size) in _symbolic:
                    return _symbolic[type(size)](fun, args, kwargs)
    key = ("eval_shape", in_tree, tuple(map(_type_of, leaves)), config.trace_context())
    known = shared_traces.find(fun, key)
    if known is None:
        jaxpr, out_tree = _trace(fun, (), args, kwargs)
        known = out_tree, [struct_of(a) for a in jaxpr.out_avals[: out_tree.num_leaves]]
        shared_traces.keep(fun, key, known)
    return tree.unflatten(*known)


# --- devices -------------------------------------------------------------------------------


def devices(backend: str | None = None) -> list[Device]:
    """All devices of ``backend`` (default: the default platform)."""
    return list(platform_devices(backend))


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Device]:
    """The devices of one process.

    Args:
        process_index: of the process; this one by default.
        backend: the platform; the default one if it is left out.
        host_id: an older name of ``process_index``.
    """
    wanted = host_id if process_index is None else process_index
    if wanted is None:
        return list(process_devices(backend))
    return [device for device in devices(backend) if device.process_index == wanted]


def device_count(backend: str | None = None) -> int:
    """The number of devices."""
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """The number of devices of this process."""
    return len(process_devices(backend))


def process_count(backend: str | None = None) -> int:
    """The number of processes that work together; 1 in a single process."""
    del backend
    return process.count


def process_index(backend: str | None = None) -> int:
    """The number of this process; 0 in a single process."""
    del backend
    return process.index


def _check_device(name: str, device: Any) -> None:
    if device is not None and not isinstance(device, Device):
        raise TypeError(
            f"[{name}] device must be a Device or None; got {device!r}. Fix: gpuflow.devices()[0]."
        )


@contextmanager
def default_device(device: Device | str | None) -> Iterator[None]:
    """Inside the block, new arrays are made on ``device``.

    Args:
        device: a device, the name of a platform, or None: the default platform's first.

    Raises:
        TypeError, ValueError: something else.
    """
    if not isinstance(device, str):
        _check_device("default_device", device)
    with config.override("default_device", device):
        yield


@contextmanager
def enable_x64(enable: bool = True) -> Iterator[None]:
    """Inside the block, 64-bit dtypes are kept."""
    with config.override("enable_x64", enable):
        yield


@overload
def device_put(
    x: ArrayLike, device: DeviceLike | PartitionSpec = None, *, src: Any = None,
    donate: bool = False, may_alias: bool | None = None,
) -> Array: ...  # fmt: skip
@overload
def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool = False,
    may_alias: bool | None = None,
) -> Any: ...  # fmt: skip
def device_put(
    x: Any, device: Any = None, *, src: Any = None, donate: bool = False,
    may_alias: bool | None = None,
) -> Any:  # fmt: skip
    """Copy the leaves of ``x`` to where they are wanted, as Arrays.

    Args:
        x: an array, number or tree.
        device: a Device, a Sharding, or a PartitionSpec of the mesh in force; or a tree prefix of
            them.
        src: where ``x`` is; it is found anyway.
        donate: whether the memory of ``x`` may be used; it is copied anyway.
        may_alias: whether the result may be ``x`` itself; it never is.

    Raises:
        ValueError: ``device`` is no such place, a sharding that does not divide its array, or both
            ``donate`` and ``may_alias``.
    """
    del src
    check(
        not (donate and may_alias),
        lambda: "[device_put] an array is donated or aliased; got donate and may_alias. Fix: "
        "leave one out.",
        ValueError,
    )
    leaves, structure = tree.flatten(x)
    places = tree.broadcast_prefix(device, x, "device_put")
    pairs = zip(leaves, places, strict=True)
    placed = [put(leaf, as_sharding(at, "device_put")) for leaf, at in pairs]
    return tree.unflatten(structure, placed)


def device_get(x: Any) -> Any:
    """The leaves of ``x`` as NumPy arrays; keys, numbers, traced values and other objects stay."""

    def get(leaf: Any) -> Any:
        stays = isinstance(leaf, Ref | Tracer) or dtypes.is_extended(getattr(leaf, "dtype", None))
        return np.asarray(leaf) if hasattr(leaf, "__array__") and not stays else leaf

    return tree.tree_map(get, x)


def block_until_ready(x: _T) -> _T:
    """Wait until every Array in ``x`` is computed, and return ``x``."""
    if type(x) is Array:
        return x.block_until_ready()  # type: ignore[return-value]
    for leaf in tree.leaves(x):
        if isinstance(leaf, Array | Ref) and not isinstance(leaf, Tracer):
            leaf.block_until_ready()
    return x


def effects_barrier() -> None:
    """Wait until the callbacks of all programs that were called have happened.

    Programs call back from the thread that called them, before they return: nothing is left.
    """


def typeof(x: Any) -> ShapedArray | AbstractRef:
    """The aval of ``x``, or the type of a ref.

    In shard_map ``typeof(x).mat.varying`` are the axes along which ``x`` varies.

    Raises:
        TypeError: ``x`` is neither an array nor a number.
    """
    if type(x) is Ref:
        return x.aval
    if not is_value(x):
        raise TypeError(
            f"[typeof] the value must be an array or a number; got {x!r}. Fix: jnp.asarray(x)."
        )
    return aval_of(x)
