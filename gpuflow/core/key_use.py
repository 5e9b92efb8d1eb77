"""Detection of random keys that are used twice, for ``debug_key_reuse``.

Every value of keys has a ``KeyState``: its keys, and which of them were used. Data movement
(slices, reshapes, indices) makes another value with the same keys, so that use of the one is use of
the other. A primitive defines its rule in ``keys``. A program is followed equation by equation with
the states of its operands, a loop through two iterations.

Nothing here runs unless the setting is enabled: ``watch`` then wraps the evaluator.

Tests: tests/random/test_key_reuse.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import KeyReuseError
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip, user_source_location
from gpuflow.core.aval import KeyDType, ShapedArray, aval_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Literal, Var
from gpuflow.core.trace import Evaluator, eval_trace


@record(eq=False)
class KeyState:
    """The use of the keys of one value.

    Attributes:
        used: for each key of the original value, whether it was used.
        where: the location of the first use of each key, by its id.
        ids: the key ids of the elements of the value; if inexact, all possible ids, in any shape.
        is_exact: whether ``ids`` are exact.
    """

    used: np.ndarray
    where: dict[int, str]
    ids: np.ndarray
    is_exact: bool = True

    def use(self, what: str, location: str) -> None:
        """Note that ``what`` uses the keys.

        Raises:
            KeyReuseError: one of them was used before.
        """
        again = self.ids[self.used[self.ids]]
        if again.size:
            raise KeyReuseError(
                f"[{what}] a random key must be used once; got one that was used before, "
                f"{self.where.get(int(again.flat[0]), 'in the same program')}. Fix: "
                "key, subkey = random.split(key), or random.clone(key) where it is meant."
            )
        self.used[self.ids] = True
        self.where.update(dict.fromkeys(self.ids.reshape(-1).tolist(), location))


States = Sequence[KeyState | None]


def fresh(shape: Sequence[int]) -> KeyState:
    """The state of new keys."""
    count = int(np.prod(shape, dtype=np.int64))
    return KeyState(np.zeros(count, bool), {}, np.arange(count).reshape(tuple(shape)))


@record(eq=False)
class Flow:
    """An op that keys go through.

    Attributes:
        primitive, params: which it is.
        states: of the operands; None for those without keys.
        values: the concrete operands; None for others.
        location: the source location, for messages.
    """

    primitive: Any
    params: dict[str, Any]
    states: tuple[KeyState | None, ...]
    values: tuple[Any, ...]
    location: str


def use_all(flow: Flow) -> States | None:
    """The rule of ops that use their keys; returned keys are new ones."""
    for state in flow.states:
        if state is not None:
            state.use(flow.primitive.name, flow.location)
    return None


def use_none(flow: Flow) -> States | None:
    """The rule of ops that only inspect keys, or derive new ones from them."""
    del flow
    return None


def move(flow: Flow) -> States | None:
    """The rule of ops that return elements of their first operand."""
    state = flow.states[0]
    if state is None:
        return None
    others = flow.values[1:]
    if not state.is_exact or any(value is None for value in others):
        return [KeyState(state.used, state.where, state.ids.reshape(-1), False)]
    hosts = [np.asarray(value) for value in others]
    gathered = flow.primitive.impl(np, state.ids, *hosts, **flow.params)
    # An index out of bounds does not read a key.
    ids = np.clip(np.asarray(gathered), 0, max(state.used.size - 1, 0))
    return [KeyState(state.used, state.where, ids)]


def write(flow: Flow) -> States | None:
    """The rule of ops that write keys into their first operand, which is unchanged."""
    for state in flow.states[1:]:
        if state is not None:
            state.use(flow.primitive.name, flow.location)
    return flow.states[:1]


def follow_programs(flow: Flow) -> States | None:
    """The rule of ops that hold one program and run it once with their operands."""
    (program,) = flow.primitive.subjaxprs(flow.params)
    return follow_program(program, flow.states, flow.values)


def follow_shards(flow: Flow) -> States | None:
    """The rule of ops whose one program runs on shards of the operands, once on each."""
    (program,) = flow.primitive.subjaxprs(flow.params)
    inner = slice_states(flow.states, program.in_avals)
    follow_program(program, inner)
    spend(flow, inner)
    return None


def slice_states(states: States, avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """States of slices of values, for a program that runs once on each slice."""
    inner = fresh_states(avals)
    for inner_state, state in safe_zip(inner, states):
        if inner_state is not None and state is not None:
            inner_state.used[...] = state.used[state.ids].any()
    return inner


def spend(flow: Flow, inner: States) -> None:
    """Mark operands as used if a program has used their slices, the states ``inner``."""
    for inner_state, state in safe_zip(inner, flow.states):
        if inner_state is not None and state is not None and inner_state.used.any():
            state.used[state.ids] = True
            locations = dict.fromkeys(state.ids.reshape(-1).tolist(), flow.location)
            state.where.update({k: v for k, v in locations.items() if k not in state.where})


def follow(flow: Flow) -> States | None:
    """The states of an op's results, None for new keys; marks operands as used."""
    rule = flow.primitive.checks.keys
    if rule is not None:
        return rule(flow)
    selects = flow.primitive.lower.selects
    return move(flow) if selects and not any(flow.states[1:]) else use_all(flow)


