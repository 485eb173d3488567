"""Machine profile files: found, checked with every problem told, written so that they read back as themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.datasheet_profiles import DATA_SHEETS, datasheet_profile
from harness.core.errors import UserError
from harness.models.flops import peak_flops
from harness.simulate.machine import (
    Correction,
    Device,
    StageCost,
    check_versions,
    known_machines,
    load_machine,
    profile_yaml,
    save_machine,
)
from tests.simulate.conftest import VERSIONS, cost, made

SHIPPED = Path(__file__).parents[2] / "profiles" / "machines"
COST = StageCost(
    stage="generate",
    where={"engine": "native", "threads": "1"},
    seconds={"call": 0.01, "row": 1.5e-05},
    covariance=((1e-06, 0.0), (0.0, 2.5e-13)),
    models={"small": Correction(factor=1.1, log_sd=0.02)},
    unseen_log_sd=0.1,
    ranges={"row": (10, 2000)},
    spans=40,
)
PROFILE = made(
    COST,
    cost("generate", {"engine": "native"}, call=0.5),
    name="abacus",
    description="two beads: fast ones",
    device=Device(name="Abacus 3000", fingerprint="0123456789ab"),
    versions=VERSIONS,
    sources=("calibration/20261121-120000/small",),
)


def test_a_profile_reads_back_as_itself_and_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "machines" / "abacus.yaml"
    save_machine(PROFILE, file)
    assert load_machine(file) == PROFILE
    assert profile_yaml(load_machine(file)).encode() == file.read_bytes()
    assert [path.name for path in file.parent.iterdir()] == ["abacus.yaml"]  # no draft is left


def test_the_cost_that_names_most_of_the_circumstances_is_taken() -> None:
    assert PROFILE.cost_of("generate", {"engine": "native", "threads": "1", "device": "cpu"}) == PROFILE.stages[0]
    assert PROFILE.cost_of("generate", {"engine": "native", "threads": "2"}) == PROFILE.stages[1]
    assert PROFILE.cost_of("generate", {"engine": "vllm", "threads": "1"}) is None
    assert PROFILE.cost_of("update", {"engine": "native"}) is None


def test_versions_that_differ_are_told_and_those_that_are_not_installed_are_not() -> None:
    assert check_versions(PROFILE, {"torch": "2.13.0"}) == []
    assert check_versions(PROFILE, {"torch": "2.14.0", "numpy": "2.3"}) == ["torch 2.13.0 in abacus, 2.14.0 here"]


def test_a_name_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no machine profile called 'h200-sxn'") as caught:
        load_machine("h200-sxn")
    assert "did you mean h200-sxm" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("origin: measured", "origin: guessed", "`origin` is text 'guessed', which is none of its values"),
        ("call: 0.01", "call: -0.01", "`stages[0].seconds.call` is -0.01, must be at least 0"),
        ("  - [0.0, 2.5e-13]\n", "", "`stages[0].covariance` must have 2 rows of 2 numbers"),
        ("row: [10.0, 2000.0]", "row: [10.0]", "`stages[0].ranges.row` has 1 items, must have more"),
        ("call: 0.01", "call: .nan", "`stages[0].seconds.call` is nan, expected a finite number"),
        ("row: [10.0, 2000.0]", "row: [2000.0, 10.0]", "`stages[0].ranges.row` runs from 2000 down to 10"),
        ("[calibration/20261121-120000/small]", "[]", "`sources` must not be empty"),
        (profile_yaml(PROFILE), "- 1\n", "a machine profile is a mapping"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = profile_yaml(PROFILE)
    assert old in text
    file = tmp_path / "abacus.yaml"
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_machine(file)
    assert says in str(caught.value)
    assert "abacus.yaml" in str(caught.value.where)


def test_every_shipped_profile_can_be_loaded_and_is_written_as_it_stands() -> None:
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    assert "cpu-2-cores" in names
    assert set(names) <= set(known_machines())
    for name in names:
        file = SHIPPED / f"{name}.yaml"
        profile = load_machine(file)
        assert profile.name == name
        assert profile_yaml(profile) == file.read_text(encoding="utf-8")


def test_the_shipped_data_sheet_profiles_are_what_the_table_makes() -> None:
    """Their peaks are those that utilisation is measured against, where the harness knows the GPU: no GeForce."""
    for sheet in DATA_SHEETS:
        profile = datasheet_profile(sheet)
        assert (SHIPPED / f"{profile.name}.yaml").read_text(encoding="utf-8") == profile_yaml(profile)
        assert profile.origin == "datasheet"
        assert "not measured" in profile.description
        assert all(source.startswith("https://") for source in profile.sources)
        peak = None if sheet.name == "rtx-4090" else sheet.tflops * 1e12
        assert peak_flops(f"NVIDIA {sheet.gpu}", "bfloat16") == peak, sheet.name


def test_a_data_sheets_costs_are_its_roofline() -> None:
    """H100: 3350 GB/s x 60% reads 1 GB in 0.4975 ms; 989 TFLOP/s x 40% make 3 GFLOP (forward and back) in 7.583 us."""
    h100 = next(datasheet_profile(sheet) for sheet in DATA_SHEETS if sheet.name == "h100-sxm")
    generate, update, transfer = (
        next(cost for cost in h100.stages if cost.stage == stage) for stage in ("generate", "update", "weight_transfer")
    )
    assert generate.seconds["weight_gb"] == pytest.approx(0.4975e-3, rel=1e-3)
    assert update.seconds["position_gflop"] == pytest.approx(7.583e-6, rel=1e-3)
    assert transfer.seconds["gb"] == pytest.approx(1 / (0.7 * 450), rel=1e-3)
    assert generate.unseen_log_sd == 0.35
