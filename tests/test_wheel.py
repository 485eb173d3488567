"""What is in the wheel: the code, the scenarios and the profiles, and nothing that belongs to the repository alone."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_code_scenarios_and_profiles_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, "--quiet", str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("grpo_harness-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "harness"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    shipped = {
        f"harness/shipped/{path.relative_to(ROOT)}"
        for folder in ("scenarios", "profiles")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert names == set(tracked.split()) | shipped
