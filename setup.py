"""Packages and package data; pyproject.toml holds all other settings.

`kernels/` is next to `gpuflow/` in the repository, because handwritten kernels depend on Numba and
NumPy only; it is installed as `gpuflow.kernels`. `ptxsim/` is an interpreter of PTX for everybody,
which the simulated GPU uses. gpuflow_pytest.py is a plugin of pytest.
"""

import shutil

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """A build without the files of an earlier one.

    setuptools never deletes in build/lib: a module that was removed or renamed would be installed.
    """

    def run(self) -> None:
        """Build the modules into an empty folder."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    packages=[*find_packages(include=["gpuflow", "gpuflow.*", "ptxsim"]), "gpuflow.kernels"],
    py_modules=["gpuflow_pytest"],
    package_dir={"gpuflow.kernels": "kernels"},
    package_data={
        "gpuflow": [
            "py.typed",
            "as_jax/*.txt",
            "base/*.txt",
            "core/*.pyi",
            "explaining/page.*",
            "targets/cpu/runtime/native/*.ll",
        ],
        "gpuflow.kernels": ["*.cu", "*.cuh"],
    },
    include_package_data=False,
    cmdclass={"build_py": FreshBuild},
)
