"""Settings of the whole run, made before gpuflow is imported.

The kernel cache of a run is a folder of its own, so that every run builds what it tests; set
GPUFLOW_CACHE_DIR to keep one between runs. Helper modules beside this file can be imported.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if "GPUFLOW_CACHE_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="gpuflow-tests-")
    os.environ["GPUFLOW_CACHE_DIR"] = _folder
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

# Tests multiply small matrices, and on a busy machine the threads of a BLAS wait for each other for
# many times longer than that takes. This must stand before numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
