"""Printed CUDA source into LLVM instructions: its constructs, types of variables, errors.

Every program is also run by Python, on ints: the results must be equal.
"""

import random
import re
import textwrap

import numpy as np
import pytest
from cuda_harness import requires_cuda_tools
from ptx_launch import launch_ptx

from gpuflow.targets.cuda.codegen import source_kernel
from gpuflow.targets.cuda.codegen.build import build_cuda, compile_ptx, normalize_ptx
from gpuflow.targets.cuda.codegen.toolchain import CudaBuildError
from gpuflow.targets.cuda_sim.driver import USUAL_CHECKS

pytestmark = [requires_cuda_tools]

THREADS = 8


def source_of(body, functions=""):
    """A module whose kernel computes ``out[i]``."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    head = f"import numpy as np\n\n{textwrap.dedent(functions)}\n\n"
    return f"{head}def kernel(out):\n    i = int64(cuda.threadIdx.x)\n{body}\n"


def built_of(body, functions="", kind="int64"):
    return build_cuda(source_of(body, functions), "kernel", (f"*{kind}",), (9, 0))


def on_the_gpu(body, functions="", kind="int64", **options):
    out = np.zeros(THREADS, kind)
    launch_ptx(built_of(body, functions, kind).ptx, (1,), (THREADS,), [out], **options)
    return out


def in_python(body, functions=""):
    out = np.zeros(THREADS, np.int64)
    names = {"device_function": lambda function: function, "int32": int, "int64": int}
    for i in range(THREADS):
        thread = type("cuda", (), {"threadIdx": type("", (), {"x": i})})
        namespace = {**names, "cuda": thread}
        exec(source_of(body, functions), namespace)
        namespace["kernel"](out)
    return out


PROGRAMS = {
    "a loop that counts down": """
        total = 0
        for k in range(i, -3, -2):
            total = total * 7 + k
        out[i] = total
    """,
    "a step that is computed": """
        total = 0
        for k in range(0, 5 * (1 if i & 1 else -1), 1 if i & 1 else -1):
            total = total * 3 + k + 1
        out[i] = total
    """,
    "continue and break": """
        total = 0
        for k in range(10):
            if k % 3 == i % 3:
                continue
            if k > i + 2:
                break
            total = 5 * total + k
        while True:
            total += 1
            if total % 4:
                continue
            break
        out[i] = total
    """,
    "a variable that the loop changes": """
        for k in range(6):
            out[i] += k
            k += 100
    """,
    "an early end": """
        if i > 5:
            return
        if i == 3:
            out[i] = -1
            return
        out[i] = i
    """,
    "chains and logic": """
        value = 0
        if 1 < i <= 5 and not i == 4 or i == 7:
            value = 1
        out[i] = value + (10 if 0 <= i < 2 else 20 if i < 4 else 30)
    """,
    "an element of a tuple": """
        values = 5, i, i * i
        a, (b, c) = values[0], (values[1], i)
        out[i] = (a, b, c)[i % 3] + values[-1]
    """,
    "numbers of Python": """
        two = 3 - 1
        out[i] = (two if False else 7 // two) + -i // 2 + -i % 5 + (~i ^ 3)
    """,
    "tuples in branches": """
        low, high = 0, i
        for k in range(4):
            low, high = high, low + k
            if high > low:
                low, high = high, low
        out[i] = 10 * low + high
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_constructs(name):
    body = PROGRAMS[name]
    np.testing.assert_array_equal(on_the_gpu(body), in_python(body))


FUNCTIONS = """
@device_function
def both(x, y):
    if x > y:
        return (x, False), y
    return (y, True), x


@device_function
def first_power(x):
    power = 1
    for k in range(100):
        if power > x:
            return k
        power = power * 3
    return -1


@device_function
def write(out, i, value):
    out[i] += value
"""


def test_device_functions():
    body = """
    (high, is_second), low = both(i, 4)
    (high_2, _), _ = both(int32(i), 2)
    write(out, i, 100 * high + 10 * low + high_2)
    write(out, i, first_power(i) if is_second else first_power(20))
    """
    got = on_the_gpu(body, FUNCTIONS)
    np.testing.assert_array_equal(got, in_python(body, FUNCTIONS))


def test_a_device_function_is_one_function_of_each_signature(monkeypatch):
    functions = "@device_function\ndef scaled(x, y):\n    return 3 * x + y\n"
    body = "out[i] = scaled(i, 1) + scaled(2, i) + scaled(int32(i), 5) + scaled(1.0, i)"
    names, real = [], source_kernel._ModuleEmitter._emit

    def noted(self, name, values):
        names.append(name)
        return real(self, name, values)

    monkeypatch.setattr(source_kernel._ModuleEmitter, "_emit", noted)
    got = on_the_gpu(body, functions)
    assert names == ["scaled"] * 3
    np.testing.assert_array_equal(got, in_python(body, functions))


# --- types of variables -----------------------------------------------------------------------


def test_a_variable_that_branches_change_has_one_type():
    """Numba's rule: int64 and float64 are float64."""
    got = on_the_gpu(
        """
        value = 0
        if i > 3:
            value = 0.5
        other = i
        for k in range(3):
            other = other * 0.5
        if i & 1:
            late = 1
        else:
            late = 0.25
        out[i] = value + other + late
        """,
        kind="float64",
    )
    i = np.arange(THREADS)
    np.testing.assert_array_equal(got, (i > 3) * 0.5 + i / 8 + np.where(i & 1, 1, 0.25))


def test_a_variable_that_an_earlier_iteration_assigned():
    """It was read as the first branch had assigned it, in a variable of another type."""
    body = """
        total = 0
        for k in range(i):
            if k == 0:
                value = 0.5
            else:
                total = total * 3 + value
            value = k + 2
        out[i] = total
        """
    # LLVM computes with the unset variable in the first iteration, and drops the result.
    got = on_the_gpu(body, kind="float64", checks=USUAL_CHECKS)
    np.testing.assert_array_equal(got, [0.0, 0.0, 2.0, 9.0, 31.0, 98.0, 300.0, 907.0])


def test_another_type_in_a_straight_sequence_is_another_variable():
    got = built_of(
        """
        value = float32(i)
        value = value * float32(0.1)
        out[i] = value
        for k in range(2):
            value = float32(2)
            out[i] += value
        for value in range(2):
            out[i] += float32(value)
        """,
        kind="float32",
    )
    assert ".f64" not in got.ptx
    out = np.zeros(THREADS, np.float32)
    launch_ptx(got.ptx, (1,), (THREADS,), [out])
    wanted = np.arange(THREADS, dtype=np.float32) * np.float32(0.1) + np.float32(4) + np.float32(1)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)


