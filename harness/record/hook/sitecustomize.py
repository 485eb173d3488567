"""Runs at the start of every Python process of a recorded command: its folder is the first of PYTHONPATH.

It runs the ``sitecustomize`` that would have run without it too, and never lets the program fail.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location


def _run(name: str, file: str, package: str | None = None) -> None:
    """Import a module from its file; a package with its folder."""
    spec = spec_from_file_location(name, file, submodule_search_locations=[package] if package else None)
    if spec is not None and spec.loader is not None:
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _start(here: str) -> None:
    """Wrap what the trainer imports, by the files beside this one: the program may have another version, or none."""
    try:
        folder = os.path.dirname(os.path.dirname(here))
        _run("harness", os.path.join(folder, "__init__.py"), folder)
        from harness.record.seams import TRAINER_VARIABLE, install

        install(os.environ.get(TRAINER_VARIABLE, ""))
    except Exception as error:  # the program goes on without being recorded
        print(f"recording: {type(error).__name__}: {error}", file=sys.stderr)


if os.environ.get("GRPO_HARNESS_RECORD"):
    _here = os.path.realpath(os.path.dirname(__file__))
    _start(_here)
    for _folder in sys.path:
        _file = os.path.join(_folder, "sitecustomize.py")
        if os.path.isfile(_file) and os.path.realpath(_folder) != _here:
            _run("sitecustomize_behind", _file)
            break
