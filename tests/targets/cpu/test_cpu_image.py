"""Images of object files do what LLVM's linker would make of them, and load without LLVM."""

import ctypes
import math
import mmap
import os
import platform
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from cpu_harness import argument_words
from test_cpu_kernels import unary_kernel

from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.targets.cpu.codegen import build
from gpuflow.targets.cpu.codegen.build import build_cpu, image_if_supported, load_cpu, load_symbols
from gpuflow.targets.cpu.codegen.image import loader
from gpuflow.targets.cpu.codegen.image.elf import RELA, UnsupportedObject, sections_of
from gpuflow.targets.cpu.codegen.image.linker import link_image
from gpuflow.targets.cpu.codegen.image.loader import Image, is_image, load_image, parse_image
from gpuflow.targets.cpu.codegen.machine_code import host_machine
from gpuflow.targets.cpu.runtime.kernels import compile_cpu, print_cpu

PACKAGE = str(Path(__file__).resolve().parents[3])
pytestmark = pytest.mark.skipif(not loader.HAS_IMAGES, reason="ELF on x86-64")

# How code reaches what it names: relative to itself, or by absolute addresses in its text.
MODELS = {"relative": ("pic", "small"), "absolute": ("default", "jitdefault")}


def object_of(text, model="relative"):
    host_machine()  # starts LLVM
    reloc, code_model = MODELS[model]
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), reloc=reloc, codemodel=code_model, jit=True
    )
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    return machine.emit_object(module)


def functions(code, *prototypes):
    """Functions of ``(name, result, *arguments)``; they own the code."""
    names = [name for name, *_ in prototypes]
    owner, addresses = load_symbols(code, names, {})
    made = []
    for name, *types in prototypes:
        function = ctypes.CFUNCTYPE(*types)(addresses[name])
        function.owner = owner
        made.append(function)
    return made


def loaded(text, *prototypes, model="relative"):
    code = image_if_supported(object_of(text, model), [name for name, *_ in prototypes])
    assert is_image(code)
    return functions(code, *prototypes)


F64, I64, PTR = ctypes.c_double, ctypes.c_int64, ctypes.c_void_p


# --- what code may hold ------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_constants_and_functions_that_call_one_another(model):
    text = """
    define double @poly(double %x) {
      %a = fmul double %x, 3.25
      %b = call fastcc double @shift(double %a)
      ret double %b
    }
    define internal fastcc double @shift(double %x) noinline {
      %a = fadd double %x, 0.125
      ret double %a
    }
    define i64 @odd(i64 %n) noinline {
      %done = icmp eq i64 %n, 0
      br i1 %done, label %end, label %more
    more:
      %m = sub i64 %n, 1
      %r = musttail call i64 @even(i64 %m)
      ret i64 %r
    end:
      ret i64 0
    }
    define i64 @even(i64 %n) noinline {
      %done = icmp eq i64 %n, 0
      br i1 %done, label %end, label %more
    more:
      %m = sub i64 %n, 1
      %r = musttail call i64 @odd(i64 %m)
      ret i64 %r
    end:
      ret i64 1
    }"""
    poly, odd = loaded(text, ("poly", F64, F64), ("odd", I64, I64), model=model)
    assert poly(2.0) == 6.625
    assert [odd(n) for n in (0, 1, 7, 1_000_000)] == [0, 1, 1, 0]


@pytest.mark.parametrize("model", MODELS)
def test_switches_jump_through_tables(model):
    count = 24
    cases = "\n".join(f"i64 {k}, label %case{k}" for k in range(count))
    blocks = "\n".join(
        f"case{k}:\n  call void @note(i64 {k * k + 7})\n  ret i64 {k % 5}" for k in range(count)
    )
    text = f"""
    @seen = internal global i64 -1
    define internal void @note(i64 %x) noinline {{
      store i64 %x, ptr @seen
      ret void
    }}
    define i64 @last() {{
      %x = load i64, ptr @seen
      ret i64 %x
    }}
    define i64 @choose(i64 %n) {{
      switch i64 %n, label %other [ {cases} ]
    {blocks}
    other:
      ret i64 -5
    }}"""
    code = object_of(text, model)
    sections = sections_of(code)
    changed = [(sections[s.info].name, len(s.content)) for s in sections if s.kind == RELA]
    assert [size for name, size in changed if name.endswith("rodata")] == [24 * count]
    choose, last = loaded(text, ("choose", I64, I64), ("last", I64), model=model)
    assert last() == -1
    for k in range(count):
        assert choose(k) == k % 5 and last() == k * k + 7
    assert choose(count) == choose(-1) == -5