def test_loops_over_short_ranges_count_in_32_bits():
    """As in functions that Numba compiles."""
    ptx = built_of("for k in range(cuda.threadIdx.x):\n    out[0] = k").ptx
    assert re.search(r"setp\.\w+\.s32", ptx) and not re.search(r"setp\.\w+\.s64", ptx)


# --- the same text ------------------------------------------------------------------------------


def test_ptx_does_not_depend_on_what_was_built_before():
    def ptx(number):
        text = source_of(f"out[i] = scaled(i, {number})", SCALED)
        return normalize_ptx(compile_ptx(text, "kernel", ("*int64",), (9, 0)), "kernel")

    SCALED = "@device_function\ndef scaled(x, y):\n    return x * y + first(x)\n\n\n"
    SCALED += "@device_function\ndef first(x):\n    return x & 7\n"
    texts = [ptx(number) for number in (3, 5)]
    assert texts[0] != texts[1] and [ptx(number) for number in (5, 3)] == texts[::-1]


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("out[i] = [i][0]", r"the expression \[i\]"),
        ("with i:\n    pass", "the statement with i"),
        ("for k in (1, 2):\n    out[i] = k", r"the loop over \(1, 2\)"),
        ("while i > 9:\n    i = 1\nelse:\n    i = 2", "else after a loop"),
        ("out[i] = missing", "the undefined name missing"),
        ("out.x = 1", r"an assignment to out\.x"),
        ("out[i] = i @ i", "the operator MatMult"),
        ("out[i] = int32(x=i)", "keywords in int32"),
        ("value = i\nif i:\n    value = out\nout[i] = 1", "the variable value of the types"),
        ("out[i] = out if i else 1", "operands of two types"),
        ("name = out[i].shape", r"the attribute out\[i\]\.shape"),
        ("text = 'text'", "text = 'text'"),
        ("i[0] = 1", "no array"),
    ],
)
def test_other_constructs_are_refused(body, said):
    with pytest.raises(CudaBuildError, match=rf"(?s)kernel must be of constructs.*{said}.*Fix: "):
        built_of(body)


