"""The transformations as users call them: jit, make_jaxpr, explain. (vmap is in api/vmap.py.)

Tests: tests/control/test_jit_options.py, tests/test_api_errors.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from gpuflow.api.derivatives import _named
from gpuflow.base import dtypes, tree
from gpuflow.base.arguments import as_argnums
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
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.mesh import AbstractMesh, Mesh
from gpuflow.core.ref_programs import record_program
from gpuflow.core.refs import AbstractRef, Ref, values_of
from gpuflow.core.trace import ConcreteTrace, current_trace, thread_state
from gpuflow.explaining.topology import Topology
from gpuflow.runtime.device import Device

if TYPE_CHECKING:
    from gpuflow.compiler.planning import symbolic_program
    from gpuflow.explaining import explanation, measuring, mesh_explanation
    from gpuflow.explaining.explanation import Explanation
else:
    symbolic_program = LazyModule("gpuflow.compiler.planning.symbolic_program")
    explanation = LazyModule("gpuflow.explaining.explanation")
    measuring = LazyModule("gpuflow.explaining.measuring")
    mesh_explanation = LazyModule("gpuflow.explaining.mesh_explanation")

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
@explained
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
    """Compile ``fun``: trace it once per signature, fuse its operations, and run the kernels.

    All jitted functions of one function share its traces, as long as its globals, closure and
    defaults are the same objects.

    Args:
        fun: a function of arrays or pytrees, without side effects; if it is omitted, a decorator is
            returned.
        in_shardings, out_shardings: tree prefixes of Shardings for arguments and results; None uses
            the shardings of the arguments and infers those of the results.
        static_argnums, static_argnames: hashable arguments that are part of the signature.
        donate_argnums, donate_argnames: donated arguments; outputs may reuse their memory, and the
            call deletes them.
        keep_unused: accepted as in JAX; unused arguments are always part of the signature.
        device: the device of the computation, unless another transformation calls it; operands are
            copied to it.
        backend: the platform; its first device runs the function.
        inline: whether an enclosing trace records the function's ops instead of one jit equation.
        compiler_options: options of XLA; no effect.

    Returns:
        A function of the same arguments, with ``lower``, ``trace``, ``eval_shape`` and
        ``clear_cache``. As a class attribute it is a method.

    Raises:
        TypeError, ValueError: if an argument is neither an array nor static, or is not hashable.

    Example:
        >>> f = gf.jit(lambda x, n: x**n, static_argnames="n")
        >>> f(jnp.arange(4), n=2)
        Array([0, 1, 4, 9], dtype=int32)
    """
    del keep_unused
    check_compiler_options(compiler_options)

    def decorate(function: Callable[..., Any]) -> JitFunction[..., Any]:
        check_callable(function, "jit")
        options = make_options(
            function,
            static_argnums,
            static_argnames,
            donate_argnums,
            donate_argnames,
            inline,
            device,
            backend,
            in_shardings,
            out_shardings,
        )
        return JitFunction(function, options)

    return decorate if fun is _NO_FUNCTION else decorate(fun)


def clear_caches() -> None:
    """Clear all traced and compiled programs; kernels on disk are not deleted.

    Returns:
        None.

    Example:
        >>> f = gf.jit(lambda x: x + 1)
        >>> y = f(1)
        >>> gf.clear_caches()
        >>> f(1)
        Array(2, dtype=int32, weak_type=True)
    """
    clear_functions()
    forget_composites()
    forget_programs()
    symbolic_program.forget_symbolic_programs()


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Evaluate ops on concrete values immediately inside the block, even during tracing.

    Ops with a traced operand are traced.

    Returns:
        A context manager.

    Example:
        >>> @gf.jit
        ... def f(x):
        ...     with gf.ensure_compile_time_eval():
        ...         n = int(jnp.arange(4).sum())
        ...     return x * n
        >>> f(2.0)
        Array(12., dtype=float32, weak_type=True)
    """
    with current_trace(ConcreteTrace(thread_state.trace)):
        yield


@contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Run jitted functions op by op inside the block.

    Args:
        disable: whether to disable compilation; False enables it again inside a block.

    Returns:
        A context manager.

    Example:
        >>> with gf.disable_jit():
        ...     print(gf.jit(lambda x: x if x > 0 else -x)(-3))
        3
    """
    with config.override("disable_jit", disable):
        yield


@contextmanager
def enable_x64(enable: bool = True) -> Iterator[None]:
    """Enable 64-bit dtypes inside the block.

    Args:
        enable: whether to use 64-bit dtypes; False uses 32-bit dtypes.

    Returns:
        A context manager.

    Example:
        >>> with gf.enable_x64():
        ...     print(jnp.arange(2.0).dtype)
        float64
        >>> jnp.arange(2.0).dtype
        dtype('float32')
    """
    with config.override("enable_x64", enable):
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
    static_argnums: int | Sequence[int] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[ClosedJaxpr, tree.TreeDef]:
    argnums = () if static_argnums is None else static_argnums
    argnums = as_argnums("make_jaxpr", "static_argnums", argnums)
    argnums = (argnums,) if isinstance(argnums, int) else argnums
    static = tuple(k if k >= 0 else k + len(args) for k in argnums)
    dynamic = tuple(arg for k, arg in enumerate(args) if k not in static)
    leaves, in_tree = tree.flatten((dynamic, kwargs))
    out_trees: list[tree.TreeDef] = []

    def flat(*values: Any) -> list[Any]:
        call_args, call_kwargs = tree.unflatten(in_tree, values)
        traced = iter(call_args)
        full = [args[k] if k in static else next(traced) for k in range(len(args))]
        outs, out_tree = tree.flatten(fun(*full, **call_kwargs))
        out_trees.append(out_tree)
        return outs

    avals = [_type_of(leaf) for leaf in leaves]
    name = getattr(fun, "__name__", "the function")
    names = argument_names(fun, dynamic, kwargs, static)
    jaxpr, consts, refs = record_program(flat, avals, names, name)
    closed = () if refs is None else values_of(refs.closed)
    return ClosedJaxpr(jaxpr, (*consts, *closed)), out_trees[-1]


@explained
def make_jaxpr(
    fun: Callable[_P, Any],
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Any, int]] | None = None,
    return_shape: bool = False,
) -> Callable[_P, Any]:
    """Return a function that traces ``fun`` for given arguments and returns its jaxpr.

    A ref that ``fun`` uses is an input of the jaxpr; a ref that it writes is also one of the last
    outputs.

    Args:
        fun: the function to trace.
        static_argnums: arguments that are static, not traced.
        axis_env: named axes in scope, as pairs of a name and a size.
        return_shape: whether to return the output tree of ShapeDtypeStructs too.

    Returns:
        A function of the same arguments that returns a ClosedJaxpr; with ``return_shape`` a pair
        with a tree of ShapeDtypeStructs.

    Raises:
        TypeError: if ``fun`` is not callable.

    Example:
        >>> print(gf.make_jaxpr(lambda x: jnp.sin(x) + 1)(jnp.ones(3)))
        { lambda ; a:f32[3]. let
            b:f32[3] = sin a
            c:f32[3] = add b 1.0:f32[]
          in (c,) }
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
    fun: Callable[..., Any],
    *args: Any,
    stage: str = "plan",
    platform: str | None = None,
    top: int | None = 10,
    measure: bool = False,
    mesh: Mesh | AbstractMesh | None = None,
    topology: Topology | None = None,
    **kwargs: Any,
) -> Explanation:
    """Explain how ``fun(*args, **kwargs)`` runs as a compiled program.

    For each step: the kernel or library call, its equations with source lines, inputs and outputs,
    floating-point operations and bytes, and the file with the generated source. Also the reason why
    results are stored instead of fused. For each loop that is not a kernel: the reason.

    Args:
        fun: a function, jitted or not. If its arguments have the names below, wrap it:
            ``gf.explain(lambda x: f(x, top=3), x)``.
        args, kwargs: pytrees of arrays or ShapeDtypeStructs.
        stage: the compilation stage to show instead of the plan. In order: "jaxpr", "passes",
            "groups", "schedule" (KernelIR before and after each schedule), "kernels" (launched
            KernelIR), "text" (of the kernels), "binding" (arrays and argument slots) or "driver"
            (the launching program).
        platform: the target platform; the platform of new arrays by default. For stages up to
            "binding" another platform, such as "cuda", does not need to be available.
        top: number of steps that ``str`` shows, slowest first; None shows all.
        measure: whether to run the program several times, with all its effects, to measure its
            steps. ShapeDtypeStructs become zeros, and donated arguments are copied. Otherwise
            nothing runs, and times are predicted from bytes and operations.
        mesh: axes whose devices need not exist. The plan is then that of one device of the mesh:
            collectives, memory, and a timeline; see docs/many_devices.md. By default the mesh of
            sharded arguments; if they have none, the program runs on one device.
        topology: links and rates of the mesh's devices, for predicted times.

    Returns:
        Explanation: print it, inspect its ``steps``, or write a page with ``.to_html("f.html")``.
        For a mesh a MeshExplanation, with ``collectives``, ``bytes_sent(axis)``, ``peak_bytes``,
        ``exposed_seconds``, ``timeline``, ``diff(other)`` and more.

    Raises:
        ValueError: if the stage or platform is unknown, the stage needs a device, a program with
            refs or one over a mesh is measured, or a topology has no mesh.
        TypeError: if ``mesh`` is not a mesh, or ``topology`` not a Topology.
        RuntimeError: if you measure while the profiler records a trace.

    Example:
        >>> found = gf.explain(lambda x: jnp.exp(x).sum(), jnp.ones(1000))
        >>> [step.kind for step in found.steps]
        ['kernel']
    """
    jitted = fun if isinstance(fun, JitFunction) else jit(fun)
    check(
        topology is None or isinstance(topology, Topology),
        lambda: (
            f"[explain] topology must be a Topology; got {topology!r}. "
            "Fix: gpuflow.Topology(node=8, nvlink=450e9, nic=50e9)."
        ),
    )
    over = mesh_explanation.mesh_of(mesh, (args, kwargs))
    check(
        topology is None or over is not None,
        lambda: f"[explain] a topology needs a mesh; got {topology} without one. Fix: mesh=.",
        ValueError,
    )
    check(
        not measure or over is None or (mesh is None and mesh_explanation.can_be_measured(over)),
        lambda: (
            f"[explain] steps over a mesh are predicted; got measure=True for {over}. "
            "Fix: leave out measure, or use profiler.trace."
        ),
        ValueError,
    )
    if over is not None and not measure and (mesh is not None or stage != "driver"):
        return mesh_explanation.explained_over(
            jitted, args, kwargs, over, topology, stage, platform, top
        )
    if measure:
        args, kwargs = measuring.with_values((args, kwargs))
    compiled = jitted.lower(*args, **kwargs).compile()
    operands = jitted.operands(*args, **kwargs) if measure else None
    return explanation.explained(compiled, stage, platform, top, operands)


