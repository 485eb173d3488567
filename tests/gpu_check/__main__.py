"""``python -m tests.gpu_check``: the command's earlier name, which the script of a day with a GPU still types."""

import sys

from harness.cli import main

sys.exit(main(["gpu-check", *sys.argv[1:]]))
