"""``python3 -m harness.setup``: make the environment; ``make install`` and the other targets call it.

It runs before anything is installed, on whatever ``python3`` is, so this file keeps to syntax that old Pythons read:
they then get a sentence with the way out and not a syntax error.
"""

import os
import shutil
import subprocess
import sys

SUPPORTED = (3, 11)
NAME = "python%d.%d" % SUPPORTED  # noqa: UP031 (old syntax on purpose)


def find_supported_python() -> str:
    """Return the path of a working Python of the supported version, or an empty string."""
    found = shutil.which(NAME)
    if not found:
        return ""
    question = "import sys; sys.exit(sys.version_info[:2] != %r)" % (SUPPORTED,)  # noqa: UP031
    answer = subprocess.call([found, "-c", question], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return found if answer == 0 else ""


def refusal(executable: str, version: str) -> str:
    """Return the message for a Python that is not supported, when no other one was found."""
    return "\n".join(
        [
            "this Python is " + version + ", and the harness needs Python %d.%d" % SUPPORTED,  # noqa: UP031
            "  where: " + executable,
            "  fix:   install it, then name it: make install PYTHON=/path/to/" + NAME,
        ]
    )


def main() -> int:
    """Check the version of Python, then hand over to the commands. Returns the exit code."""
    if sys.version_info[:2] == SUPPORTED:
        from harness.setup.command import run

        return run(sys.argv[1:])
    version = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    found = find_supported_python()
    if not found:
        print(refusal(sys.executable, version), file=sys.stderr)
        return 2
    print("this Python is " + version + "; going on with " + found, flush=True)
    os.execv(found, [found, "-m", "harness.setup", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