# Classes of symbolic sizes, each with its implementation of eval_shape.
_symbolic: dict[type, Callable[..., Any]] = {}


def register_symbolic(cls: type, evaluate: Callable[..., Any]) -> None:
    """Let ``eval_shape`` take sizes of a class, by ``evaluate(fun, args, kwargs)``."""
    _symbolic[cls] = evaluate


@explained
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the shapes and dtypes of ``fun(*args, **kwargs)`` without computing it.

    Args:
        fun: the function.
        args, kwargs: pytrees of arrays or ShapeDtypeStructs.

    Returns:
        The output tree with ShapeDtypeStruct leaves.

    Example:
        >>> gf.eval_shape(lambda x: x @ x.T, gf.ShapeDtypeStruct((2, 5), jnp.float32))
        ShapeDtypeStruct(shape=(2, 2), dtype=float32)
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    if _symbolic:
        for leaf in leaves:
            for size in leaf.shape if isinstance(leaf, ShapeDtypeStruct) else ():
                if type(size) in _symbolic:
                    return _symbolic[type(size)](fun, args, kwargs)
    key = ("eval_shape", in_tree, tuple(map(_type_of, leaves)), config.trace_context())
    cached = shared_traces.find(fun, key)
    if cached is None:
        jaxpr, out_tree = _trace(fun, (), args, kwargs)
        cached = out_tree, [struct_of(a) for a in jaxpr.out_avals[: out_tree.num_leaves]]
        shared_traces.store(fun, key, cached)
    return tree.unflatten(*cached)


def effects_barrier() -> None:
    """Wait until the callbacks of all called programs have run.

    Programs run their callbacks in the calling thread before they return, so none are pending.

    Returns:
        None.

    Example:
        >>> gf.effects_barrier()
    """


def typeof(x: Any) -> ShapedArray | AbstractRef:
    """Return the aval of ``x``, or the type of a Ref.

    In shard_map ``typeof(x).mat.varying`` are the axes along which ``x`` varies.

    Args:
        x: an array, scalar or Ref; it may be traced.

    Returns:
        ShapedArray, or AbstractRef for a Ref.

    Raises:
        TypeError: if ``x`` is not array-like.

    Example:
        >>> gf.typeof(jnp.ones((2, 3)))
        ShapedArray(float32[2,3])
    """
    if type(x) is Ref:
        return x.aval
    if not is_value(x):
        raise TypeError(
            f"[typeof] the value must be an array or a number; got {x!r}. Fix: jnp.asarray(x)."
        )
    return aval_of(x)