@pytest.mark.parametrize("model", MODELS)
def test_functions_and_values_elsewhere_in_the_process(model):
    """As far from the code as libraries are: code reaches them through words."""
    text = """
    @_Py_NoneStruct = external global i8
    @calls = constant [2 x ptr] [ptr @cos, ptr @sin]
    declare double @cos(double)
    declare double @sin(double)
    define double @both(double %x) {
      %c = call double @cos(double %x)
      %s = tail call double @sin(double %x)
      %r = fmul double %c, %s
      ret double %r
    }
    define double @tail(double %x) {
      %r = musttail call double @cos(double %x)
      ret double %r
    }
    define double @pointed(i64 %k, double %x) {
      %p = getelementptr ptr, ptr @calls, i64 %k
      %f = load ptr, ptr %p
      %r = call double %f(double %x)
      ret double %r
    }
    define ptr @none() {
      ret ptr @_Py_NoneStruct
    }
    define ptr @sine() {
      ret ptr @sin
    }"""
    both, tail, pointed, none, sine = loaded(
        text,
        ("both", F64, F64),
        ("tail", F64, F64),
        ("pointed", F64, I64, F64),
        ("none", PTR),
        ("sine", PTR),
        model=model,
    )
    assert both(0.5) == math.cos(0.5) * math.sin(0.5) and tail(0.5) == math.cos(0.5)
    assert pointed(0, 0.5) == math.cos(0.5) and pointed(1, 0.5) == math.sin(0.5)
    assert none() == id(None)
    assert sine() == ctypes.cast(ctypes.CDLL(None).sin, PTR).value


@pytest.mark.parametrize("model", MODELS)
def test_addresses_of_its_own_functions_and_data(model):
    text = """
    @numbers = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
    @third = constant ptr getelementptr (i8, ptr @numbers, i64 16)
    @table = global [2 x ptr] [ptr @one, ptr @two]
    @distance = internal constant i64 sub (i64 ptrtoint (ptr @numbers to i64),
                                           i64 ptrtoint (ptr @distance to i64))
    define i64 @one() {
      ret i64 1
    }
    define weak i64 @two() {
      ret i64 2
    }
    define i64 @pick(i64 %k) {
      %p = getelementptr ptr, ptr @table, i64 %k
      %f = load ptr, ptr %p
      %r = call i64 %f()
      ret i64 %r
    }
    define i64 @read() {
      %p = load ptr, ptr @third
      %r = load i64, ptr %p
      ret i64 %r
    }
    define ptr @own() {
      ret ptr @one
    }
    define i64 @apart() {
      %a = load i64, ptr @distance
      %b = ptrtoint ptr @numbers to i64
      %c = ptrtoint ptr @distance to i64
      %d = sub i64 %b, %c
      %r = sub i64 %a, %d
      ret i64 %r
    }"""
    one, pick, read, own, apart = loaded(
        text,
        ("one", I64),
        ("pick", I64, I64),
        ("read", I64),
        ("own", PTR),
        ("apart", I64),
        model=model,
    )
    assert [pick(0), pick(1), read(), apart()] == [1, 2, 30, 0]
    assert own() == ctypes.cast(one, PTR).value


@pytest.mark.parametrize("model", MODELS)
def test_data_and_zeros_are_each_loaded_images_own(model):
    text = """
    @start = internal global i64 5
    @zeros = internal global [9000 x i64] zeroinitializer, align 64
    @shared = common global i64 0, align 32
    define i64 @count() {
      %a = load i64, ptr @start
      %b = add i64 %a, 1
      store i64 %b, ptr @start
      %p = getelementptr i64, ptr @zeros, i64 8999
      %c = load i64, ptr %p
      %d = add i64 %c, 100
      store i64 %d, ptr %p
      %e = load i64, ptr @shared
      %f = add i64 %e, 10000
      store i64 %f, ptr @shared
      %s = add i64 %b, %d
      %t = add i64 %s, %f
      ret i64 %t
    }
    define i64 @alignment() {
      %a = ptrtoint ptr @zeros to i64
      %b = ptrtoint ptr @shared to i64
      %c = and i64 %a, 63
      %d = and i64 %b, 31
      %e = or i64 %c, %d
      ret i64 %e
    }"""
    prototypes = ("count", I64), ("alignment", I64)
    code = image_if_supported(object_of(text, model), ["count", "alignment"])
    assert len(code) < 3 * loader.PAGE  # zeros are not stored
    first, second = functions(code, *prototypes), functions(code, *prototypes)
    assert [first[0](), first[0](), second[0]()] == [10106, 20207, 10106]
    assert first[1]() == second[1]() == 0


