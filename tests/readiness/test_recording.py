"""Ways of watching: operators, layers, precision, buckets, times."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from neuron_readiness.adapters import adapter_for
from neuron_readiness.evidence import StageResult
from neuron_readiness.pilot import Case, Pilot
from neuron_readiness.recording import (
    buckets,
    divergence,
    graphs,
    hard,
    precision,
    task,
    timing,
    turns,
)
from neuron_readiness.recording.operators import OperatorRecorder
from neuron_readiness.stages import correctness, execution
from neuron_readiness.workload import Workload, on_path, pair, path_name


def pilot_of(model: Any, cases: list[Case], **parts: Any) -> Pilot:
    """A pilot from objects instead of a file."""
    module = ModuleType("pilot")
    module.__dict__.update(
        model=lambda: model() if isinstance(model, type) else model,
        inputs=lambda split: cases if split == "requests" else [],
        **parts,
    )
    return Pilot(module, Path("pilot.py"))


def test_operators_are_counted_by_phase_and_line() -> None:
    recorder = OperatorRecorder("cpu", lambda: None, timed=True)
    with recorder:
        with recorder.phase("data"):
            x = torch.ones(4, 4) + 1
        y = [x @ x for _ in range(3)]
        z = y[0].t()
    uses = {(u.overload, u.phase): u for u in recorder.uses.values()}
    assert uses["aten::mm", "device"].count == 3
    assert uses["aten::mm", "device"].bytes == 3 * 3 * 64
    assert uses["aten::add.Tensor", "data"].count == 1
    assert uses["aten::t", "device"].place == "view" and uses["aten::t", "device"].bytes == 0
    assert Path(__file__).name in uses["aten::mm", "device"].line
    assert recorder.dtypes == {"float32": 5}
    assert z.shape == (4, 4)


def test_what_crosses_between_host_and_device_is_transfer() -> None:
    recorder = OperatorRecorder("meta", lambda: None)
    with recorder:
        x = torch.ones(4).to("meta")
        _ = x + 1
        _ = torch.ones(2) + 1
    uses = {(u.overload, u.place): u for u in recorder.uses.values()}
    assert uses["aten::_to_copy", "transfer"].transferred_bytes == 16
    assert ("aten::add.Tensor", "device") in uses
    assert ("aten::add.Tensor", "host") in uses


def test_what_is_copied_for_the_record_is_no_work_of_the_pilot() -> None:
    case = Case("one", (torch.ones(2, 4),))
    parts = {"preprocess": lambda x: ((x * 2,), {})}
    workload = Workload(pilot_of(Layers, [case], **parts), adapter_for("cpu"))
    rows = execution._observe(workload, case)
    assert [r["overload"] for r in rows if r["phase"] == "data"] == ["aten::mul.Tensor"]
    assert "aten::clone" not in {r["overload"] for r in rows}


def test_bytes_moved_are_those_of_every_phase() -> None:
    case = Case("one", (torch.ones(2, 4),))
    workload = Workload(pilot_of(Layers, [case]), adapter_for("neuron"))
    rows = execution._observe(workload, case)
    moved = sum(r["transferred_bytes"] for r in rows)
    assert moved == execution._summary(rows)["transferred_bytes"] == 2 * 4 * 4  # the input


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(9)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("broken", [0, 4, 8])
def test_the_first_divergent_layer_is_found_and_told_from_inherited_ones(broken: int) -> None:
    case = Case("one", (torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),))
    cpu = adapter_for("cpu")
    device, reference = pair(pilot_of(Layers, [case]), cpu, cpu)
    with torch.no_grad():
        device.model.layers[broken].bias += 0.1
    result = StageResult("correctness", "")
    divergence.examine(result, device, reference, [case], 400)
    facts = result.facts["layers"]
    assert (facts["first_divergent"], facts["first_divergent_case"]) == (f"layers.{broken}", "one")
    [row] = facts["cases"]
    assert row["origin"] == "it introduces the difference"
    assert row["probes"] <= 5  # of nine layers: a bisection
    assert [r["within"] for r in result.ledgers["layers"]][:broken] == [True] * broken


def test_equal_models_have_no_divergent_layer() -> None:
    case = Case("one", (torch.ones(2, 4),))
    cpu = adapter_for("cpu")
    result = StageResult("correctness", "")
    divergence.examine(result, *pair(pilot_of(Layers, [case]), cpu, cpu), [case], 3)
    assert result.facts["layers"]["first_divergent"] is None
    assert result.facts["layers"]["compared"] == 3  # the limit
    assert result.findings == []


class LongWay(torch.nn.Module):
    """Long requests go through a layer that others never reach."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far, self.last = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.near(x)
        return self.last(self.far(x) if len(x) > 3 else x)


