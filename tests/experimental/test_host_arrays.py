"""Arrays that each process gives its part of, in a group of two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("host_arrays_program.py")


def test_two_processes_with_two_devices_each():
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "2", str(PROGRAM)]
    environment = {**os.environ, "GPUFLOW_CPU_DEVICES": "2", "GPUFLOW_PLATFORM": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rank 0 is done" in done.stdout and "rank 1 is done" in done.stdout
