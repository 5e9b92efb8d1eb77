"""The Python functions that run compiled programs."""

import subprocess
import sys
import textwrap


def test_a_function_may_die_after_everything_else_of_its_program():
    """Python reads its method definition then, which lay in memory that was given back.

    A garbage collection that took a whole program apart crashed when another thread had written
    something else there meanwhile.
    """
    text = """
        import ctypes, gc
        from gpuflow.targets.cpu.runtime.native.program_writer import Code, callable_program
        from gpuflow.targets.cpu.runtime.native.services import native_services
        pairs = [callable_program(Code(), 1, native_services().runtime) for _ in range(2000)]
        functions = [function for function, _ in pairs]
        del pairs
        gc.collect()
        # What is freed is taken again, for words with all bits set: so the flags would read.
        words = [ctypes.create_string_buffer(bytes([255]) * 32, 32) for _ in range(20000)]
        del functions
        gc.collect()
        print("end", len(words))
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (0, "end 20000\n"), ended.stderr