def test_vector_functions_are_reached():
    """A kernel that calls libm and libmvec, at a size with a remainder."""
    kernel = unary_kernel("atan")
    built = build_cpu(print_cpu(kernel))
    called = set(parse_image(built.code).imports)
    assert called and called <= set(built.imports)
    x = np.linspace(-9, 9, 1003, dtype=np.float32)
    out = np.zeros_like(x)
    words = argument_words(kernel, {"x": x, "o": out}, {"i0": x.size}, {})
    load_cpu(built).call(words.ctypes.data, 0, x.size)
    np.testing.assert_allclose(out, np.arctan(x.astype(np.float64)), rtol=1e-6)


# --- what they may not -------------------------------------------------------------------------

STRANGE = {
    "multiples of 16384": """
        @cell = global i64 7, align 16384
        define i64 @get() {
          %x = load i64, ptr @cell
          ret i64 %x
        }""",
    "symbol cell of kind": """
        @cell = thread_local(localexec) global i64 7
        define ptr @get() {
          ret ptr @cell
        }""",
    "need not be anywhere": """
        declare extern_weak void @nowhere_at_all()
        define i64 @get() {
          %there = icmp ne ptr @nowhere_at_all, null
          %x = select i1 %there, i64 1, i64 7
          ret i64 %x
        }""",
}


@pytest.mark.parametrize("reason", STRANGE)
def test_other_objects_stay_objects(reason):
    code = object_of(STRANGE[reason])
    with pytest.raises(UnsupportedObject, match=reason):
        link_image(code, ["get"])
    assert image_if_supported(code, ["get"]) == code
    if reason == "need not be anywhere":
        (get,) = functions(code, ("get", I64))
        assert get() == 7
    else:
        with pytest.raises(RuntimeError, match="materialize"):
            functions(code, ("get", I64))


def test_llvm_links_data_near_the_code_that_reads_it():
    """Also in a process whose address space is full of mappings of odd sizes."""
    text = "@cell = global i64 7\ndefine i64 @get() {\n%x = load i64, ptr @cell\nret i64 %x\n}"
    code, kept = object_of(text), []
    for number in range(200):
        kept.append(mmap.mmap(-1, mmap.PAGESIZE * (number % 7 + 1)))
        (get,) = functions(code, ("get", I64))
        kept.append(get)
        assert get() == 7


SUM = """define double @f(double %x) {
  %y = fadd double %x, 1.5
  ret double %y
}"""


def test_relocations_of_an_unknown_kind_are_refused():
    code = bytearray(object_of(SUM))
    (table,) = [s for s in sections_of(bytes(code)) if s.name == ".rela.text"]
    place = code.index(table.content)
    code[place + 8] = 200
    with pytest.raises(UnsupportedObject, match="kind 200"):
        link_image(bytes(code), ["f"])


@pytest.mark.parametrize("code", [b"", b"\x7fELF", bytes(range(256)) * 9])
def test_no_object_file(code):
    with pytest.raises(UnsupportedObject):
        link_image(code, ["f"])
    assert image_if_supported(code, ["f"]) == code


def test_a_damaged_object_file_is_refused_or_reads_inside_of_itself():
    """No damage makes anything but Unsupported, or an image that the loader checks again."""
    code = object_of(SUM)
    rng = np.random.default_rng(0)
    for place, value in zip(rng.integers(0, len(code), 3000), rng.integers(0, 256, 3000)):
        wrong = bytearray(code)
        wrong[place] = value
        try:
            image = link_image(bytes(wrong), ["f"])
        except UnsupportedObject:
            continue
        assert image.size < 1 << 31
    for count in range(0, len(code), 5):
        with pytest.raises(UnsupportedObject):
            link_image(code[:count], ["f"])


# --- files -------------------------------------------------------------------------------------

