"""Devices that are not here, and devices that can tell only some things."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neuron_readiness.adapters import accelerator, adapter_for, neuron


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "xpu", "no-such-device"])
def test_an_absent_device_says_why_and_can_be_asked_everything(device: str, tmp_path: Path) -> None:
    adapter = adapter_for(device)
    if adapter.absent() is None:
        pytest.skip(f"this machine has {device}")
    assert adapter.absent()
    adapter.reset_peak_memory()
    adapter.clear_tracking()
    adapter.memory()
    assert adapter.host_operators() is None and adapter.compile_events() is None
    assert adapter.stands_in() == ""
    assert adapter.route()[1]
    adapter.cache_environment(tmp_path)
    if device != "no-such-device":  # what is known without the device
        assert adapter.identity()["backend package"] == f"torch {torch.__version__}"


def test_a_torch_without_cuda_is_told_from_a_machine_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    adapter = adapter_for("cuda")
    assert adapter.route() == (False, f"torch {torch.__version__} is built without CUDA and ROCm")
    assert adapter.identity()["lineage"] == "none"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert adapter.route()[0] is None and adapter.identity()["runtime"] == "CUDA 13.0"


def module(**functions: Any) -> SimpleNamespace:
    return SimpleNamespace(is_available=lambda: True, **functions)


def test_capabilities_are_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise AssertionError("not compiled in")

    found = module(memory_allocated=lambda: 10, max_memory_allocated=refuses)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: found)
    adapter = adapter_for("xpu")
    assert adapter.memory() == {"allocated": 10}
    found.max_memory_allocated = lambda: 30
    found.mem_get_info = lambda: (70, 100)
    assert adapter.memory() == {"allocated": 10, "peak": 30, "capacity": 100}
    adapter.synchronize()  # which this module does not have


def test_mps_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module(current_allocated_memory=lambda: 5)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: found)
    assert adapter_for("mps").memory() == {"allocated": 5}


def test_the_driver_is_the_kernel_module_that_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "neuron").mkdir()
    (tmp_path / "neuron" / "version").write_text("2.21.37.0\n")
    monkeypatch.setattr(accelerator, "_MODULES", tmp_path)
    assert accelerator.driver("nvidia", "neuron") == "neuron 2.21.37.0"
    assert accelerator.driver("nvidia") is None


class Vendor(SimpleNamespace):
    """As much of a native package as its documentation names: lists of operators, no more."""


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch) -> Any:
    package = Vendor(
        __version__="2.33.0",
        __file__="/nowhere/torch_neuronx/__init__.py",
        get_fallback_ops=lambda: ["aten::histc", "sort"],
        get_executed_ops=lambda: ["aten::add.Tensor"],
        clear_op_tracking=lambda: None,
    )
    for name in [n for n in sys.modules if n.startswith("torch_neuronx.")]:
        monkeypatch.delitem(sys.modules, name)  # ours, which the vendor's package has not
    monkeypatch.setitem(sys.modules, "torch_neuronx", package)
    owners = {"torch_neuronx": ["torch-neuronx"]}
    monkeypatch.setattr(neuron.importlib.metadata, "packages_distributions", lambda: owners)
    return adapter_for("neuron")


def test_the_vendors_native_package_is_told_and_asked_what_it_documents(vendors: Any) -> None:
    assert vendors.lineage()[0] == "native"
    assert vendors.route()[0] is False  # 2.33.0 is the SDK's version and none of the package's
    assert [h.overload for h in vendors.host_operators()] == ["aten::histc", "aten::sort"]
    assert vendors.host_operators()[0].count is None  # it says that, not how often
    assert vendors.device_operators() == {"aten::add.Tensor"}
    assert vendors.compile_events() is None and vendors.supports("aten::add.Tensor") is None
    assert vendors.stands_in() == ""


def test_the_older_product_with_the_same_name_is_told(
    vendors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    assert vendors.lineage()[0] == "xla-era"
    supported, why = vendors.route()
    assert supported is False and "native package family" in why


def test_two_owners_of_one_name_are_unclear(vendors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"torch_neuronx": ["torch-neuronx", "torchneuron"]}
    monkeypatch.setattr(neuron.importlib.metadata, "packages_distributions", lambda: both)
    assert vendors.lineage()[0] == "unclear" and vendors.route()[0] is False


@pytest.mark.parametrize(
    ("package", "version", "python", "supported"),
    [
        ("2.13.3.0.1", "2.13.0+cpu", "3.12.4", True),
        ("2.14.3.0.1", "2.14.0", "3.14.0", True),
        ("2.14.3.0.1", "2.13.0", "3.12.4", False),
        ("2.13.3.0.1", "2.13.0", "3.11.7", False),
        ("2.9.0.2.15", "2.13.0", "3.12.4", False),
        ("2.15.3.0.1", "2.15.0", "3.13.0", None),
    ],
)
def test_the_vendors_documented_families(
    package: str, version: str, python: str, supported: bool | None
) -> None:
    found, why = neuron._native_route(package, version, python, "x86_64")
    assert found is supported
    assert package in why and "release notes of Neuron 2.33" in why
    assert neuron._native_route(package, version, python, "aarch64")[0] is (
        None if supported is None else False
    )


def test_a_changed_source_of_the_backend_is_another_backend(tmp_path: Path) -> None:
    from neuron_readiness.adapters.neuron import _digest

    (tmp_path / "a.py").write_text("x = 1\n")
    before = _digest(tmp_path)
    (tmp_path / "a.pyc").write_text("no source")
    assert _digest(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert _digest(tmp_path) != before
