"""``JitFunction``, the callable that ``jit`` returns: call cache, tracing, donation, shardings.

Fast path: a Form reads leaves and key of a known pytree, and an Entry or Placement runs. Slow path:
``_find`` flattens, looks up the signature, traces if it is new. In a trace, ``jit_p`` is bound.

Tests: tests/control/test_jit.py, tests/control/test_jit_options.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from gpuflow.base import tree
from gpuflow.base.config import Settings, config
from gpuflow.base.errors import check
from gpuflow.base.foreign import STATIC, brief, fix_for
from gpuflow.base.records import record
from gpuflow.base.util import is_users, safe_zip
from gpuflow.compiler.shardings import requested_shardings
from gpuflow.control import shared_traces
from gpuflow.control.call_shardings import check_requested, constrained, sharding_of
from gpuflow.control.entry import Entry, Placement, placement
from gpuflow.control.jit import close_over, jit_p, operand_avals
from gpuflow.control.jit_log import check_may_trace, explain_miss, log_time
from gpuflow.control.jit_options import VARIADIC, JitOptions, name_of
from gpuflow.control.placed_calls import run_placed, shardings_of
from gpuflow.control.programs import as_arrays
from gpuflow.control.retraces import Retraces
from gpuflow.control.shared_traces import Trace
from gpuflow.control.signatures import Signature, Signatures
from gpuflow.control.stages import Lowered, Requested, Traced
from gpuflow.core import key_use
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.ref_programs import RefUse, record_program
from gpuflow.core.refs import Ref, refuse_refs, type_of
from gpuflow.core.sharding import NamedSharding, Sharding, in_force
from gpuflow.core.trace import Tracer, eval_trace, thread_state
from gpuflow.ops.effects.device_put import device_put
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import default_device, in_use
from gpuflow.runtime.distributed import spans_memories
from gpuflow.runtime.scalars import SCALAR_TYPES, array_of
from gpuflow.runtime.sharded import ShardedArray

_P = ParamSpec("_P")
_T = TypeVar("_T")

_functions: WeakSet[JitFunction[..., Any]] = WeakSet()


@record
class _Arguments:
    """The arguments of a call that is traced.

    Attributes:
        args, kwargs: all arguments, as the caller passed them.
        dynamic, dynamic_kwargs: the arguments that are not static.
        avals: the types of the leaves of the dynamic arguments.
        treedef: the structure of ``(dynamic, dynamic_kwargs)``.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: tuple[Any, ...]
    dynamic_kwargs: dict[str, Any]
    avals: tuple[ShapedArray, ...]
    treedef: tree.TreeDef


def clear_functions() -> None:
    """Forget the traced signatures of all jitted functions."""
    shared_traces.forget()
    for function in _all_functions():
        function.clear_cache()


def _all_functions() -> list[JitFunction[..., Any]]:
    while True:
        with suppress(RuntimeError):  # another thread has just created a jitted function
            return list(_functions)


class _SignatureOf:
    """Descriptor of ``__signature__``, for callers of ``inspect`` that ignore ``__wrapped__``.

    The signature is cached: ``inspect`` reads the attribute twice, which would double the work for
    each level of ``jit(jit(f))``.
    """

    def __get__(self, jitted: Any, owner: type) -> inspect.Signature | None:
        if jitted is None:
            return None
        if jitted._signature is None:
            jitted._signature = inspect.signature(jitted._function)
        return jitted._signature


