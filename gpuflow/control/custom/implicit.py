"""``custom_root`` and ``custom_linear_solve``: solvers with implicit differentiation.

Tests: tests/control/test_implicit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.custom.linear_solve import Solve, bind_solve
from gpuflow.control.linear_transpose import transpose_program
from gpuflow.control.programs import Program, trace_program
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import evaluate
from gpuflow.core.rules import Zero
from gpuflow.ops.elementwise.arithmetic import neg
from gpuflow.ops.zeros import instantiate, zeros_of
from gpuflow.transforms.jvp import jvp_flat
from gpuflow.transforms.linearize import linearize_flat

Function = Callable[..., Any]


def _check_tree(
    op: str,
    name: str,
    source: str,
    out_tree: tree.TreeDef,
    expected_tree: tree.TreeDef,
    has_aux: bool,
) -> None:
    """Raise TypeError unless a function returns the expected tree.

    Args:
        op: the public function.
        name: the name of the user's function.
        source: the argument of ``op`` that has the expected tree.
        out_tree: the tree that the user's function returned.
        expected_tree: the tree that it must return.
        has_aux: whether it must return a pair of that tree and any other value.
    """
    if has_aux:
        children = tree.children(out_tree)
        check(
            out_tree.type is tuple and len(children) == 2,
            lambda: (
                f"[{op}] with has_aux {name} must return a pair (x, aux); got {out_tree}. "
                "Fix: return x, aux."
            ),
        )
        out_tree = children[0]
    check(
        out_tree == expected_tree,
        lambda: (
            f"[{op}] {name} must return the tree of {source}, {expected_tree}; got {out_tree}. "
            "Fix: return the same containers and keys."
        ),
    )


def _check_shapes(
    op: str,
    name: str,
    source: str,
    out_avals: Sequence[ShapedArray],
    expected_avals: Sequence[ShapedArray],
) -> None:
    for returned, aval in safe_zip(out_avals, expected_avals):
        check(
            returned.shape == aval.shape,
            lambda returned=returned, aval=aval: (
                f"[{op}] {name} must return the shapes of {source}, {aval}; got {returned}. "
                "Fix: return one value for each."
            ),
            ValueError,
        )


# --- linear equations ----------------------------------------------------------------------


@explained
def custom_linear_solve(
    matvec: Function,
    b: Any,
    solve: Function,
    transpose_solve: Function | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """Solve ``matvec(x) = b`` by ``solve``, with derivatives of the solution ``x``.

    Args:
        matvec: a linear function of the tree of ``b``. It is differentiated instead of the solver.
        b: the right-hand side, a pytree of arrays.
        solve: ``(matvec, b) -> x``.
        transpose_solve: ``(vecmat, b) -> x`` for the transposed equation; required for reverse
            mode.
        symmetric: whether ``matvec`` is its own transpose, so that ``solve`` solves both equations.
        has_aux: whether solvers return ``(x, aux)``; aux is not differentiated.

    Returns:
        ``x``, or ``(x, aux)``.

    Raises:
        TypeError: if trees differ, or reverse mode is used without ``transpose_solve``.
        ValueError: if shapes differ.

    Example:
        >>> def solve(b):
        ...     divide = lambda matvec, b: b / matvec(1.0)
        ...     return lax.custom_linear_solve(lambda x: 4 * x, b, divide, symmetric=True)
        >>> solve(8.0), gf.grad(solve)(8.0)
        (Array(2., dtype=float32, weak_type=True), Array(0.25, dtype=float32, weak_type=True))
    """
    op = "custom_linear_solve"
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    leaves, b_tree = tree.flatten(b)
    avals = [aval_of(leaf) for leaf in leaves]

    def traced(function: Function, name: str, aux: bool) -> Program:
        program = trace_program(op, function, tree.structure((b,)), avals, name)
        _check_tree(op, name, "b", program.out_tree, b_tree, aux)
        _check_shapes(op, name, "b", program.jaxpr.out_avals[: len(avals)], avals)
        return program

    forward = traced(lambda x: matvec(x), "matvec", False)
    solver = traced(lambda x: solve(matvec, x), "solve", has_aux)
    backward: Program | None = None
    transposed: Program | None = None
    if transpose_solve is not None:

        def vecmat(x: Any) -> Any:
            if symmetric:
                return matvec(x)
            return tree.unflatten(b_tree, transpose_program(forward, avals, tree.leaves(x)))

        backward = forward if symmetric else traced(vecmat, "vecmat", False)
        transposed = traced(lambda x: transpose_solve(vecmat, x), "transpose_solve", has_aux)
    programs = (forward, backward, solver, transposed)
    outs = bind_solve(
        Solve(*[program and program.jaxpr for program in programs]),
        Solve(*[program.consts if program else () for program in programs]),
        leaves,
    )
    return tree.unflatten(solver.out_tree, outs)


# --- roots ---------------------------------------------------------------------------------


@explained
def custom_root(
    f: Function,
    initial_guess: Any,
    solve: Function,
    tangent_solve: Function,
    has_aux: bool = False,
) -> Any:
    """Solve ``f(x) = 0`` by ``solve``, with derivatives of the root ``x``.

    Derivatives are with respect to captured values of ``f``; those of the guess are zero.

    Args:
        f: a function from a pytree of arrays to a pytree of the same structure.
        initial_guess: the start of the search.
        solve: ``(f, initial_guess) -> x``.
        tangent_solve: ``(g, y) -> x`` with ``g(x) = y`` for the linear function ``g``, the
            derivative of ``f`` at the root; for a scalar ``lambda g, y: y / g(1.0)``.
        has_aux: whether ``solve`` returns ``(x, aux)``; aux is not differentiated.

    Returns:
        ``x``, or ``(x, aux)``.

    Raises:
        TypeError: if trees differ.
        ValueError: if shapes differ.

    Example:
        >>> def newton(f, x):
        ...     return lax.fori_loop(0, 20, lambda _, x: x - f(x) / gf.grad(f)(x), x)
        >>> def root(a):
        ...     return lax.custom_root(lambda x: x**2 - a, 1.0, newton, lambda g, y: y / g(1.0))
        >>> root(4.0).round(3), gf.grad(root)(4.0).round(3)
        (Array(2., dtype=float32, weak_type=True), Array(0.25, dtype=float32, weak_type=True))
    """
    op = "custom_root"
    leaves, guess_tree = tree.flatten(initial_guess)
    avals = [aval_of(leaf) for leaf in leaves]
    guess_structure = tree.structure((initial_guess,))

    def traced(function: Function, name: str, count: int = 1, aux: bool = False) -> Program:
        in_tree = tree.structure((initial_guess,) * count)
        program = trace_program(op, function, in_tree, avals * count, name)
        _check_tree(op, name, "initial_guess", program.out_tree, guess_tree, aux)
        result_avals = program.jaxpr.out_avals[: len(avals)]
        _check_shapes(op, name, "initial_guess", result_avals, avals)
        return program

    def linearize_and_solve(x: Any, y: Any) -> Any:
        values = tree.leaves(x)
        flat = partial(_flat, f, guess_structure)
        _, linear, residuals, _ = linearize_flat(flat, values)

        def g(tangent: Any) -> Any:
            return tree.unflatten(guess_tree, evaluate(linear, residuals, tree.leaves(tangent)))

        return tangent_solve(g, y)

    programs = (
        traced(lambda x: f(x), "f"),
        traced(lambda x: solve(f, x), "solve", aux=has_aux),
        traced(linearize_and_solve, "tangent_solve", 2),
    )
    counts = tuple(len(program.consts) for program in programs)
    jaxprs = tuple(program.jaxpr for program in programs)
    operands = [value for program in programs for value in program.consts]
    outs = _root(counts, jaxprs, *operands, *leaves)
    return tree.unflatten(programs[1].out_tree, outs)


def _flat(function: Function, in_tree: tree.TreeDef, *leaves: Any) -> list[Any]:
    return tree.leaves(function(*tree.unflatten(in_tree, leaves)))


def _split(values: Sequence[Any], counts: tuple[int, ...]) -> list[list[Any]]:
    """Split operands: the captured values of f, solve and tangent_solve, and the guess."""
    groups, start = [], 0
    for count in counts:
        groups.append(list(values[start : start + count]))
        start += count
    return [*groups, list(values[start:])]


def _solve_root(counts: Any, jaxprs: Any, *values: Any) -> list[Any]:
    _, for_solve, _, guess = _split(values, counts)
    return jaxprs[1](*for_solve, *guess)


_root = custom_jvp(_solve_root, nondiff_argnums=(0, 1))


@_root.defjvp
def _root_jvp(counts: Any, jaxprs: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The jvp rule: solve ``df/dx x' = -df/dp p'`` (implicit function theorem)."""
    outs = list(_root(counts, jaxprs, *primals))
    f, _, tangent_solve = jaxprs
    for_f, _, for_tangent_solve, guess = _split(primals, counts)
    f_tangents = _split(tangents, counts)[0]
    x, aux = outs[: len(guess)], outs[len(guess) :]
    zeros = [Zero(aval_of(value).tangent()) for value in x]
    typed = [
        Zero(aval_of(p).tangent()) if aval_of(t).dtype != aval_of(p).dtype else t
        for p, t in safe_zip(for_f, f_tangents)
    ]
    _, rhs = jvp_flat(f, [*for_f, *x], [*typed, *zeros])
    rhs = [instantiate(value) for value in rhs]
    solved = tangent_solve(*for_tangent_solve, *x, *rhs)
    aux_tangents = [zeros_of(aval_of(value).tangent()) for value in aux]
    return outs, [*[neg(value) for value in solved], *aux_tangents]
