"""A Ray for the actors of one file."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="gh-", dir="/tmp")  # short: Ray makes sockets in it, whose paths are bounded
    settings = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 << 20}
    ray.init(address="local", num_cpus=2, _temp_dir=folder, **settings)
    yield
    ray.shutdown()
    shutil.rmtree(folder)
