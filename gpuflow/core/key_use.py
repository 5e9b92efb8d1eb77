"""Random keys that are used twice, for ``debug_key_reuse``.

Every value of keys has a ``KeyState``: its keys, and which of them were used. Data movement
(slices, reshapes, indices) makes another value with the same keys, so that use of the one is use of
the other. A primitive defines its rule in ``keys``. A program is followed equation by equation with
the states of its operands, a loop through two iterations.

Nothing here runs unless the setting was asked for: ``watch`` then puts itself before the evaluator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import KeyReuseError
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip, user_source_line
from gpuflow.core.aval import KeyDType, ShapedArray, aval_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Literal, Var
from gpuflow.core.trace import Evaluator, eval_trace


@record(eq=False)
class KeyState:
    """The use of the keys of one value.

    Attributes:
        used: for each key that there is together with these, whether it was used.
        where: where each was used first, by its number.
        numbers: which of them the elements of the value are; those it may be where that is not
            known, whatever its shape.
        is_exact: whether it is known.
    """

    used: np.ndarray
    where: dict[int, str]
    numbers: np.ndarray
    is_exact: bool = True

    def use(self, what: str, place: str) -> None:
        """Note that ``what`` uses the keys.

        Raises:
            KeyReuseError: one of them was used before.
        """
        again = self.numbers[self.used[self.numbers]]
        if again.size:
            raise KeyReuseError(
                f"[{what}] a random key must be used once; got one that was used before, "
                f"{self.where.get(int(again.flat[0]), 'in the same program')}. Fix: "
                "key, subkey = random.split(key), or random.clone(key) where it is meant."
            )
        self.used[self.numbers] = True
        self.where.update(dict.fromkeys(self.numbers.reshape(-1).tolist(), place))


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
        values: the operands where they are known, else None.
        place: the location, for messages.
    """

    primitive: Any
    params: dict[str, Any]
    states: tuple[KeyState | None, ...]
    values: tuple[Any, ...]
    place: str


def use_all(flow: Flow) -> States | None:
    """The rule of ops that use their keys; returned keys are new ones."""
    for state in flow.states:
        if state is not None:
            state.use(flow.primitive.name, flow.place)
    return None


def use_none(flow: Flow) -> States | None:
    """The rule of ops that look at keys only, or make new ones of them."""
    del flow
    return None


def move(flow: Flow) -> States | None:
    """The rule of ops that return elements of their first operand."""
    state = flow.states[0]
    if state is None:
        return None
    others = flow.values[1:]
    if not state.is_exact or any(value is None for value in others):
        return [KeyState(state.used, state.where, state.numbers.reshape(-1), False)]
    hosts = [np.asarray(value) for value in others]
    moved = flow.primitive.impl(np, state.numbers, *hosts, **flow.params)
    # An index outside of the array reads what is no key.
    numbers = np.clip(np.asarray(moved), 0, max(state.used.size - 1, 0))
    return [KeyState(state.used, state.where, numbers)]


def write(flow: Flow) -> States | None:
    """The rule of ops that write keys into their first operand, which is unchanged."""
    for state in flow.states[1:]:
        if state is not None:
            state.use(flow.primitive.name, flow.place)
    return flow.states[:1]


def follow_programs(flow: Flow) -> States | None:
    """The rule of ops that hold one program and run it once with their operands."""
    (program,) = flow.primitive.subjaxprs(flow.params)
    return follow_program(program, flow.states, flow.values)


def follow_apart(flow: Flow) -> States | None:
    """The rule of ops whose one program sees parts of the operands, each part once."""
    (program,) = flow.primitive.subjaxprs(flow.params)
    inner = parts(flow.states, program.in_avals)
    follow_program(program, inner)
    spend(flow, inner)
    return None


