"""Runs at the start of every Python process of a recorded command: its folder is the first of PYTHONPATH.

It looks for the ``sitecustomize`` that would have run without it, runs that too, and never lets the program fail.
"""

import importlib.util
import os
import sys


def _package(name, folder):
    """Import a package from its folder, where the program's own environment does not have it."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _next_one(here):
    """Run the ``sitecustomize`` behind this one."""
    for folder in sys.path:
        path = os.path.join(folder, "sitecustomize.py")
        if os.path.isfile(path) and os.path.realpath(os.path.dirname(path)) != here:
            spec = importlib.util.spec_from_file_location("sitecustomize_behind", path)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
            return


def _start():
    here = os.path.realpath(os.path.dirname(__file__))
    try:
        if importlib.util.find_spec("harness") is None:
            _package("harness", os.path.dirname(os.path.dirname(here)))
        from harness.record.seams import install

        install(os.environ.get("GRPO_HARNESS_RECORD_TRAINER", ""))
    except Exception as error:  # the program goes on without being recorded
        print(f"recording: {type(error).__name__}: {error}", file=sys.stderr)
    _next_one(here)


if os.environ.get("GRPO_HARNESS_RECORD"):
    _start()
