"""Packages and package data; everything else about the project stands in pyproject.toml.

`kernels/` lies beside `gpuflow/` in the repository, because handwritten kernels depend on Numba
and NumPy only; it is installed as `gpuflow.kernels`. gpuflow_pytest.py is a plugin of pytest's.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["gpuflow", "gpuflow.*"]), "gpuflow.kernels"],
    py_modules=["gpuflow_pytest"],
    package_dir={"gpuflow.kernels": "kernels"},
    package_data={
        "gpuflow": [
            "py.typed", "base/*.txt", "core/*.pyi", "explaining/page.*", "targets/cpu/native/*.ll",
        ],
        "gpuflow.kernels": ["*.cu", "*.cuh"],
    },
    include_package_data=False,
)