class JitFunction(Generic[_P, _T]):
    """A function that is traced and compiled for each signature; see ``gpuflow.jit``."""

    __signature__ = _SignatureOf()

    def __init__(self, function: Callable[_P, _T], options: JitOptions) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name_of(function)
        self._function = function
        self._signature: inspect.Signature | None = None
        self._options = options
        self._has_statics = bool(self._options.static_argnums or self._options.static_argnames)
        self._signatures = Signatures()
        self._forms = self._signatures.forms
        self._retraces = Retraces(function) if is_users(function) else None
        _functions.add(self)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Fast path, or else the slow path; see the module."""
        settings = config.trace_context()
        is_eager = thread_state.trace is eval_trace
        if is_eager:
            # Fast path: Arrays in a pytree of a known structure. Each break leads to the slow path.
            for form in self._forms:
                try:
                    lookup = form.read(args, kwargs, settings)
                    if lookup is None:
                        continue
                    leaves, key = lookup
                    entry = form.entries[key]
                except (KeyError, TypeError):
                    break  # new types or static values, or a static value without a hash
                except AttributeError:  # a leaf is not an Array: convert Python scalars
                    try:
                        leaves, key = form.read(args, kwargs, settings, _as_arrays)
                        entry = form.entries[key]
                    except (AttributeError, KeyError, TypeError, OverflowError):
                        break
                    if entry.executable.donated:  # arrays of scalars are cached: never donate them
                        break
                if entry.consts:
                    leaves = [*entry.consts, *leaves]
                if type(entry) is Placement:
                    result = entry.run(leaves)
                    if result is None:
                        break
                    return result[0]
                try:
                    arrays = [leaf._data for leaf in leaves]
                except AttributeError:
                    break  # a deleted array, or a distributed one
                return entry.run(arrays, leaves)
        if settings.disable_jit:
            return self._function(*as_arrays(args), **as_arrays(kwargs))  # type: ignore[call-arg]
        leaves, entry = self._find(args, kwargs)
        operands = entry.operands("jit", leaves, runs=is_eager)
        if is_eager and settings.debug_key_reuse:
            run = functools.partial(self._run_sharded, entry, operands, args, kwargs)
            outs = key_use.call(run, jit_p, operands, self._params(entry))
        elif is_eager:
            outs = self._run_sharded(entry, operands, args, kwargs)
        else:
            outs = self._bind(entry, operands, args, kwargs)
        return tree.unflatten(entry.out_tree, entry.results(leaves, outs, ran=is_eager))

    def short_entry(self, operands: Sequence[Any]) -> Entry | None:
        """Return the cached Entry for positional Arrays of these types, if the fast path has it."""
        key = (config.trace_context(), *map(aval_of, operands))
        entries = [form.entries.get(key) for form in self._forms]
        return next((entry for entry in entries if type(entry) is Entry), None)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {self.name}>"

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self._function)

    def _bind(
        self, entry: Entry, operands: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Bind the program inside a trace, with its shardings as constraints."""
        options, hidden = self._options, entry.hidden
        if options.in_shardings is not None:
            requested = self._requested_shardings(args, kwargs)
            operands = [*operands[:hidden], *constrained(operands[hidden:], requested)]
        if options.inline:
            outs = entry.jaxpr(*operands)
        else:
            outs = jit_p.bind(*operands, **self._params(entry))
        if options.out_shardings is not None:
            outs = constrained(outs, self._requested_results(entry))
        return outs

    def _params(self, entry: Entry) -> dict[str, Any]:
        return {
            "jaxpr": entry.jaxpr,
            "name": self.name,
            "donated": entry.donated,
            "inline": self._options.inline,
        }

    def _run_sharded(
        self, entry: Entry, operands: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Run the program; results have shardings if operands have, or shardings are requested."""
        options, shardings = self._options, shardings_of(operands)
        if options.in_shardings is not None:
            requested = self._requested_shardings(args, kwargs)
            for k, (sharding, value) in enumerate(safe_zip(requested, operands[entry.hidden :])):
                if sharding is not None:
                    sharding.shard_shape(aval_of(value).shape)
                    check_requested(self.name, value, sharding)
                    shardings[entry.hidden + k] = sharding
        results = None if options.out_shardings is None else self._requested_results(entry)
        run = functools.partial(self._run, entry)
        outs, out_shardings = run_placed(entry, operands, shardings, results, run)
        if out_shardings is not None:
            self._store_placement(args, kwargs, operands, entry, out_shardings)
        return outs

    def _store_placement(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Any],
        entry: Entry,
        shardings: Sequence[Sharding | None],
    ) -> None:
        """Cache a Placement, so that the next call with these shardings takes the fast path."""
        settings = config.trace_context()
        if not self._allows_fast_path(entry, settings):
            return
        if not all(type(x) in (Array, ShardedArray, *SCALAR_TYPES) for x in operands):
            return
        for form in self._forms:
            lookup = form.read(args, kwargs, settings, _as_arrays)
            if lookup is not None:
                self._signatures.add_placement(form, lookup[1], placement(entry, shardings))
                return

    def _requested_shardings(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Sharding | None]:
        """For each leaf of the arguments the sharding that ``in_shardings`` gives."""
        _, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        requested = tree.broadcast_prefix(self._options.in_shardings, dynamic, "jit in_shardings")
        return [*map(sharding_of, requested), *[None] * len(tree.leaves(dynamic_kwargs))]

    def _requested_results(self, entry: Entry) -> list[Sharding | None]:
        """For each output the sharding that ``out_shardings`` gives; refs have none."""
        count = entry.out_tree.num_leaves
        result = tree.unflatten(entry.out_tree, range(count))
        requested = tree.broadcast_prefix(self._options.out_shardings, result, "jit out_shardings")
        return [*map(sharding_of, requested), *[None] * (len(entry.jaxpr.out_avals) - count)]

    def _run(self, entry: Entry, operands: list[Any]) -> list[Any]:
        """Run the program on the device of the options, or on the device of its operands."""
        device = self._options.device
        if device is not None:
            operands = [device_put(operand, device) for operand in operands]
            with config.override("default_device", device):
                return entry.executable(operands)
        counted = entry.counted(operands) if in_use.several else None
        return entry.executable(operands, counted)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace for arguments or ShapeDtypeStructs: the program, before it is lowered."""
        entry = self._find(args, kwargs)[1]
        _, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        in_tree = tree.structure((dynamic, dynamic_kwargs))
        requested = self._request(entry, args, kwargs)
        return Traced(entry, in_tree, self.name, requested=requested)

    def _request(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Requested:
        """The requested shardings of arguments and results."""
        _, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        leaves = tree.leaves((dynamic, dynamic_kwargs))
        inputs = [in_force(getattr(x, "sharding", None), config.mesh) for x in leaves]
        inputs = [sharding if isinstance(sharding, NamedSharding) else None for sharding in inputs]
        outputs: list[Sharding | None] = []
        if self._options.in_shardings is not None:
            requested = self._requested_shardings(args, kwargs)
            inputs = [sharding or other for sharding, other in safe_zip(requested, inputs)]
        if self._options.out_shardings is not None:
            outputs = self._requested_results(entry)[: entry.out_tree.num_leaves]
        return Requested(tuple(inputs), tuple(outputs), self._options.device)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments or ShapeDtypeStructs, without running anything."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """ShapeDtypeStructs of the outputs for arguments or ShapeDtypeStructs."""
        return self.trace(*args, **kwargs).out_info

    def operands(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the operands of the program: captured arrays, and the leaves of arguments.

        Raises:
            ValueError: if the function uses refs, which change whenever it runs.
        """
        leaves, entry = self._find(args, kwargs)
        check(
            entry.refs is None,
            lambda: (
                f"[jit] the operands of {self.name} must be arrays; got refs, which change when it "
                "runs. Fix: leave measure=True out, or return the new values of the refs."
            ),
            ValueError,
        )
        return entry.operands("jit", leaves, runs=True)

    def clear_cache(self) -> None:
        """Forget all traced signatures, also those that other jits of the function made."""
        shared_traces.forget(self._function)
        self._signatures.clear()
        if self._retraces is not None:
            self._retraces.forget()

    def _cache_size(self) -> int:
        return len(self._signatures)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Entry]:
        """The leaves of dynamic arguments, and the Entry of their signature, traced if new."""
        if self._has_statics:
            statics, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        else:
            statics, dynamic, dynamic_kwargs = (), args, kwargs
        leaves, treedef = tree.flatten((dynamic, dynamic_kwargs))
        try:
            avals = operand_avals(leaves)
        except TypeError:  # refs, or invalid arguments
            if not all(type(leaf) is Ref or is_value(leaf) for leaf in leaves):
                self._check_leaves(dynamic, dynamic_kwargs)
            avals = tuple([type_of(leaf) for leaf in leaves])
        settings = config.trace_context()
        key = (treedef, avals, statics, settings)  # as in Signature
        try:
            entry = self._signatures.find(key)
        except TypeError as error:
            raise ValueError(
                f"[jit] static arguments of {self.name} must be hashable; "
                f"got {', '.join(brief(value) for _, _, value in statics)}. "
                f"Fix: pass a tuple instead of a list, or make the argument dynamic. ({error})"
            ) from None
        if entry is None:
            shared = shared_traces.find(self._function, (self._options.static_argnums, *key))
            if shared is not None:
                entry = self._entry(shared, dynamic, dynamic_kwargs)
                self._store(key, entry)
                return leaves, entry
            switches = config.switches()
            if switches.explain_cache_misses:
                known = [Signature(*other) for other in self._signatures]
                explain_miss(self.name, Signature(*key), known)
            check_may_trace(self.name)
            arguments = _Arguments(args, kwargs, dynamic, dynamic_kwargs, avals, treedef)
            start = perf_counter()
            if switches.log_compiles:
                entry = self._trace_logged(leaves, arguments, key)
            else:
                entry = self._trace(arguments, key)
            if self._retraces is not None:
                names = functools.partial(self.argument_names, dynamic, dynamic_kwargs)
                seconds = perf_counter() - start - entry.build_seconds[0]
                self._retraces.note(Signature(*key), names, seconds, entry.build_seconds)
            is_lasting = entry.refs is None or entry.refs.outlives_traces
            if is_lasting and not any(isinstance(const, Tracer) for const in entry.consts):
                self._store(key, entry)
        return leaves, entry

    def _store(self, key: tuple[Any, ...], entry: Entry) -> None:
        """Cache the entry by signature, and for the fast path if that may run it."""
        treedef, avals, statics, settings = key
        is_short = self._allows_fast_path(entry, settings)
        shape = treedef, tuple([where for where, _, _ in statics])
        values = [item for _, kind, value in statics for item in (kind, value)]
        short = (shape, (settings, *avals, *values)) if is_short else None
        self._signatures.add(key, entry, short)

    def _allows_fast_path(self, entry: Entry, settings: Settings) -> bool:
        """Whether the fast path may run the entry: no checks, refs, device moves, or memories."""
        if settings.debug_nans or settings.debug_infs or settings.debug_key_reuse:
            return False
        if entry.refs is not None or self._options.device is not None:
            return False
        return not (in_use.distributed and spans_memories(entry.jaxpr))

    def _split_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
        options = self._options
        argnums = {k if k >= 0 else k + len(args) for k in options.static_argnums}
        # The type is part of the key: 1, 1.0 and True are equal but trace to different programs.
        static_args: list[Any] = [(k, args[k]) for k in sorted(argnums) if k < len(args)]
        static_names = [name for name in sorted(kwargs) if name in self._static_names]
        static_args += [(name, kwargs[name]) for name in static_names]
        statics = [(where, type(value), value) for where, value in static_args]
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in argnums)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in self._static_names}
        return tuple(statics), dynamic, dynamic_kwargs

    @property
    def _static_names(self) -> tuple[str, ...]:
        return self._options.static_argnames

    def argument_names(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return argument_names(self._function, dynamic, kwargs, self._options.static_argnums)

    def _check_leaves(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = self.argument_names(dynamic, kwargs)
        for path, leaf in safe_zip(names, tree.leaves((dynamic, kwargs))):
            if not is_value(leaf) and type(leaf) is not Ref:
                raise TypeError(
                    f"[jit] arguments of {self.name} must be arrays, numbers or trees of them; "
                    f"got {brief(leaf)} as {path}. Fix: {fix_for(leaf, STATIC, path)}."
                )

    def _trace_logged(
        self, leaves: list[Any], arguments: _Arguments, key: tuple[Any, ...]
    ) -> Entry:
        """Trace, compile if the call is eager, and log both durations."""
        with log_time("traced", self.name, arguments.avals):
            entry = self._trace(arguments, key)
        if thread_state.trace is eval_trace:
            arrays = [leaf for leaf in leaves if type(leaf) is Array]
            device = self._options.device or (arrays[-1].device if arrays else default_device())
            with log_time("compiled", self.name, arguments.avals):
                entry.executable.compiled(device)
        return entry

    def _trace(self, arguments: _Arguments, key: tuple[Any, ...]) -> Entry:
        out_trees: list[tree.TreeDef] = []
        dynamic, dynamic_kwargs = arguments.dynamic, arguments.dynamic_kwargs
        rebuild = self._rebuilder(arguments.args, arguments.kwargs)

        def flat(*leaves: Any) -> list[Any]:
            traced_args, traced_kwargs = tree.unflatten(arguments.treedef, leaves)
            full_args, full_kwargs = rebuild(traced_args, traced_kwargs)
            outs, out_tree = tree.flatten(self._function(*full_args, **full_kwargs))
            out_trees.append(out_tree)
            _check_outputs(self.name, outs, out_tree)
            return outs

        names = self.argument_names(dynamic, dynamic_kwargs)
        jaxpr, consts, refs = record_program(flat, arguments.avals, names, self.name)
        hidden, params = close_over(jaxpr, [_snapshot(const) for const in consts], self.name)
        trace = Trace(params["jaxpr"], tuple(hidden), tree.sorted_keys(out_trees[-1]))
        if refs is None and all(type(const) is Array for const in consts):
            shared_traces.store(self._function, (self._options.static_argnums, *key), trace)
        return self._entry(trace, dynamic, dynamic_kwargs, refs)

    def _entry(
        self,
        trace: Trace,
        dynamic: tuple[Any, ...],
        dynamic_kwargs: dict[str, Any],
        refs: RefUse | None = None,
    ) -> Entry:
        """Convert a trace to an Entry with the options of this function."""
        donated = self._donated(dynamic, dynamic_kwargs)
        donated = (False,) * (len(trace.jaxpr.in_avals) - len(donated)) + donated
        options = self._options
        asks = options.in_shardings is not None or options.out_shardings is not None
        asks = asks or bool(requested_shardings(trace.jaxpr.jaxpr))
        return Entry(trace.jaxpr, trace.consts, trace.out_tree, donated, refs, asks)

    def _rebuilder(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        argnums = {k if k >= 0 else k + len(args) for k in self._options.static_argnums}
        static_kwargs = {k: v for k, v in kwargs.items() if k in self._static_names}

        def rebuild(
            dynamic: tuple[Any, ...], dynamic_kwargs: dict[str, Any]
        ) -> tuple[list[Any], dict[str, Any]]:
            remaining = iter(dynamic)
            full = [arg if k in argnums else next(remaining) for k, arg in enumerate(args)]
            return full, {**dynamic_kwargs, **static_kwargs}

        return rebuild

    def _donated(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
        options = self._options
        positions = _dynamic_positions(len(dynamic), options.static_argnums)
        count = len(dynamic) + len(options.static_argnums)
        donated = {k if k >= 0 else k + count for k in options.donate_argnums}
        flags: list[bool] = []
        for position, arg in safe_zip(positions, dynamic):
            flags += _donated_leaves(arg, position in donated)
        for name in sorted(kwargs):
            flags += _donated_leaves(kwargs[name], name in options.donate_argnames)
        return tuple(flags)


def _as_arrays(leaves: list[Any]) -> list[Any]:
    """Leaves with Python scalars replaced by arrays."""
    return [array_of(x) if type(x) in SCALAR_TYPES else x for x in leaves]


def _donated_leaves(arg: Any, is_donated: bool) -> list[bool]:
    """A flag for each leaf; refs are never donated: other code may hold their arrays."""
    return [is_donated and type(leaf) is not Ref for leaf in tree.leaves(arg)]


def _snapshot(const: Any) -> Any:
    """Copy a captured NumPy array: the caller may write into it before the next call."""
    if isinstance(const, Array | Tracer):
        return const
    return from_numpy(const, aval_of(const))


def _dynamic_positions(count: int, static: tuple[int, ...]) -> list[int]:
    """Positions of ``count`` dynamic arguments in the full argument list."""
    positions, position = [], 0
    fixed = {k for k in static if k >= 0}
    while len(positions) < count:
        if position not in fixed:
            positions.append(position)
        position += 1
    return positions


def argument_names(
    function: Callable[..., Any],
    dynamic: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: tuple[int, ...] = (),
) -> list[str]:
    """A readable name such as ``params['w']`` for each leaf of the arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    positions = _dynamic_positions(len(dynamic), static_argnums)
    for position, arg in safe_zip(positions, dynamic):
        is_named = position < len(parameters) and parameters[position].kind not in VARIADIC
        stem = parameters[position].name if is_named else f"number {position}"
        names += [stem + path for path in tree.paths(arg)]
    for name in sorted(kwargs):
        names += [name + path for path in tree.paths(kwargs[name])]
    return names


def _check_outputs(name: str, outs: Sequence[Any], out_tree: tree.TreeDef) -> None:
    for out in outs:
        if not is_value(out):
            refuse_refs("jit", [out], f"outputs of {name}")
            raise TypeError(
                f"[jit] outputs of {name} must be arrays, numbers or trees of them; got "
                f"{brief(out)} in {tree.text(out_tree)}. Fix: {fix_for(out, 'return arrays only')}."
            )
