"""Gates: from facts to a decision, its reasons, its claim and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuron_readiness import exits
from neuron_readiness.gates.decide import decide
from neuron_readiness.gates.table import Gate, GateError, changed, load


def gate(level: str, **more: Any) -> Gate:
    entries = {"measure": "a.count", "op": "==", "limit": 0, "claim": "none is left"}
    return Gate(name=f"g-{level}", level=level, **{**entries, **more})


def items(facts: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    status = "open" if facts is None else "done"
    return {"a": {"status": status, "facts": facts or {}, "findings": [], "reason": "", **more}}


@pytest.mark.parametrize(
    ("level", "facts", "verdict"),
    [
        ("require", {"count": 0}, "proceed"),
        ("require", {"count": 1}, "keep"),
        ("require", None, "continue"),
        ("expect", {"count": 1}, "continue"),
        ("expect", None, "continue"),
        ("require", {"count": [1, 2]}, "keep"),  # a list counts its entries
        ("require", {"count": []}, "proceed"),
        ("require", {"count": "nan"}, "keep"),  # a NaN is never within a limit
    ],
)
def test_verdict(level: str, facts: dict[str, Any] | None, verdict: str) -> None:
    assert decide([gate(level)], items(facts), [], "x")["verdict"] == verdict


@pytest.mark.parametrize(
    "gates",
    [
        [],
        [gate("report"), gate("off")],
        [gate("require", when="a.trains")],
        [gate("require", measure="a.unmeasured", open="ignore")],
    ],
)
def test_without_a_gate_that_decides_nothing_is_claimed(gates: list[Gate]) -> None:
    result = decide(gates, items({"count": 0}), [], "m on d")
    assert result["verdict"] == "continue"
    assert [r["kind"] for r in result["reasons"]] == ["open"]
    assert "no requirement was judged" in result["largest_gap"]
    assert "nothing is claimed" in result["claim"]
    assert exits.exit_code(result["verdict"], []) == exits.CONTINUE
    beside = decide([*gates, gate("expect")], items({"count": 0}), [], "m on d")
    assert beside["verdict"] == "proceed"  # one that decides is enough


def test_the_worst_comes_first_and_names_its_cause() -> None:
    finding = {"text": "op z runs on the host", "where": "f.py:3", "gate": "g-expect"}
    result = decide(
        [gate("expect"), gate("require", measure="a.other")],
        items({"count": 1, "other": 2}, findings=[finding]),
        [{"kind": "hung", "text": "stage b did not end"}],
        "m on d",
    )
    assert [r["kind"] for r in result["reasons"]] == ["requirement not met", "fault", "gap"]
    assert "op z runs on the host (f.py:3)" in result["reasons"][2]["text"]
    assert result["largest_gap"] == result["reasons"][0]["text"]
    assert "m on d" in result["claim"] and "g-require" in result["claim"]


def test_a_gate_whose_condition_is_absent_does_not_apply() -> None:
    conditional = gate("require", when="a.trains")
    [row] = decide([conditional], items({"count": 1, "trains": False}), [], "x")["gates"]
    assert row["outcome"] == "not-applicable"
    [row] = decide([conditional], items(None), [], "x")["gates"]
    assert row["outcome"] == "open"  # the item that would tell did not run
    [row] = decide([conditional], items({"count": 1, "trains": True}), [], "x")["gates"]
    assert row["outcome"] == "failed"


def test_faults_alone_forbid_to_proceed() -> None:
    result = decide([gate("require")], items({"count": 0}), [{"kind": "nan", "text": "NaN"}], "x")
    assert result["verdict"] == "continue"


def test_a_pilot_that_never_ran_has_no_gaps_to_name() -> None:
    fault = [{"kind": "pilot-raised", "text": "SyntaxError"}]
    never = decide([gate("require")], items(None), fault, "x", ran=False)
    assert never["verdict"] == "continue"  # the exit code is the fault's
    assert never["title"] == "The pilot did not run: nothing is claimed"
    part = decide([gate("require")], items(None), fault, "x", ran=True)
    assert part["title"] == "Continue on named gaps"
    unasked = decide([gate("require")], items(None), [], "x", ran=False)
    assert unasked["title"] == "Continue on named gaps"  # it was not to run


def test_a_claim_says_what_it_leaves_out() -> None:
    limits = ["the pilot is simplified: two layers", "times are not the accelerator's."]
    claim = decide([gate("require")], items({"count": 0}), [], "m on d (torch 2)", limits)["claim"]
    assert claim.startswith("For m on d (torch 2): 1 of 1")
    assert claim.endswith("two layers. Times are not the accelerator's.")


def test_a_gate_over_no_case_at_all_is_open() -> None:
    [row] = decide([gate("require")], items({"count": None}), [], "x")["gates"]
    assert row["outcome"] == "open"


def test_a_pilot_changes_gates_and_adds_its_own() -> None:
    own = {"measure": "a.b", "op": "<=", "limit": 1, "level": "require", "claim": "few"}
    table = {g.name: g for g in changed(load(), {"hard_cases": {"level": "require"}, "own": own})}
    assert table["hard_cases"].level == "require" and table["own"].limit == 1
    with pytest.raises(GateError, match="levle"):
        changed(load(), {"hard_cases": {"levle": "off"}})
    with pytest.raises(GateError, match="missing entries"):
        changed(load(), {"other": {"level": "off"}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "version is 2"),
        ("version = ", "Invalid value"),
        ("version = 1\n[gates.a]\nmeasure = 'a.b'", "missing entries"),
        (
            "version = 1\n[gates.a]\nmeasure='a.b'\nop='~'\nlimit=0\nlevel='off'\nclaim='c'",
            "op '~'",
        ),
    ],
)
def test_a_malformed_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gates.toml"
    path.write_text(text)
    with pytest.raises(GateError, match=message):
        load(path)


def test_every_default_gate_reads_a_stage_of_the_record() -> None:
    from neuron_readiness.stages import BY_NAME

    assert {g.measure.split(".")[0] for g in load()} <= set(BY_NAME)
    assert len({g.name for g in load()}) == len(load())


def test_exit_codes_are_distinct_and_faults_come_first() -> None:
    codes = [*exits.FAULTS.values(), *exits.DECISIONS.values(), exits.USAGE, exits.INTERRUPTED]
    assert len(set(codes)) == len(codes)
    assert exits.exit_code("keep", ["nan", "disk-full"]) == exits.FAULTS["disk-full"]
    assert exits.exit_code("keep", []) == exits.KEEP