def follow_program(
    program: ClosedJaxpr, states: States, values: Sequence[Any] | None = None
) -> list[KeyState | None]:
    """The states of a program's results for those of its operands."""
    jaxpr = program.jaxpr
    states_of: dict[Var, KeyState | None] = {
        var: _state_of(const) for var, const in safe_zip(jaxpr.constvars, program.consts)
    }
    states_of.update(safe_zip(jaxpr.invars, states))
    known: dict[Var, Any] = dict(safe_zip(jaxpr.constvars, program.consts))
    if values is not None:
        known.update(safe_zip(jaxpr.invars, values))

    def state(atom: Atom) -> KeyState | None:
        return None if type(atom) is Literal else states_of.get(atom)

    def value(atom: Atom) -> Any:
        return atom.value if type(atom) is Literal else known.get(atom)

    for eqn in jaxpr.eqns:
        operand_states = tuple(map(state, eqn.inputs))
        location = f"at {eqn.source}" if eqn.source else "in the same program"
        if any(operand_states) or eqn.primitive.subjaxprs is not None:
            operands = tuple(map(value, eqn.inputs))
            flow = Flow(eqn.primitive, eqn.params, operand_states, operands, location)
            out_states = follow(flow)
        else:
            out_states = None
        filled = _filled(out_states, [var.aval for var in eqn.outputs])
        states_of.update(safe_zip(eqn.outputs, filled))
    return [state(atom) for atom in jaxpr.outvars]


def _filled(states: States | None, avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """The states of values of these types, with new ones for None."""
    known = [None] * len(avals) if states is None else states
    return [
        (state or fresh(aval.shape)) if isinstance(aval.dtype, KeyDType) else None
        for state, aval in safe_zip(known, avals)
    ]


def fresh_states(avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """New states for values of these types."""
    return _filled(None, avals)


def restored(states: States, used: Sequence[np.ndarray]) -> None:
    """Restore the use flags of keys."""
    for state, before in safe_zip([s for s in states if s is not None], used):
        state.used[...] = before


def copied(states: States) -> list[np.ndarray]:
    """Copies of the use flags of keys, for ``restored``."""
    return [state.used.copy() for state in states if state is not None]


def alternatives(states: States) -> KeyState | None:
    """Merge the states that a value may have; its keys are used if any state's are."""
    first = states[0]
    if first is None or all(state is not None and state.used is first.used for state in states):
        return first
    merged = fresh(first.ids.shape)
    merged.used[...] = any(s is not None and s.used[s.ids].any() for s in states)
    return merged


# --- values outside of programs ------------------------------------------------------------

# By identity: arrays do not hash.
_states: dict[int, tuple[Any, KeyState]] = {}


def _state_of(value: Any) -> KeyState | None:
    """The state of a concrete value; a new one if there is none."""
    aval = aval_of(value)
    if not isinstance(aval.dtype, KeyDType):
        return None
    entry = _states.get(id(value))
    if entry is not None and entry[0]() is value:
        return entry[1]
    return _remember(value, fresh(aval.shape))


def _remember(value: Any, state: KeyState) -> KeyState:
    key = id(value)
    _states[key] = weakref.ref(value, lambda _: _states.pop(key, None)), state
    return state


def call(
    run: Callable[[], Any], primitive: Any, operands: Sequence[Any], params: dict[str, Any]
) -> Any:
    """Return the result of ``run``, an op on concrete values, and track its keys.

    Raises:
        KeyReuseError: a key that was used before.
    """
    states = tuple(map(_state_of, operands))
    source = user_source_location()
    location = f"at {source}" if source else "before"
    out_states = None
    if any(states) or primitive.subjaxprs is not None:
        out_states = follow(Flow(primitive, params, states, tuple(operands), location))
    outs = run()
    results = outs if primitive.multiple_results else [outs]
    for result, state in safe_zip(results, _filled(out_states, [aval_of(out) for out in results])):
        if state is not None:
            _remember(result, state)
    return outs


def watch() -> None:
    """Follow keys through all evaluated ops while the setting is enabled."""
    eval_trace.wrap(_watched)


def _watched(evaluate: Evaluator) -> Evaluator:
    def process(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if not config.trace_context().debug_key_reuse:
            return evaluate(primitive, operands, params)
        return call(lambda: evaluate(primitive, operands, params), primitive, operands, params)

    return process


config.register_start("debug_key_reuse", watch)
