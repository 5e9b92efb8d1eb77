"""Helper modules beside this file can be imported. The simulated GPU looks for all that it can."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from schedule_run import sim_device  # beside this file

from ptxsim.checks import THOROUGH


@pytest.fixture(autouse=True)
def thorough(monkeypatch):
    """Races, overruns, registers that nobody set and divergent barriers are errors."""
    monkeypatch.setattr(sim_device().driver.api, "checks", THOROUGH)
