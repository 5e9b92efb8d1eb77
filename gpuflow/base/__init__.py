"""Tools that know nothing of arrays. Every module imports some, so the system is checked here."""

from gpuflow.base.system import check_system

check_system()