def parts(states: States, avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """States of parts of values, of which a program sees each once."""
    inner = fresh_states(avals)
    for part, state in safe_zip(inner, states):
        if part is not None and state is not None:
            part.used[...] = state.used[state.numbers].any()
    return inner


def spend(flow: Flow, inner: States) -> None:
    """Use up the operands whose parts, the states ``inner``, a program has used."""
    for part, state in safe_zip(inner, flow.states):
        if part is not None and state is not None and part.used.any():
            state.used[state.numbers] = True
            places = dict.fromkeys(state.numbers.reshape(-1).tolist(), flow.place)
            state.where.update({k: v for k, v in places.items() if k not in state.where})


def follow(flow: Flow) -> States | None:
    """The states of an op's results, None where they are new keys; use of operands is noted."""
    rule = flow.primitive.keys
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
        var: _known_state(const) for var, const in safe_zip(jaxpr.constvars, program.consts)
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
        place = f"at {eqn.source}" if eqn.source else "in the same program"
        if any(operand_states) or eqn.primitive.subjaxprs is not None:
            operands = tuple(map(value, eqn.inputs))
            flow = Flow(eqn.primitive, eqn.params, operand_states, operands, place)
            out_states = follow(flow)
        else:
            out_states = None
        filled = _filled(out_states, [var.aval for var in eqn.outputs])
        states_of.update(safe_zip(eqn.outputs, filled))
    return [state(atom) for atom in jaxpr.outvars]


def _filled(states: States | None, avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """The states of values of these types, new ones where there is none."""
    known = [None] * len(avals) if states is None else states
    return [
        (state or fresh(aval.shape)) if isinstance(aval.dtype, KeyDType) else None
        for state, aval in safe_zip(known, avals)
    ]


def fresh_states(avals: Sequence[ShapedArray]) -> list[KeyState | None]:
    """New states for values of these types."""
    return _filled(None, avals)


def restored(states: States, used: Sequence[np.ndarray]) -> None:
    """Put back which keys were used."""
    for state, before in safe_zip([s for s in states if s is not None], used):
        state.used[...] = before


def copied(states: States) -> list[np.ndarray]:
    """Which keys were used, to be put back."""
    return [state.used.copy() for state in states if state is not None]


def alternatives(states: States) -> KeyState | None:
    """One state of the two or more that a value may have; its keys are used if some are."""
    first = states[0]
    if first is None or all(state is not None and state.used is first.used for state in states):
        return first
    merged = fresh(first.numbers.shape)
    merged.used[...] = any(s is not None and s.used[s.numbers].any() for s in states)
    return merged


# --- values outside of programs ------------------------------------------------------------

# By identity: arrays do not hash.
_states: dict[int, tuple[Any, KeyState]] = {}


def _known_state(value: Any) -> KeyState | None:
    """The state of a concrete value; a new one where it was never seen."""
    aval = aval_of(value)
    if not isinstance(aval.dtype, KeyDType):
        return None
    entry = _states.get(id(value))
    if entry is not None and entry[0]() is value:
        return entry[1]
    return _remember(value, fresh(aval.shape))


def _remember(value: Any, state: KeyState) -> KeyState:
    number = id(value)
    _states[number] = weakref.ref(value, lambda _: _states.pop(number, None)), state
    return state


def call(
    run: Callable[[], Any], primitive: Any, operands: Sequence[Any], params: dict[str, Any]
) -> Any:
    """Return the result of ``run``, an op on concrete values, and track its keys.

    Raises:
        KeyReuseError: a key that was used before.
    """
    states = tuple(map(_known_state, operands))
    line = user_source_line()
    place = f"at {line}" if line else "before"
    out_states = None
    if any(states) or primitive.subjaxprs is not None:
        out_states = follow(Flow(primitive, params, states, tuple(operands), place))
    outs = run()
    results = outs if primitive.multiple_results else [outs]
    for result, state in safe_zip(results, _filled(out_states, [aval_of(out) for out in results])):
        if state is not None:
            _remember(result, state)
    return outs


def watch() -> None:
    """Follow keys through all that is evaluated from here on, where the setting is on."""
    eval_trace.wrap(_watched)


def _watched(evaluate: Evaluator) -> Evaluator:
    def process(primitive: Any, operands: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if not config.trace_context().debug_key_reuse:
            return evaluate(primitive, operands, params)
        return call(
            lambda: evaluate(primitive, operands, params), primitive, operands, params
        )

    return process


config.register_start("debug_key_reuse", watch)
