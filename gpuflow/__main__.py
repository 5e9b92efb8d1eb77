"""``python -m gpuflow``: the command ``gpuflow``."""

import sys

from gpuflow.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
