"""One thread for every test: two of them wait for each other many times longer where other work has a core."""

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is first imported, here and in child processes
    os.environ.setdefault(name, "1")

pytest_plugins = ["tests.messages", "tests.rank_pool", "tests.run_folders", "tests.extras"]
