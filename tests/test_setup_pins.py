"""The pins and the claims of pyproject.toml and the set-up agree with each other."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.setup import SUPPORTED

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NAMED = [*PROJECT["dependencies"], *(requirement for extra in EXTRAS.values() for requirement in extra)]
DIRECT = sorted({each for each in NAMED if Requirement(each).name != PROJECT["name"]})


def pins() -> dict[str, str]:
    lines = (ROOT / "harness/constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_requirement_has_a_pin_inside_its_range() -> None:
    pinned = pins()
    wanted = [Requirement(each) for each in DIRECT]
    assert [str(each) for each in wanted if not each.specifier.contains(pinned[canonicalize_name(each.name)])] == []


def test_no_pin_ties_to_one_build_of_torch() -> None:
    names = pins()
    assert [name for name in names if name.startswith(("triton", "nvidia-cu", "cuda-"))] == []
    assert [name for name, version in names.items() if "+" in version] == []


def test_a_package_is_pinned_once() -> None:
    lines = (ROOT / "harness/constraints.txt").read_text().splitlines()
    assert len(pins()) == len([line for line in lines if line and not line.startswith("#")])


def test_the_set_up_and_the_package_claim_the_same_pythons() -> None:
    claimed = SpecifierSet(PROJECT["requires-python"])
    runs = [minor for minor in range(8, 16) if claimed.contains(f"3.{minor}.7")]
    assert [(3, minor) for minor in runs] == list(SUPPORTED)
    told = [line for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python :: 3.")]
    assert told == [f"Programming Language :: Python :: 3.{minor}" for minor in runs]


def test_what_the_user_types_is_a_dependency() -> None:
    development = {Requirement(requirement).name for requirement in EXTRAS["dev"]}
    assert {"pytest", "pytest-benchmark"} <= development