@pytest.mark.parametrize(("hard_case", "severity"), [(False, "gap"), (True, "note")])
def test_a_layer_that_only_some_cases_reach_is_named_with_them(
    hard_case: bool, severity: str
) -> None:
    cases = [Case("short", (torch.ones(2, 4),)), Case("long", (torch.ones(5, 4),), hard=hard_case)]
    cpu = adapter_for("cpu")
    device, reference = pair(pilot_of(LongWay, cases), cpu, cpu)
    with torch.no_grad():
        device.model.far.weight += 0.1
    result = StageResult("correctness", "")
    divergence.examine(result, device, reference, cases, 400)
    short, long = result.facts["layers"]["cases"]
    assert (short["first_divergent"], long["first_divergent"]) == (None, "far")
    assert result.facts["layers"]["divergent_cases"] == ["long"]
    [found] = result.findings
    assert (found.where, found.severity) == ("case long", severity) and "far" in found.text
    assert {r["case"] for r in result.ledgers["layers"]} == {"short", "long"}


class Clips(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.clip = torch.nn.Linear(4, 4), torch.nn.Hardtanh(50.0, 60.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.clip(self.first(x))


def test_a_layer_that_diverges_and_is_hidden_by_later_ones_is_told() -> None:
    case = Case("one", (torch.ones(2, 4),))
    cpu = adapter_for("cpu")
    device, reference = pair(pilot_of(Clips, [case]), cpu, cpu)
    with torch.no_grad():
        device.model.first.bias += 0.1
    result = StageResult("correctness", "")
    divergence.examine(result, device, reference, [case], 400)
    [row] = result.facts["layers"]["cases"]
    assert row["first_divergent"] == "first" and "within their tolerance again" in row["origin"]


def test_layers_of_too_many_cases_are_a_stated_choice() -> None:
    same = [Case(f"same-{i}", (torch.ones(2),)) for i in range(divergence.MOST)]
    other = [Case("long", (torch.ones(9),)), Case("hard", (torch.ones(2),), hard=True)]
    chosen, left = divergence.choose([*same, *other], {f"same-{divergence.MOST - 1}"})
    names = [c.name for c in chosen]
    assert names[:4] == [f"same-{divergence.MOST - 1}", "same-0", "long", "hard"]
    assert len(chosen) == divergence.MOST and len(left) == 2
    assert divergence.choose(same, set()) == (same, [])


def test_layers_of_a_training_step_are_compared_from_the_same_weights() -> None:
    def step(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    case = Case("batch", (torch.ones(2, 4),), train=True)
    cpu = adapter_for("cpu")
    device, reference = pair(pilot_of(Layers, [], train_step=step), cpu, cpu)
    before = {n: t.clone() for n, t in reference.parameters().items()}
    result = StageResult("correctness", "")
    divergence.examine(result, device, reference, [case], 400)
    [row] = result.facts["layers"]["cases"]
    assert (row["group"], row["compared"], row["first_divergent"]) == ("train", 9, None)
    assert all(torch.equal(t, before[n]) for n, t in reference.parameters().items())
    with torch.no_grad():
        device.model.layers[4].bias += 0.1
    divergence.examine(result, device, reference, [case], 400)
    assert result.facts["layers"]["first_divergent"] == "layers.4"


def test_precision_is_measured() -> None:
    rows = {r["dtype"]: r for r in precision.probe("cpu", ["float64", "float32", "bfloat16"])}
    assert [rows[n]["add_bits"] for n in ("float64", "float32", "bfloat16")] == [53, 24, 8]
    assert not any(r["reduced"] for r in rows.values())


def test_float64_on_the_device_is_seen_as_float32() -> None:
    [row] = precision.probe("neuron", ["float64"])
    assert row["reduced"] and row["add_bits"] == 24


def test_hard_cases_are_derived_from_floating_inputs_only() -> None:
    x = torch.tensor([1.0, 3.0])
    cases = hard.derive([Case("ids", (torch.tensor([1]),)), Case("x", (x,), {"n": 2})])
    values = {c.name: c.args[0].tolist() for c in cases}
    assert values["x (large values)"] == [1e4, 3e4]
    assert values["x (tied values)"] == [2.0, 2.0]
    assert all(c.hard and c.kwargs == {"n": 2} for c in cases)


def test_hard_cases_are_derived_for_each_shape_within_a_bound() -> None:
    same = [Case(f"same-{i}", (torch.ones(2),)) for i in range(2)]
    cases = hard.derive([*same, *(Case(f"long-{i}", (torch.ones(9 + i),)) for i in range(5))])
    names = [c.name.split(" ")[0] for c in cases]
    assert list(dict.fromkeys(names)) == ["same-0", "long-0", "long-1", "long-2"]
    assert len(cases) == 4 * 3


def test_integers_become_equal_and_masks_stay() -> None:
    ids, mask = torch.tensor([[7, 3, 9]]), torch.tensor([[1, 1, 0]])
    [case] = hard.derive([Case("text", (ids,), {"mask": mask})])
    assert case.hard and case.name == "text (equal values)"
    assert case.args[0].tolist() == [[7, 7, 7]] and case.kwargs["mask"].tolist() == [[1, 1, 0]]
    assert hard.derive([Case("one", (torch.tensor([1]), torch.tensor([True, False])))]) == []


def test_flips_are_told_with_their_margin() -> None:
    reference = torch.tensor([[0.5, 0.499, 0.1], [0.9, 0.1, 0.0]])
    device = torch.tensor([[0.498, 0.499, 0.1], [0.9, 0.1, 0.0]])
    case = Case("one")
    pilot = pilot_of(None, [case], scores=lambda o: o)
    facts = task.examine(pilot, [case], {"one": (device, reference)})
    assert (facts["decisions"], facts["flips"], facts["order_changes"]) == (2, 1, 1)
    [flip] = facts["flipped"]
    assert (flip["reference"], flip["device"]) == (0, 1)
    assert flip["margin"] == pytest.approx(0.001, rel=1e-3)


def test_decisions_by_threshold() -> None:
    case = Case("one")
    pilot = pilot_of(None, [case], threshold=0.5)
    facts = task.examine(pilot, [case], {"one": (torch.tensor([0.4]), torch.tensor([0.6]))})
    assert facts["flips"] == 1 and facts["flipped"][0]["margin"] == pytest.approx(0.1)


def test_ties_of_the_reference_may_change_places() -> None:
    case = Case("one")
    pilot = pilot_of(None, [case], decide=lambda o: o.amax(-1) > 0, scores=lambda o: o)
    outputs = {"one": (torch.tensor([[1.0, 1.1]]), torch.tensor([[1.0, 1.0]]))}
    assert task.examine(pilot, [case], outputs)["order_changes"] == 0


def test_a_metric_outside_its_tolerance_fails() -> None:
    case = Case("one")
    parts = {"task_metric": lambda outputs, cases: float(outputs[0])}
    pilot = pilot_of(None, [case], **parts, tolerances={"metric": {"atol": 0.5}})
    outputs = {"one": (torch.tensor(1.0), torch.tensor(2.0))}
    facts = task.examine(pilot, [case], outputs)
    assert facts["metric_failed"] == 1
    assert facts["metric"]["metric"]["difference"] == 1.0


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x + self.seen


class Draws(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + next(_drawn)


_drawn = itertools.count()


@pytest.mark.parametrize(("model", "said"), [(Counts, "changes seen"), (Draws, "chance, or state")])
def test_state_that_a_request_leaves_is_told_from_chance(model: type, said: str) -> None:
    case = Case("one", (torch.ones(2),))
    result = StageResult("correctness", "")
    workload = Workload(pilot_of(model, [case]), adapter_for("cpu"))
    assert correctness._repeatability(result, workload, case) is False
    [fault] = result.faults
    assert fault.kind == "nondeterministic" and said in fault.text
    assert ("a forward pass changes" in fault.text) == (model is Counts)


def test_decisions_without_scores_say_nothing_of_order_and_margins() -> None:
    case = Case("one", (torch.ones(2),))
    pilot = pilot_of(Layers, [case], decide=lambda output: output.argmax(-1))
    outputs = {"one": (torch.eye(2), torch.eye(2))}
    said = correctness._decided(task.examine(pilot, [case], outputs))
    assert said == "decisions: 0 of 2 flip"


def ledger(lengths: list[int], frequencies: list[float], costs: list[float]) -> list[dict]:
    return [
        {
            "family": f"[{n}]",
            "dims": [[1, n]],
            "frequency": f,
            "seconds": {"wall": [c] * 5, "cpu": [c] * 5},
            "compiles": 2,
            "compile_seconds": 1.0,
        }
        for n, f, c in zip(lengths, frequencies, costs, strict=True)
    ]


def test_buckets_are_the_cheapest_split() -> None:
    costs = [1.0, 1.5, 4.0, 4.2, 9.0]
    frequencies = [5.0, 1.0, 3.0, 2.0, 1.0]
    rows = ledger([1, 2, 3, 4, 5], frequencies, costs)
    exact = sum(f * c for f, c in zip(frequencies, costs, strict=True))
    options = buckets.propose(rows)["options"]
    assert [o["buckets"] for o in options] == [1, 2, 3, 4]
    for option in options:
        best = min(
            sum(f * costs[next(e for e in (*cut, 4) if e >= i)] for i, f in enumerate(frequencies))
            for cut in itertools.combinations(range(4), option["buckets"] - 1)
        )
        assert option["extra_cost"]["value"] == pytest.approx(best / exact - 1)
        assert option["compiles_saved"] == 2 * (5 - option["buckets"])
        assert option["boundaries"][-1] == "[5]"


def test_padding_is_suggested_only_where_it_takes_less_time_in_all() -> None:
    dear = buckets.propose(ledger([1, 64], [1, 1], [0.001, 0.02]))  # saves 1 s, adds 9.5 ms each
    assert dear["requests"] == 1000
    assert dear["suggested"] is None
    assert dear["options"][0]["break_even"] == pytest.approx(1 / 0.0095)
    cheap = buckets.propose(ledger([1, 64], [1, 1], [0.0010, 0.0012]))
    assert cheap["suggested"] == cheap["options"][0]
    much = buckets.propose(ledger([1, 64], [50_000, 50_000], [0.0010, 0.0012]))
    assert much["suggested"] is None  # the same shapes, where they are seen often
    faster = buckets.propose(ledger([1, 64], [50_000, 50_000], [0.0012, 0.0010]))
    assert faster["suggested"] is not None and faster["suggested"]["break_even"] is None


def uneven(costs: list[float], seed: int, clocks: tuple[str, ...]) -> list[dict]:
    """A ledger whose rounds each run at another speed, of up to ten times, on ``clocks``; on the
    wall every tenth step waits for somebody else, too."""
    draw = random.Random(seed)
    rows = ledger([2**i for i in range(len(costs))], [1.0] * len(costs), costs)
    for number in range(21):
        slow = 1 + 9 * draw.random()
        for row, cost in zip(rows, costs, strict=True):
            for clock in clocks:
                wait = 0.05 if clock == "wall" and draw.random() < 0.1 else 0.0
                row["seconds"][clock] = [*row["seconds"][clock][:number], cost * slow + wait]
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_a_loaded_machine_gives_no_nonsense(seed: int) -> None:
    costs = [0.0010, 0.0011, 0.0012, 0.0040]
    truth = buckets.propose(ledger([1, 2, 4, 8], [1.0] * 4, costs))["options"]
    found = buckets.propose(uneven(costs, seed, ("wall", "cpu")))["options"]
    for option, exact in zip(found, truth, strict=True):
        for clock, share in option["by_clock"].items():
            assert share["value"] > -0.05, clock  # a larger shape never is cheaper
            if share["tellable"] and option["boundaries"] == exact["boundaries"]:
                error = abs(share["value"] - exact["extra_cost"]["value"])
                assert error <= 2 * share["noise"] + 0.02, clock


def test_what_cannot_be_told_is_said_and_suggests_nothing() -> None:
    rows = ledger([1, 64], [1, 1], [0.001, 0.001])
    rows[1]["seconds"]["wall"] = [0.0001, 0.05, 0.0002, 0.03, 0.0001]
    found = buckets.propose(rows)
    [option] = found["options"]
    assert not option["extra_cost"]["tellable"] and option["break_even"] is None
    assert option["said"].startswith("too noisy to tell")
    assert found["suggested"] is None and found["undecided"]
    # The processor's time tells, where the process does the work itself.
    by_work = buckets.propose(rows, host_computes=True)
    assert by_work["options"][0]["extra_cost"]["clock"] == "cpu"
    assert by_work["suggested"] is not None and not by_work["undecided"]


def test_steps_are_timed_in_turns() -> None:
    order: list[str] = []
    found = turns.in_turns([lambda: order.append("a"), lambda: order.append("b")], 3, 2, 60.0)
    assert "".join(order) == "baabba"
    assert [len(f[c]) for f in found for c in ("wall", "cpu")] == [3] * 4
    turns.in_turns([lambda: order.append("c")], 9, 2, 0.0)
    assert order.count("c") == 2  # the least, however little time there is
    assert turns.interval([float(n) for n in range(1, 22)]) == (11.0, 6.0, 16.0)
    assert turns.interval([5.0, 1.0, 9.0, 2.0, 3.0]) == (3.0, 1.0, 9.0)
    assert not turns.added([0.0] * 5, [1.0] * 5, "cpu").tellable  # a clock that does not tick
    assert turns.added([0.0] * 5, [1.0] * 5, "cpu").told()["noise"] is None


def test_shapes_that_vary_on_their_own_share_no_bucket() -> None:
    rows = ledger([1, 2], [1, 1], [1, 1])
    rows[0]["dims"], rows[1]["dims"] = [[1, 8]], [[2, 4]]
    assert "more than one dimension" in buckets.propose(rows)["why_not"]
    assert buckets.propose(rows[:1])["options"] == []


def test_summary_of_times() -> None:
    facts = timing.summary([float(n) for n in range(1, 101)])
    assert (facts["p50_s"], facts["p95_s"], facts["p99_s"]) == (50.0, 95.0, 99.0)
    assert math.isnan(timing.summary([])["p50_s"])


class Breaks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            y = y * 2
        return y


def test_a_graph_break_is_told_with_its_line() -> None:
    case = Case("one", (torch.ones(2),))
    workload = Workload(pilot_of(Breaks, [case]), adapter_for("cpu"))
    facts = graphs.examine(workload, None, [case], [], {"backend": "eager"})
    assert facts["failure"] is None and facts["difference"] == 0.0
    assert facts["graphs"] == 2 and len(facts["breaks"]) == 1
    assert Path(__file__).name in facts["breaks"][0]["line"]
    assert facts["breaks"][0]["cases"] == ["one"]


class RareBreak(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(x) < 4 or x.sum() > 0 else x


def test_a_break_that_only_rare_requests_meet_is_told_with_them() -> None:
    cases = [Case("short", (torch.ones(2),), frequency=9), Case("long", (torch.ones(5),))]
    workload = Workload(pilot_of(RareBreak, cases), adapter_for("cpu"))
    facts = graphs.examine(workload, None, cases, [], {"backend": "eager"})
    assert facts["cases"] == ["long", "short"]
    [found] = facts["breaks"]
    assert found["cases"] == ["long"]


def test_a_compiler_that_computes_something_else_is_seen() -> None:
    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *a: [t + 1 if isinstance(t, torch.Tensor) else t for t in graph(*a)]

    case = Case("one", (torch.ones(2, 4),))
    workload = Workload(pilot_of(Layers, [case]), adapter_for("cpu"))
    facts = graphs.examine(workload, None, [case], [], {"backend": wrong})
    assert facts["failure"] is None
    assert (facts["outside"], facts["outside_cases"]) == (1, ["one"])
    assert facts["difference"] == pytest.approx(1.0)


def test_what_eager_computes_equally_wrong_is_no_fault_of_compiling() -> None:
    def wrong(graph: Any, inputs: Any) -> Any:
        return lambda *a: [t + 1 if isinstance(t, torch.Tensor) else t for t in graph(*a)]

    case = Case("one", (torch.ones(2, 4),))
    cpu = adapter_for("cpu")
    device, reference = pair(pilot_of(Layers, [case]), cpu, cpu)
    with torch.no_grad():
        device.model.layers[8].bias += 0.1
    same = graphs.examine(device, reference, [case], [], {"backend": "eager"})
    assert (same["difference"], same["outside"], same["shared"]) == (0.0, 0, 1)
    worse = graphs.examine(device, reference, [case], [], {"backend": wrong})
    assert (worse["outside"], worse["shared"]) == (1, 0)


def test_a_batch_is_compiled_with_its_backward_pass() -> None:
    case = Case("batch", (torch.ones(2, 4),), train=True)
    parts = {"loss": lambda output, x: output.square().mean()}
    workload = Workload(pilot_of(Layers, [], **parts), adapter_for("cpu"))
    facts = graphs.examine(workload, None, [], [case], {"backend": "aot_eager"})
    assert facts["failure"] is None and facts["outside"] == 0
    assert facts["cases"] == ["batch"] and facts["difference"] == 0.0


def test_what_is_given_as_compile_is_the_path_that_is_timed() -> None:
    case = Case("one", (torch.ones(2, 4),))
    cpu = adapter_for("cpu")
    eager = pilot_of(Layers, [case])
    assert eager.compiles is None and path_name(eager, cpu) == "eager"
    assert pilot_of(Layers, [case], compile=False).compiles is None
    seen: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph

    compiled = pilot_of(Layers, [case], compile={"backend": backend})
    assert path_name(compiled, cpu).startswith("torch.compile(backend=")
    on_path(compiled, cpu, compiled=False).request(case)
    assert seen == []
    on_path(compiled, cpu).request(case)
    assert len(seen) == 1
    torch._dynamo.reset()


def test_capture_failures_are_told_from_lowering_failures() -> None:
    case = Case("one", (torch.ones(2),))
    workload = Workload(pilot_of(Breaks, [case]), adapter_for("cpu"))
    capture = graphs.examine(workload, None, [case], [], {"backend": "eager", "fullgraph": True})
    assert capture["failure"] == "capture"

    def refuses(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no rule for this graph")

    lowering = graphs.examine(workload, None, [case], [], {"backend": refuses})
    assert lowering["failure"] == "lowering"
    assert lowering["outside"] is None  # nothing that could be right or wrong
    assert "no rule for this graph" in lowering["error"]
