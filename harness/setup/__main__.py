"""``python3 -m harness.setup``: make the environment; ``make install`` and the other targets call it.

It runs before anything is installed, on whatever ``python3`` is, so this file keeps to syntax that old Pythons read:
they then get a sentence with the way out and not a syntax error.
"""

import os
import shutil
import subprocess
import sys

SUPPORTED = ((3, 11), (3, 12), (3, 13))
NAMES = ["python%d.%d" % version for version in SUPPORTED]  # noqa: UP031 (old syntax on purpose)


def find_supported_python() -> str:
    """Return the path of a working Python of a supported version, or an empty string."""
    question = "import sys; sys.exit(sys.version_info[:2] not in %r)" % (SUPPORTED,)  # noqa: UP031
    for found in filter(None, map(shutil.which, NAMES)):
        answer = subprocess.call([found, "-c", question], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if answer == 0:
            return found
    return ""


def refusal(executable: str, version: str) -> str:
    """Return the message for a Python that is not supported, when no other one was found."""
    return "\n".join(
        [
            "this Python is %s, and the harness needs Python 3.%d to 3.%d"  # noqa: UP031
            % (version, SUPPORTED[0][1], SUPPORTED[-1][1]),
            "  where: " + executable,
            "  fix:   install one, then name it: make install PYTHON=/path/to/" + NAMES[-1],
        ]
    )


def main() -> int:
    """Check the version of Python, then hand over to the commands. Returns the exit code."""
    if sys.version_info[:2] in SUPPORTED:
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