def test_recursion_is_refused():
    functions = "@device_function\ndef again(x):\n    return again(x) + 1\n"
    with pytest.raises(CudaBuildError, match="the function again, which calls itself"):
        built_of("out[i] = again(i)", functions)


# --- any program --------------------------------------------------------------------------------


class Programs:
    """Random programs of small numbers, loops that end, and branches.

    With ``floats``, variables are ints in some assignments and floats in others. Stored values are
    integers, so that no result depends on how sums of products are rounded.
    """

    def __init__(self, seed, floats=False):
        self.random, self.floats = random.Random(seed), floats
        self.names = ["i", "a", "b", "c"]
        self.loops = 0

    def value(self, depth=0):
        pick = self.random.randrange(8 if depth < 3 else 2)
        if pick == 0:
            number = self.random.randrange(-5, 20)
            return str(number / 2 if self.floats and self.random.random() < 0.3 else number)
        if pick < 4:
            return self.random.choice(self.names)
        one, other = self.value(depth + 1), self.value(depth + 1)
        if pick == 4:
            return f"({one} if {self.test(depth + 1)} else {other})"
        if pick == 5:
            divided = self.random.choice(["//", "%"])
            return f"({one} {divided} {self.random.choice([-7, -2, 3, 5])})"
        operators = ["+", "-", "*"] if self.floats else ["+", "-", "*", "&", "|", "^"]
        return f"({one} {self.random.choice(operators)} {other})"

    def test(self, depth=0):
        one, other = self.value(depth + 1), self.value(depth + 1)
        compared = f"{one} {self.random.choice(['<', '<=', '==', '!=', '>', '>='])} {other}"
        pick = self.random.randrange(5)
        if pick == 0 and depth < 3:
            return f"({compared} {self.random.choice(['and', 'or'])} {self.test(depth + 1)})"
        return f"not {compared}" if pick == 1 else compared

    def body(self, indent, depth, in_loop):
        lines = []
        for _ in range(self.random.randrange(1, 4)):
            lines += self.statement(indent, depth, in_loop)
        return lines

    def statement(self, indent, depth, in_loop):
        pad, pick = "    " * indent, self.random.randrange(9)
        name = self.random.choice(self.names[1:])
        if pick < 3 or depth == 3:
            return [f"{pad}{name} = ({self.value()}) // 1 % 1000"]
        if pick == 3:
            other = self.random.choice([x for x in self.names[1:] if x != name])
            return [f"{pad}{name}, {other} = {other}, ({self.value()}) // 1 % 100"]
        if pick == 4:
            operators = ["+=", "-="] if self.floats else ["+=", "-=", "^="]
            return [f"{pad}{name} {self.random.choice(operators)} ({self.value()}) // 1 % 50"]
        if pick == 5 and in_loop:
            ends = self.random.choice(["break", "continue"])
            return [f"{pad}if {self.test()}:", f"{pad}    {ends}"]
        if pick < 7:
            lines = [f"{pad}if {self.test()}:", *self.body(indent + 1, depth + 1, in_loop)]
            if self.random.random() < 0.5:
                lines += [f"{pad}else:", *self.body(indent + 1, depth + 1, in_loop)]
            return lines
        self.loops += 1
        number = f"k{self.loops}"
        if pick == 7:
            bounds = self.random.choice(["4", "i", "2, 6", "5, 0, -2", "int64(a) % 4 + 1"])
            return [
                f"{pad}for {number} in range({bounds}):",
                f"{pad}    {name} = ({name} + {number}) % 999",
                *self.body(indent + 1, depth + 1, True),
            ]
        return [
            f"{pad}{number} = 0",
            f"{pad}while {number} < 3 or {self.test()}:",
            f"{pad}    {number} += 1",
            f"{pad}    if {number} > 5:",
            f"{pad}        break",
            *self.body(indent + 1, depth + 1, True),
        ]

    def text(self):
        lines = ["a, b, c = i, 3, 5 - i", *self.body(0, 0, False), *self.body(0, 0, False)]
        return "\n".join([*lines, "out[i] = a + 1000 * b + 1000000 * c"])


@pytest.mark.parametrize("kind", ["int64", "float64"])
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed, kind):
    for number in range(5):
        body = Programs(100 * seed + number, kind == "float64").text()
        got = on_the_gpu(body, kind=kind, checks=USUAL_CHECKS)
        np.testing.assert_array_equal(got, in_python(body), body)
