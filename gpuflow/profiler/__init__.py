"""Traces of running programs, under the names of jax.profiler.

A trace is a file in the Chrome format (``*.trace.json.gz``) for https://ui.perfetto.dev,
chrome://tracing and TensorBoard's profile plugin. It shows kernels, libraries, loops, copies and
builds, each on a separate row. During a recording, the steps of compiled programs run one by one.
"""

from __future__ import annotations

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.profiler.annotations import StepTraceAnnotation as StepTraceAnnotation
from gpuflow.profiler.annotations import TraceAnnotation as TraceAnnotation
from gpuflow.profiler.annotations import annotate_function as annotate_function
from gpuflow.profiler.data import ProfileData as ProfileData
from gpuflow.profiler.data import ProfileEvent as ProfileEvent
from gpuflow.profiler.data import ProfilePlane as ProfilePlane
from gpuflow.profiler.memory import device_memory_profile as device_memory_profile
from gpuflow.profiler.memory import save_device_memory_profile as save_device_memory_profile
from gpuflow.profiler.tables import LineTime as LineTime
from gpuflow.profiler.tables import MemorySample as MemorySample
from gpuflow.profiler.tables import OpTime as OpTime
from gpuflow.profiler.tables import TraceTable as TraceTable
from gpuflow.profiler.tables import table as table
from gpuflow.profiler.traces import ProfileOptions as ProfileOptions
from gpuflow.profiler.traces import register_subprocess as register_subprocess
from gpuflow.profiler.traces import start_server as start_server
from gpuflow.profiler.traces import start_trace as start_trace
from gpuflow.profiler.traces import stop_server as stop_server
from gpuflow.profiler.traces import stop_trace as stop_trace
from gpuflow.profiler.traces import trace as trace

_publish(globals(), "profiler", _public_names(globals()))