SIMPLE = Image(b"\xb8\x07\x00\x00\x00\xc3" + bytes(10), 16, 16, {"get": 0}, {}, ())


def test_an_image_survives_its_file():
    image = parse_image(SIMPLE.to_bytes())
    assert image.block == SIMPLE.block and dict(image.entries) == {"get": 0}
    (get,) = functions(SIMPLE.to_bytes(), ("get", ctypes.c_int))
    assert get() == 7


def test_truncated_images_are_refused():
    code = SIMPLE.to_bytes()
    for count in range(len(code)):
        with pytest.raises(RuntimeError, match="no kernel image"):
            parse_image(code[:count])
    with pytest.raises(RuntimeError, match="cut off"):
        parse_image(code + b"\0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"fixups": [9]},
        {"fixups": [-1]},
        {"imports": {"f": [1 << 40]}},
        {"entries": {"get": 16}},
        {"entries": {"get": "0"}},
        {"size": 15},
        {"size": 16.0},
        {"read_only": 0},
        {"read_only": 8},
        {"entries": [1]},
        {"fixups": None},
        {"block": b"", "size": 0},
    ],
)
def test_images_that_reach_outside_of_themselves_are_refused(wrong):
    values = {name: getattr(SIMPLE, name) for name in Image.__dataclass_fields__}
    header = {**values, **wrong}
    block = header.pop("block")
    text = loader.json.dumps({"stored": len(block), **header}).encode()
    code = loader.MAGIC + loader._HEADER_LENGTH.pack(len(text)) + text + block
    with pytest.raises(RuntimeError, match="no kernel image"):
        parse_image(code)


def test_missing_functions_are_named():
    image = Image(SIMPLE.block, 16, 16, {"get": 0}, {"gpuflow_nothing": [8]}, ())
    with pytest.raises(RuntimeError, match=r"needs gpuflow_nothing, which is nowhere"):
        load_symbols(image.to_bytes(), ["get"], {})
    with pytest.raises(RuntimeError, match=r"needs other"):
        load_symbols(SIMPLE.to_bytes(), ["other"], {})


def test_a_system_that_refuses_executable_memory_is_named(monkeypatch):
    def refuse(*arguments):
        ctypes.set_errno(13)
        return -1

    refusing = replace(loader._libc(), mprotect=refuse)
    monkeypatch.setattr(loader, "_libc", lambda: refusing)
    with pytest.raises(OSError, match=r"\[cpu\] the system must let .* Fix: allow it") as caught:
        load_image(SIMPLE, ["get"], lambda name: None)
    assert caught.value.errno == 13
    huge = Image(SIMPLE.block, 1 << 60, 1 << 60, {"get": 0}, {}, ())
    with pytest.raises(OSError, match=r"\[cpu\] the system has no \d+ bytes for code"):
        load_image(huge, ["get"], lambda name: None)


# --- memory ------------------------------------------------------------------------------------


