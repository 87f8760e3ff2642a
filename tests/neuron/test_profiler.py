"""``torch.profiler`` shows operators, launches, compiles and synchronisations as ranges."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from support import output_of


def names(p: profile) -> set[str]:
    return {event.key for event in p.key_averages()}


def test_ranges_of_an_operator() -> None:
    x = torch.arange(17.0, device="neuron")
    torch.neuron.synchronize()
    with profile(activities=[ProfilerActivity.CPU]) as p:
        with record_function("my part"):
            y = torch.sinc(x * 3)
        torch.neuron.synchronize()
        y.cpu()
    seen = names(p)
    assert {"my part", "aten::mul", "aten::sinc"} <= seen
    assert {"neuron::plan aten::sinc", "neuron::launch aten::sinc"} <= seen
    assert {"neuron::synchronize", "neuron::copy_to_host"} <= seen
    (launch,) = [e for e in p.events() if e.name == "neuron::launch aten::sinc"]
    assert launch.cpu_parent.name == "aten::sinc"


def test_compilations_of_other_threads_are_seen() -> None:
    x = torch.arange(19.0, device="neuron")
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    with profile(activities=[ProfilerActivity.CPU]) as p:
        torch.logaddexp2(x, x.flip(0)).cpu()
    made = [n for n in names(p) if n.startswith(("neuron::compile", "neuron::load"))]
    assert any("logaddexp2" in n for n in made), names(p)


def test_a_second_run_compiles_nothing() -> None:
    x = torch.arange(23.0, device="neuron")
    torch.sinc(x).cpu()
    with profile() as p:
        torch.sinc(x).cpu()
    assert not [n for n in names(p) if n.startswith(("neuron::plan", "neuron::compile"))]


def test_exports(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).to("neuron")
    x = torch.ones(2, 4, device="neuron")
    model(x).sum().backward()  # first uses trace, which would fill the table
    with profile(record_shapes=True, with_stack=True, profile_memory=True, with_flops=True) as p:
        model(x).sum().backward()
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(e.get("name", "").startswith("neuron::launch") for e in trace)
    p.export_stacks(str(tmp_path / "stacks.txt"))
    table = p.key_averages(group_by_input_shape=True).table(row_limit=-1)
    assert "aten::addmm" in table
    assert p.key_averages(group_by_stack_n=2).table()


def test_schedules_and_handlers(tmp_path: Path) -> None:
    x = torch.ones(3, device="neuron")
    handler = torch.profiler.tensorboard_trace_handler(str(tmp_path))
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(schedule=plan, on_trace_ready=handler) as p:
        for _ in range(5):
            x = x + 1
            p.step()
    assert len(list(tmp_path.glob("*.json*"))) == 1


def test_every_activity_of_the_device_is_accepted() -> None:
    x = torch.ones(3, device="neuron")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        (x * 2).sum().item()
    assert "aten::mul" in names(p)
    with torch.autograd.profiler.profile() as legacy:
        (x * 2).sum().item()
    assert legacy.table()


def test_the_log_has_a_name_for_torch_logs() -> None:
    code = """
        import torch
        torch.arange(29.0, device="neuron").sin().cpu()
    """
    assert logging.getLogger("torch_neuronx.compiler.progress") is not None
    loud = output_of("import sys; sys.stderr = sys.stdout\n" + _dedent(code), TORCH_LOGS="neuron")
    assert "aten::sin: " in loud and "lowered in" in loud
    assert "aten::sin" not in output_of("import sys; sys.stderr = sys.stdout\n" + _dedent(code))


def _dedent(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)
