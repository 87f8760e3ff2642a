"""README.md keeps its word: its code runs on the device, its commands and names exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from support import output_of, run_python
from test_docs import broken_links
from torch_neuronx import cli, config, plugins
from torch_neuronx.compiler import overloads

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()


def blocks(language: str) -> list[str]:
    """Fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Lines of the shell blocks, without their comments."""
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


EXAMPLE, COMPILED, TRACKING, RULE = blocks("python")


def test_example_runs_on_the_device_without_fallback() -> None:
    assert len(EXAMPLE.splitlines()) == 5
    checks = """
import math
assert math.isfinite(loss.item()) and loss.item() > 0
assert model.weight.grad.device.type == "neuron" and model.weight.grad.abs().sum() > 0
"""
    code = EXAMPLE + TRACKING.replace("torch_neuronx.clear_op_tracking()\n", "")
    report = "print(torch_neuronx.get_executed_ops(), torch_neuronx.get_fallback_ops())\n"
    printed = output_of(code + report + checks, TORCH_NEURONX_FALLBACK="error").splitlines()
    assert "device='neuron:0'" in "".join(printed[:-1])
    assert "'aten::addmm'" in printed[-1] and printed[-1].endswith(" []")


def test_compiled_example_gives_the_same_loss() -> None:
    model, rest = EXAMPLE.splitlines()[1], EXAMPLE.splitlines()[2:]
    # Same numbers for both: one seed, and the input drawn once more from it.
    step = "\n".join(["torch.manual_seed(1)", *rest])
    code = f"""
import torch
torch.manual_seed(0)
{model}
{step}
eager = loss.item(), model.weight.grad.tolist()
model.zero_grad()
{COMPILED}
{step}
torch.testing.assert_close(loss.item(), eager[0])
torch.testing.assert_close(model.weight.grad.tolist(), eager[1])
import torch_neuronx
names = [event["name"] for event in torch_neuronx.compile_events()]
print([name for name in names if name.startswith("model_default_")])
"""
    printed = output_of(code, TORCH_NEURONX_FALLBACK="error").splitlines()
    assert len(ast.literal_eval(printed[-1])) >= 2, printed[-1]  # forward and backward


def test_tracking_names_what_fell_back_and_clears() -> None:
    setup = 'import torch\ntorch.eye(2, device="neuron").dequantize()\n'
    before, after = TRACKING.replace(
        "torch_neuronx.clear", "print({0})\ntorch_neuronx.clear"
    ).split("print({0})\n")
    show = "print(torch_neuronx.get_fallback_ops())\n"
    done = run_python(setup + before + show + after + show)
    assert done.stdout.splitlines() == ["['aten::dequantize.self']", "[]"], done.stderr
    assert "aten::dequantize.self has no lowering rule" in done.stderr
    refused = run_python(setup, TORCH_NEURONX_FALLBACK="error")
    assert refused.returncode != 0 and "TORCH_NEURONX_FALLBACK=error forbids" in refused.stderr


def test_operators_named_as_falling_back_have_no_rule() -> None:
    section = TEXT.split("\n## What is native, what falls back\n")[1].split("\n## ")[0]
    named = re.findall(r"`(aten::[\w.]+)`", section)
    packets = {name.split(".")[0] for name in overloads.table()}
    assert len(named) >= 3
    assert [name for name in named if name.split(".")[0] in packets] == []


def test_rule_is_quoted_from_the_sources() -> None:
    rules = "".join(path.read_text() for path in ROOT.glob("src/torch_neuronx/lowering/rules/*.py"))
    assert RULE in rules


def test_limits_on_numbers_are_as_said() -> None:
    code = """
import warnings
import torch
tiny = torch.tensor([1e-40]).to("neuron")
print(tiny.clone().item() > 0, (tiny * 1).item() == 0, (tiny == 0).item())
third = torch.tensor([1.0, 3.0], dtype=torch.float64, device="neuron")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        print((1 / third)[1].item() == 1 / 3)
    print(len(caught))
print((torch.ones(1, dtype=torch.complex128, device="neuron") * 0.1j).item() == 0.1j)
"""
    assert output_of(code).splitlines() == [
        "True True True", "False", "False", "1", "False"
    ]  # fmt: skip
    for choice in ({"TORCH_NEURONX_FLOAT64": "exact"}, {"TORCH_NEURONX_TARGET": "host"}):
        assert output_of(code, **choice).splitlines()[1:] == ["True", "True", "0", "False"]


def test_links_lead_somewhere() -> None:
    assert broken_links(README) == []


def test_environment_variables_are_declared() -> None:
    named = set(re.findall(r"\b(?:TORCH_NEURONX|NEURON|NKI)_[A-Z0-9_]+", TEXT))
    assert len(named) >= 8
    assert named <= config.OPTIONS.keys(), named - config.OPTIONS.keys()
    for name, value in re.findall(r"\b((?:TORCH_NEURONX|NEURON)_[A-Z0-9_]+)=(\w+)", TEXT):
        config.OPTIONS[name].parse(value)  # raises for what the option does not take


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"\bmake (?:[A-Z]+=\S+ )?([a-z][\w-]*)", "\n".join(commands()))
    named += re.findall(r"`make (?:[A-Z]+=\S+ )?([a-z][\w-]*)", TEXT)
    assert {"run", "test", "test-full", "lint"} <= set(named)
    assert set(named) <= targets, set(named) - targets


def test_commands_are_ones_that_tests_run() -> None:
    for line in commands():
        words = [w for w in line.split() if "=" not in w]
        if words[0] == "torchneuron":
            assert cli.main(words[1:]) == 0
        elif words[0] == "python":
            done = subprocess.run(
                [sys.executable, *words[1:], "--help"], cwd=ROOT, capture_output=True, timeout=120
            )
            assert done.returncode == 0, done.stderr.decode()
        else:
            assert words[0] == "make", line  # test_make_targets_exist


def test_plugins_are_those_that_discovery_knows() -> None:
    rows = re.findall(r"^\| `(\w+)`(?: \(default\))? \|", TEXT, re.MULTILINE)
    assert rows == list(plugins.CPU_PLUGINS)