def mappings():
    """Lines of /proc/self/maps as (start, end, rights)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, *_ = line.split()
        start, end = (int(place, 16) for place in places.split("-"))
        yield start, end, rights


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_memory_is_never_writable_and_executable():
    text = "@x = global i64 5\ndefine ptr @f() {\nret ptr @x\n}"
    (f,) = loaded(text, ("f", PTR))
    rights = {}
    for name, address in (("code", ctypes.cast(f, PTR).value), ("data", f())):
        rights[name] = next(r for start, end, r in mappings() if start <= address < end)
    assert rights == {"code": "r-xp", "data": "rw-p"}


def test_memory_is_given_back():
    built = build_cpu(print_cpu(unary_kernel("abs")))
    kept = load_cpu(built)
    before, lines = resident_bytes(), len(list(mappings()))
    for _ in range(10_000):
        load_cpu(built)
    assert resident_bytes() - before < 4 << 20  # 10,000 pages are 40 MB
    assert len(list(mappings())) < lines + 20
    x, out = np.array([-1, 2, -3], np.float32), np.zeros(3, np.float32)
    words = argument_words(unary_kernel("abs"), {"x": x, "o": out}, {"i0": 3}, {})
    call = kept.call
    del kept  # the function owns its code
    call(words.ctypes.data, 0, 3)
    np.testing.assert_array_equal(out, [1, 2, 3])


def test_threads_load_at_once():
    code, found = SIMPLE.to_bytes(), []

    def load():
        for _ in range(50):
            found.append(functions(code, ("get", ctypes.c_int))[0]())

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 400


def test_a_forked_child_has_the_code():
    (get,) = functions(SIMPLE.to_bytes(), ("get", ctypes.c_int))
    child = os.fork()
    if child == 0:
        (again,) = functions(SIMPLE.to_bytes(), ("get", ctypes.c_int))
        os._exit(get() + again())
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 14


def test_a_process_may_end_while_a_thread_runs_its_code():
    """Memory that Python gave back at the end was missing under the thread."""
    program = """
        import ctypes, threading, time
        from gpuflow.targets.cpu.codegen.image.loader import Image, load_image
        forever = Image(b"\\xeb\\xfe", 2, 2, {"run": 0}, {}, ())  # jmp to itself
        owner, addresses = load_image(forever, ["run"], lambda name: None)
        run = ctypes.CFUNCTYPE(None)(addresses["run"])
        threading.Thread(target=run, daemon=True).start()
        time.sleep(0.05)
    """
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    for _ in range(3):
        assert subprocess.run(command, env=environment, timeout=60).returncode == 0


# --- kernels -----------------------------------------------------------------------------------


def test_without_images_llvm_links(monkeypatch, tmp_path):
    """As on other platforms; also an entry of a cache that was filled so."""
    monkeypatch.setattr(build, "HAS_IMAGES", False)
    kernel = unary_kernel("atan")
    for _ in range(2):
        kept = compile_cpu(kernel, KernelCache(tmp_path))
        x, out = np.linspace(-9, 9, 99, dtype=np.float32), np.zeros(99, np.float32)
        words = argument_words(kernel, {"x": x, "o": out}, {"i0": 99}, {})
        kept.call(words.ctypes.data, 0, 99)
        np.testing.assert_allclose(out, np.arctan(x.astype(np.float64)), rtol=1e-6)
    assert {path.suffix for path in tmp_path.rglob("*.*")} == {".o", ".py", ".json"}


STEP = """
import sys
import numpy as np
import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime.kernel_cache import cache_stats

rng = np.random.default_rng(0)
shapes = (20, 30), (30, 30), (30, 7)
layers = [(rng.standard_normal(s).astype("f") * 0.1, np.zeros(s[1], "f")) for s in shapes]
x, y = rng.standard_normal((40, 20)).astype("f"), np.eye(7, dtype="f")[rng.integers(0, 7, 40)]

def loss(layers, x, y):
    for w, b in layers[:-1]:
        x = jnp.arctan(jnp.tanh(x @ w + b))
    w, b = layers[-1]
    return -(gf.nn.log_softmax(x @ w + b) * y).sum() / len(x)

@gf.jit
def step(layers, x, y):
    value, slopes = gf.value_and_grad(loss)(layers, x, y)
    return value, gf.tree.map(lambda w, g: w - g, layers, slopes)

def counted(x):
    return gf.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))

images = rng.standard_normal((2, 3, 9, 9)).astype("f")
convolved = gf.jit(lambda a, w: gf.lax.conv(a, w, (1, 1), "SAME"))(images, images[:, :, :3, :3])
value, layers = step(layers, x, y)
found = [float(value), float(gf.jit(counted)(x)[1].sum()), float(convolved.sum())]
loaded = [name for name in ("llvmlite.binding", "llvmlite.ir", "numba") if name in sys.modules]
print(*found, cache_stats().built, *loaded)
"""


def run(folder):
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(folder), "PYTHONPATH": PACKAGE}
    found = subprocess.run(
        [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0 and "Warning" not in found.stderr, found.stderr
    return found.stdout.split()


def test_a_process_with_a_filled_cache_loads_no_llvm(tmp_path):
    """It took 38 MB and 25 ms. Kernels, loops, products and the native runtime are images."""
    first = run(tmp_path)
    assert "llvmlite.binding" in first
    code = {path.suffix for path in tmp_path.glob("??/*")}
    assert code == {".image", ".py", ".json"}
    again = run(tmp_path)
    assert again == [*first[:3], "0"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the level's name")
def test_a_forced_target_needs_no_llvm_either(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUFLOW_CPU_TARGET", "x86-64-v2")
    first, again = run(tmp_path), run(tmp_path)
    assert again == [*first[:3], "0"]
