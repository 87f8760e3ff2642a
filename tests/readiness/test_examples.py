"""The examples reach the right decision for the right reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_readiness import exits
from readiness.support import EXAMPLES, run


def test_a_host_operator_that_only_rare_requests_reach_is_a_named_gap(tmp_path: Path) -> None:
    path = EXAMPLES / "rare_host_operator.py"
    code, record = run(path, tmp_path, "--only", "execution")
    facts = record["items"]["execution"]["facts"]
    assert facts["by_case"]["ordinary"]["host_operators"] == []
    assert facts["by_case"]["long"]["host_operators"] == ["clinic::spectral_radius"]
    assert facts["rare_host_operators"] == ["clinic::spectral_radius"]
    assert code == exits.CONTINUE
    first = record["decision"]["reasons"][0]
    assert first["gate"] == "host_operators"
    assert "in 1 of 2 cases (long), 0.5% of the traffic" in first["text"]
    assert "rare_host_operator.py:" in first["text"]  # the line that calls it


@pytest.mark.full
def test_many_lengths_are_a_gap_with_the_price_of_bucketing(tmp_path: Path) -> None:
    code, record = run(EXAMPLES / "variable_length.py", tmp_path)
    assert code == exits.CONTINUE
    assert [r["gate"] for r in record["decision"]["reasons"]] == ["shapes"]
    facts = record["items"]["shapes"]["facts"]
    assert facts["families"] == facts["families_that_compile"] == 10
    assert facts["shapes_for_95_percent"] == 8
    assert facts["bucketing"]["options"][0]["compiles_saved"] > 0
    assert facts["padding"]["cases"] > 0 and facts["padding"]["failed"] == 0


@pytest.mark.full
def test_a_training_job_that_forgets_its_random_state_is_not_moved(tmp_path: Path) -> None:
    code, record = run(EXAMPLES / "training_job.py", tmp_path)
    assert code == exits.KEEP
    reasons = record["decision"]["reasons"]
    assert (reasons[0]["gate"], reasons[0]["kind"]) == ("recovery", "requirement not met")
    assert "does not restore the random state" in reasons[0]["text"]
    assert {r["gate"] for r in reasons[1:]} == {"precision", "same_trajectory"}
    assert "float64" in next(r["text"] for r in reasons if r["gate"] == "precision")
    recovery = record["items"]["operations"]["facts"]["recovery"]
    assert recovery["not_restored"] == ["rng"]
    assert recovery["restored"]["model"] and recovery["restored"]["optimizer"]


@pytest.mark.full
@pytest.mark.clients
def test_minilm_with_its_real_weights_proceeds(tmp_path: Path) -> None:
    code, record = run(EXAMPLES / "minilm.py", tmp_path, timeout_s=1800)
    assert record["decision"]["reasons"][0]["kind"] == "met", record["decision"]["reasons"]
    assert code == exits.PROCEED
    assert record["items"]["correctness"]["facts"]["layers"]["first_divergent"] is None
    assert record["items"]["execution"]["facts"]["host_operators"] == []
    assert record["items"]["execution"]["facts"]["graphs"]["graphs"] == 1
