"""The function object that ``jit`` returns: signatures, the call cache, donation, lowering."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import close_over, jit_p, operand_avals
from gpuflow.control.stages import Entry, Lowered
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.core.trace import Tracer, eval_trace, thread_state
from gpuflow.runtime.array import Array, from_numpy


def _indices(value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _names(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True)
class JitOptions:
    """What ``jit`` was asked for."""

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    inline: bool = False


class JitFunction:
    """A function that is traced and compiled for each signature; see ``gpuflow.jit``."""

    def __init__(self, function: Callable[..., Any], options: JitOptions) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = _complete(function, options)
        self._has_statics = bool(self._options.static_argnums or self._options.static_argnames)
        self._entries: dict[Any, Entry] = {}
        self._flat_entries: dict[Any, Entry] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        settings = config.trace_context()
        if settings.disable_jit:
            return self._function(*args, **kwargs)
        is_eager = thread_state.trace is eval_trace
        if is_eager and not kwargs and not self._has_statics:
            # The common case, arrays as arguments, needs no flattening.
            entry = self._flat_entries.get((settings, *[type(x) is Array and x.aval for x in args]))
            if entry is not None:
                outs = entry.executable([*entry.consts, *args])
                return tree.unflatten(entry.out_tree, outs)
        leaves, entry = self._find(args, kwargs)
        operands = [*entry.consts, *leaves]
        if is_eager:
            outs = entry.executable(operands)
        elif self._options.inline:
            outs = entry.jaxpr(*operands)
        else:
            outs = jit_p.bind(*operands, **self._params(entry))
        return tree.unflatten(entry.out_tree, outs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {self.name}>"

    @property
    def name(self) -> str:
        """The function's name."""
        return _name_of(self._function)

    def _params(self, entry: Entry) -> dict[str, Any]:
        return {
            "jaxpr": entry.jaxpr,
            "name": self.name,
            "donated": entry.donated,
            "inline": self._options.inline,
        }

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments or ShapeDtypeStructs, without running anything."""
        entry = self._find(args, kwargs)[1]
        _, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        return Lowered(entry, tree.structure((dynamic, dynamic_kwargs)), self.name)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The avals of the outputs for arguments or ShapeDtypeStructs."""
        entry = self._find(args, kwargs)[1]
        return tree.unflatten(entry.out_tree, entry.jaxpr.out_avals)

    def clear_cache(self) -> None:
        """Forget all traced signatures."""
        self._entries.clear()
        self._flat_entries.clear()

    def _cache_size(self) -> int:
        return len(self._entries)

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Entry]:
        if self._has_statics:
            statics, dynamic, dynamic_kwargs = self._split_static(args, kwargs)
        else:
            statics, dynamic, dynamic_kwargs = (), args, kwargs
        leaves, treedef = tree.flatten((dynamic, dynamic_kwargs))
        try:
            avals = operand_avals(leaves)
        except TypeError:
            self._check_leaves(dynamic, dynamic_kwargs)
            raise
        key = (treedef, avals, statics, config.trace_context())
        try:
            entry = self._entries.get(key)
        except TypeError as error:
            raise ValueError(
                f"[jit] static arguments of {self.name} must be hashable; "
                f"got {', '.join(repr(value) for _, _, value in statics)}. "
                f"Fix: pass a tuple instead of a list, or make the argument dynamic. ({error})"
            ) from None
        if entry is None:
            entry = self._trace(args, kwargs, dynamic, dynamic_kwargs, avals, treedef)
            if not any(isinstance(const, Tracer) for const in entry.consts):
                self._entries[key] = entry
                if not kwargs and not statics and all(type(arg) is Array for arg in args):
                    self._flat_entries[config.trace_context(), *avals] = entry
        return leaves, entry

    def _split_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
        options = self._options
        numbers = {k if k >= 0 else k + len(args) for k in options.static_argnums}
        # Types count: 1, 1.0 and True are equal but make different programs.
        given: list[Any] = [(k, args[k]) for k in sorted(numbers) if k < len(args)]
        given += [(name, kwargs[name]) for name in sorted(kwargs) if name in self._static_names]
        statics = [(where, type(value), value) for where, value in given]
        dynamic = tuple(arg for k, arg in enumerate(args) if k not in numbers)
        dynamic_kwargs = {k: v for k, v in kwargs.items() if k not in self._static_names}
        return tuple(statics), dynamic, dynamic_kwargs

    @property
    def _static_names(self) -> tuple[str, ...]:
        return self._options.static_argnames

    def _argument_names(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return argument_names(self._function, dynamic, kwargs, self._options.static_argnums)

    def _check_leaves(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = self._argument_names(dynamic, kwargs)
        for path, leaf in safe_zip(names, tree.leaves((dynamic, kwargs))):
            if not is_value(leaf):
                raise TypeError(
                    f"[jit] arguments of {self.name} must be arrays, numbers or trees of them; "
                    f"got {leaf!r} of type {type(leaf).__name__} as {path}. Fix: mark it static "
                    "with static_argnums or static_argnames."
                )

    def _trace(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic: tuple[Any, ...],
        dynamic_kwargs: dict[str, Any],
        avals: tuple[ShapedArray, ...],
        treedef: tree.TreeDef,
    ) -> Entry:
        out_trees: list[tree.TreeDef] = []
        rebuild = self._rebuilder(args, kwargs)

        def flat(*leaves: Any) -> list[Any]:
            traced_args, traced_kwargs = tree.unflatten(treedef, leaves)
            full_args, full_kwargs = rebuild(traced_args, traced_kwargs)
            outs, out_tree = tree.flatten(self._function(*full_args, **full_kwargs))
            out_trees.append(out_tree)
            _check_outputs(self.name, outs, out_tree)
            return outs

        names = self._argument_names(dynamic, dynamic_kwargs)
        jaxpr, consts = trace_to_jaxpr(flat, avals, names, self.name)
        hidden, params = close_over(jaxpr, [_snapshot(const) for const in consts], self.name)
        closed = params["jaxpr"]
        donated = (False,) * len(hidden) + self._donated(dynamic, dynamic_kwargs)
        return Entry(closed, tuple(hidden), out_trees[-1], donated)

    def _rebuilder(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        numbers = {k if k >= 0 else k + len(args) for k in self._options.static_argnums}
        static_kwargs = {k: v for k, v in kwargs.items() if k in self._static_names}

        def rebuild(
            dynamic: tuple[Any, ...], dynamic_kwargs: dict[str, Any]
        ) -> tuple[list[Any], dict[str, Any]]:
            rest = iter(dynamic)
            full = [arg if k in numbers else next(rest) for k, arg in enumerate(args)]
            return full, {**dynamic_kwargs, **static_kwargs}

        return rebuild

    def _donated(self, dynamic: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
        options = self._options
        kept = _dynamic_positions(len(dynamic), options.static_argnums)
        count = len(dynamic) + len(options.static_argnums)
        donated = {k if k >= 0 else k + count for k in options.donate_argnums}
        flags: list[bool] = []
        for position, arg in safe_zip(kept, dynamic):
            flags += [position in donated] * len(tree.leaves(arg))
        for name in sorted(kwargs):
            flags += [name in options.donate_argnames] * len(tree.leaves(kwargs[name]))
        return tuple(flags)


def _snapshot(const: Any) -> Any:
    """A closed-over value as it is now: a NumPy array may be written to before the next call."""
    if isinstance(const, Array | Tracer):
        return const
    return from_numpy(const, aval_of(const))


def _dynamic_positions(count: int, static: tuple[int, ...]) -> list[int]:
    """Positions in the full argument list of ``count`` dynamic arguments."""
    positions, position = [], 0
    fixed = {k for k in static if k >= 0}
    while len(positions) < count:
        if position not in fixed:
            positions.append(position)
        position += 1
    return positions


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _complete(function: Callable[..., Any], options: JitOptions) -> JitOptions:
    """Let argnums and argnames name each other, where the signature is known.

    Raises:
        ValueError: a number or name that is no parameter.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return options
    kinds = {p.kind for p in parameters}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, *_VARIADIC)
    positional = [p.name for p in parameters if p.kind not in by_keyword]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, *_VARIADIC)
    named = [p.name for p in parameters if p.kind not in by_position]
    count = len(positional)
    has_more = inspect.Parameter.VAR_POSITIONAL in kinds
    takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
    for k in (*options.static_argnums, *options.donate_argnums):
        if not has_more and not -count <= k < count:
            raise ValueError(
                f"[jit] argnums must name a parameter of {_name_of(function)}; got {k} for "
                f"{count} positional parameters. Fix: use numbers below {count}."
            )
    for name in (*options.static_argnames, *options.donate_argnames):
        if not takes_any_name and name not in named:
            raise ValueError(
                f"[jit] argnames must name a parameter of {_name_of(function)}; got {name!r} for "
                f"{named}. Fix: use one of these."
            )

    def both(numbers: tuple[int, ...], names: tuple[str, ...]) -> tuple[Any, Any]:
        # With *args a negative number counts from the end of each call's arguments.
        numbers = tuple(k + count if k < 0 and not has_more else k for k in numbers)
        more = tuple(positional.index(name) for name in names if name in positional)
        other = tuple(positional[k] for k in numbers if 0 <= k < count and positional[k] in named)
        return tuple(sorted({*numbers, *more})), tuple(sorted({*names, *other}))

    static = both(options.static_argnums, options.static_argnames)
    donated = both(options.donate_argnums, options.donate_argnames)
    return JitOptions(*static, *donated, options.inline)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


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
        is_named = position < len(parameters) and parameters[position].kind not in _VARIADIC
        stem = parameters[position].name if is_named else f"number {position}"
        names += [stem + path for path in tree.paths(arg)]
    for name in sorted(kwargs):
        names += [name + path for path in tree.paths(kwargs[name])]
    return names


def _check_outputs(name: str, outs: Sequence[Any], out_tree: tree.TreeDef) -> None:
    for out in outs:
        if not is_value(out):
            raise TypeError(
                f"[jit] outputs of {name} must be arrays, numbers or trees of them; got {out!r} of "
                f"type {type(out).__name__} in {out_tree}. Fix: return arrays only."
            )


def make_jit(
    function: Callable[..., Any],
    static_argnums: int | Iterable[int] | None,
    static_argnames: str | Iterable[str] | None,
    donate_argnums: int | Iterable[int] | None,
    donate_argnames: str | Iterable[str] | None,
    inline: bool,
) -> JitFunction:
    """Build a JitFunction from the arguments of ``gpuflow.jit``."""
    if not callable(function):
        raise TypeError(
            f"[jit] the first argument must be a function; got {function!r}. Fix: jit(f)(x)."
        )
    return JitFunction(
        function,
        JitOptions(
            _indices(static_argnums),
            _names(static_argnames),
            _indices(donate_argnums),
            _names(donate_argnames),
            bool(inline),
        ),
    )

