"""A pilot whose parts are not what they must be is told which one, and what was expected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuron_readiness import protocol
from neuron_readiness.context import Context, Options
from neuron_readiness.pilot import Case, PilotError, as_case, load
from neuron_readiness.recording import task
from neuron_readiness.run.faults import classify
from neuron_readiness.stages import pilot as pilot_stage
from neuron_readiness.workload import Workload
from readiness.support import PLAIN, ROOT
from readiness.test_recording import pilot_of


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("tolerances = {'output': {'rtoll': 1}}", "rtoll"),
        ("tolerances = {'outputs': {'rtol': 1}}", "outputs"),
        ("tolerances = {'output': {'rtol': 'small'}}", "small"),
        ("accepted_fallbacks = {'aten::histc': ''}", "why running it on the host is acceptable"),
        ("accepted_fallbacks = ['aten::histc']", "why running it on the host is acceptable"),
        ("kernels = ['flash']", "custom kernels"),
        ("concurrency = 'many'", "requests in flight"),
        ("concurrency = 0", "requests in flight"),
        ("world_size = 2.5", "ranks"),
        ("loss = 3", "scalar"),
        ("train_step = 'step'", "-> loss"),
        ("gates = {'recovery': 'require'}", "requirements"),
        ("code = 'src'", "files or folders"),
        ("name = 3", "title"),
    ],
)
def test_a_part_of_another_kind_is_refused(tmp_path: Path, part: str, said: str) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(PLAIN + part + "\n")
    with pytest.raises(PilotError, match="expected") as error:
        load(path)
    assert part.split(" ")[0] in str(error.value) and said in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("5", "expected a list or a generator"),
        ("[types.SimpleNamespace(args=(), frequency='often')]", "'often'"),
        ("[types.SimpleNamespace(args=(), frequency=-1)]", "-1"),
        ("[types.SimpleNamespace(name='a', args=())] * 2", "used twice"),
        ("[]", "at least one"),
    ],
)
def test_inputs_that_are_none_are_refused(tmp_path: Path, inputs: str, said: str) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(f"import types\n{PLAIN}\ndef inputs(split):\n    return {inputs}\n")
    with pytest.raises(PilotError) as error:
        load(path).cases("requests")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"decide": lambda output: 3}, "decide returned int"),
        ({"task_metric": lambda outputs, cases: "good"}, "task_metric returned 'good'"),
        ({"task_metric": lambda outputs, cases: {"a": None}}, "expected a number"),
    ],
)
def test_what_a_part_returns_is_checked(parts: dict[str, Any], said: str) -> None:
    case = Case("one")
    with pytest.raises(PilotError) as error:
        task.examine(pilot_of(None, [case], **parts), [case], {"one": (torch.ones(1),) * 2})
    assert said in str(error.value)


def test_a_dict_that_describes_a_case_is_told_from_keyword_arguments() -> None:
    with pytest.raises(PilotError, match=r"a dict is keyword arguments.*SimpleNamespace"):
        as_case({"name": "long", "args": (1,), "frequency": 0.5}, 0, "requests")
    assert as_case({"args": 1, "input_ids": 2}, 0, "requests").kwargs == {"args": 1, "input_ids": 2}


@pytest.mark.parametrize("arguments", [(1, 2), ()], ids=["too many", "too few"])
def test_a_call_that_the_pilot_does_not_take_is_the_pilots_fault(
    tmp_path: Path, arguments: tuple[int, ...]
) -> None:
    def forward(model: None, x: int) -> int:
        return x

    standing_in: Any = SimpleNamespace(pilot=SimpleNamespace(part=lambda _: forward), callable=None)
    assert Workload.call(standing_in, (1,), {}) == 1
    with pytest.raises(TypeError) as caught:
        Workload.call(standing_in, arguments, {})
    fault = classify(caught.value, tmp_path / "pilot.py")
    assert (fault.kind, fault.side) == ("pilot-raised", "workload")


def test_a_misspelt_part_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(PLAIN + "accepted_fallback = {}\ntolerence = 1\nhelper = 2\n")
    pairs = dict(load(path).misspelt())
    assert pairs == {"accepted_fallback": "accepted_fallbacks", "tolerence": "tolerances"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("tolerance = {}", "tolerances"),
        ("def task_metrics(outputs, cases): return 1.0", "task_metric"),
        ("def postproces(output): return output", "postprocess"),
        ("def trainstep(model, optimizer, x): return 0", "train_step"),
    ],
)
def test_a_misspelt_part_costs_no_run(tmp_path: Path, written: str, meant: str) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(PLAIN + written)
    with pytest.raises(PilotError, match=f"expected `{meant}`"):
        pilot_stage.run(Context(path, Options(device="cpu"), tmp_path))


@pytest.mark.parametrize(
    "written",
    [
        "_tolerance = {}",
        "names = ['a']",  # a word of one's own, close to a short part
        "def score(output): return output\ndef scores(output): return score(output)",
        "from copy import copy as codes",
    ],
)
def test_a_helper_is_no_misspelt_part(tmp_path: Path, written: str) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(PLAIN + written)
    assert pilot_stage.run(Context(path, Options(device="cpu"), tmp_path)).facts["requests"] == 1


def test_a_gate_that_is_misspelt_costs_no_run(tmp_path: Path) -> None:
    path = tmp_path / "pilot.py"
    path.write_text(PLAIN + "gates = {'recovery': {'levle': 'require'}}\n")
    with pytest.raises(PilotError, match="levle"):
        pilot_stage.run(Context(path, Options(device="cpu"), tmp_path))


def test_the_page_lists_every_part() -> None:
    page = (ROOT / "docs" / "readiness.md").read_text()
    for name, text in protocol.OPTIONAL.items():
        assert f"| `{name}` |" in page, name
        assert text.split(":")[0].split(" (")[0].split("|")[0] in page, name
