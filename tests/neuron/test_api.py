"""``torch.neuron`` and ``torch.accelerator``: names, devices, memory, random state, storage."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch

from support import assert_same, output_of


def test_accelerator() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == torch.neuron.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("neuron:0")
    stream.synchronize()
    with torch.accelerator.device_index(0):
        assert torch.ones(1, device="neuron").device.index == 0


def test_device_properties() -> None:
    properties = torch.neuron.get_device_properties()
    assert properties.total_memory == 24 << 30
    assert properties.name == properties.target == "trn2" and properties.index == 0
    assert properties.plugin and properties.pjrt_version and properties.platform
    for device in (None, 0, "neuron", "neuron:0", torch.device("neuron")):
        assert torch.neuron.get_device_properties(device) == properties
        name = torch.neuron.get_device_name(device)
        assert name.startswith("neuron:0 (model of a Trainium2 logical core, run by PJRT platform")
        assert torch.neuron.get_device_capability(device) == (0, 0)
        assert torch.neuron.mem_get_info(device)[1] == properties.total_memory
    assert "trn2" in torch.neuron.get_arch_list()
    assert torch.neuron.is_bf16_supported() and not torch.neuron.is_tf32_supported()
    assert torch.neuron.ipc_collect() is None
    assert torch.neuron.can_device_access_peer(0, 0) is False
    with pytest.raises(AssertionError, match=r"neuron:3.*1 neuron"):
        torch.neuron.get_device_properties(3)
    with pytest.raises(ValueError, match="Expected a neuron device"):
        torch.neuron.synchronize("cpu")


def test_default_device() -> None:
    assert torch.get_device_module() is torch.get_device_module("neuron:0") is torch.neuron
    torch.set_default_device("neuron")
    try:
        assert torch.get_default_device() == torch.device("neuron:0")
        assert torch.ones(2).is_neuron and torch.nn.Linear(1, 1).weight.is_neuron
        assert torch.tensor([1]).is_neuron and torch.rand(2).is_neuron
    finally:
        torch.set_default_device(None)
    with torch.device("neuron"):
        assert torch.zeros(1).is_neuron
    assert torch.ones(1).device.type == "cpu"
    # A bare index is the accelerator's.
    assert torch.device(0) == torch.device("neuron:0") == torch.ones(1).to(0).device


def test_generated_methods() -> None:
    x = torch.ones(2)
    assert x.neuron().is_neuron and not x.is_neuron
    assert torch.nn.Linear(2, 2).neuron().weight.is_neuron
    assert x.to("neuron:0").device == x.neuron(0).device
    assert x.untyped_storage().neuron().device.type == "neuron"


def test_events_and_streams() -> None:
    end = torch.neuron.Event()
    x = torch.ones(100, device="neuron") * 2
    end.record()
    end.synchronize()
    assert end.query()
    stream = torch.neuron.Stream()
    with torch.neuron.stream(stream):
        y = x + 1
    stream.wait_event(end)
    torch.neuron.current_stream().wait_stream(stream)
    stream.synchronize()
    assert y.sum().item() == 300


# -- Memory ---------------------------------------------------------------------------------------


def test_an_address_never_changes() -> None:
    x = torch.zeros(100, device="neuron")
    address = x.data_ptr()
    for _ in range(3):
        x.add_(1)
        x.cpu()
    x.copy_(torch.ones(100))
    assert x.data_ptr() == address
    assert address % 64 == 0


# -- Saving, loading, copying ---------------------------------------------------------------------


def test_save_and_load_both_ways(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(64, 129) for i in range(12)}
    tensors["large"] = torch.randn(600, 600)
    tensors["ints"] = torch.arange(7)
    tensors["bf16"] = torch.randn(5).bfloat16()
    on_device = {k: v.to("neuron") for k, v in tensors.items()}
    file = tmp_path / "tensors.pt"
    torch.save(tensors, file)
    for mmap in (False, True):
        for where in ("neuron", "neuron:0", torch.device("neuron")):
            assert_same_dict(torch.load(file, map_location=where, mmap=mmap), tensors)
    torch.save(on_device, file)
    assert_same_dict(torch.load(file), tensors)
    assert torch.load(file)["ints"].device == torch.device("neuron:0")
    back = torch.load(file, map_location="cpu")
    for name, value in tensors.items():
        assert torch.equal(back[name], value)


def assert_same_dict(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert_same(actual[name], value, where=name)


def test_saved_views_share_their_storage() -> None:
    x = torch.arange(12.0, device="neuron").reshape(3, 4)
    file = io.BytesIO()
    torch.save([x, x[1], x.t()], file)
    file.seek(0)
    a, b, c = torch.load(file)
    a.add_(1)
    assert_same(b, torch.arange(4.0, 8.0) + 1)
    assert_same(c, torch.arange(12.0).reshape(3, 4).t() + 1)


def test_deepcopy_and_pickle() -> None:
    x = torch.arange(12.0, device="neuron").reshape(3, 4)[1:, ::2]
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)):
        assert_same(twin, torch.arange(12.0).reshape(3, 4)[1:, ::2])
    twin = copy.deepcopy(x)
    twin.add_(1)
    assert_same(x, torch.arange(12.0).reshape(3, 4)[1:, ::2])
    parameter = torch.nn.Parameter(x)
    assert isinstance(copy.deepcopy(parameter), torch.nn.Parameter)


def test_state_dicts_and_optimizers_resume(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model.to("neuron")
    x = torch.randn(5, 4, device="neuron")

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 3)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "state.pt")
    straight = train(model, optimizer, 3)
    twin = copy.deepcopy(model)
    other = torch.optim.AdamW(twin.parameters(), lr=0.01)
    for where in ("cpu", "neuron"):
        weights, state = torch.load(tmp_path / "state.pt", map_location=where)
        twin.load_state_dict(weights)
        other.load_state_dict(state)
        assert train(twin, other, 3) == straight


def test_moving_a_module_keeps_its_parameters() -> None:
    model = torch.nn.Linear(3, 3)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("neuron")
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    before = model.weight.detach().cpu().clone()
    model(torch.ones(1, 3, device="neuron")).sum().backward()
    optimizer.step()
    assert_same(model.weight, before - 1)
    model.cpu()
    assert model.weight is parameters[0] and model.weight.device.type == "cpu"


@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.int32, torch.float16])
def test_copies_in_all_directions(source: torch.dtype, target: torch.dtype) -> None:
    value = torch.tensor([[0.0, 1.0, 2.0]]).to(source)
    expected = torch.zeros(2, 3, dtype=target).copy_(value)
    for origin in ("cpu", "neuron"):
        for destination in ("cpu", "neuron"):
            for non_blocking in (False, True):
                into = torch.zeros(2, 3, dtype=target, device=destination)
                into.copy_(value.to(origin), non_blocking=non_blocking)
                torch.neuron.synchronize()
                assert torch.equal(into.cpu(), expected)


def test_printing() -> None:
    x = torch.tensor([1.0, 2.5], device="neuron")
    assert repr(x) == "tensor([1.0000, 2.5000], device='neuron:0')"
    assert "device='neuron:0'" in repr(torch.nn.Parameter(x))
    assert f"{x[0]:.2f}" == "1.00"
    assert repr(torch.ones(0, 2, device="neuron")) == "tensor([], device='neuron:0', size=(0, 2))"


def test_reading_values() -> None:
    x = torch.tensor([[1, 2], [3, 4]], device="neuron")
    assert x.tolist() == [[1, 2], [3, 4]]
    assert int(x[1, 0]) == 3 and float(x[0, 1]) == 2.0 and bool(x[0, 0])
    assert [int(v) for v in x[0]] == [1, 2] and len(x) == 2 and 3 in x
    assert x.cpu().numpy().tolist() == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match=r"neuron.*numpy|numpy.*neuron|cpu\(\)"):
        x.numpy()


# -- Several devices ------------------------------------------------------------------------------


def test_several_devices() -> None:
    text = output_of(
        """
        import torch
        assert torch.neuron.device_count() == 2
        a = torch.arange(6.0, device="neuron:1").reshape(2, 3)
        b = a.to("neuron:0")
        print("peer", b.device, b.tolist())
        b[:, 1:].copy_(a[:, :2])
        print("strided peer", b.tolist())
        a.copy_(b.t().contiguous().view(2, 3))
        with torch.neuron.device(1):
            c = torch.ones(2, device="neuron")
            print("context", c.device, torch.neuron.current_device())
        print("left", torch.neuron.current_device())
        with torch.neuron.device_of(a):
            print("of", torch.neuron.current_device())
        torch.neuron.set_device("neuron:1")
        print("set", torch.empty(1, device="neuron").device, (c + c).device)
        torch.neuron.set_device(0)
        try:
            a + b
        except RuntimeError as error:
            print("mixed", error)
        for bad in (lambda: torch.ones(1, device="neuron:7"),
                    lambda: torch.neuron.set_device(7)):
            try:
                bad()
                print("not refused")
            except (RuntimeError, AssertionError) as error:
                print("refused", error)
        torch.manual_seed(0)
        same = torch.equal(torch.rand(4, device="neuron:0").cpu(),
                           torch.rand(4, device="neuron:1").cpu())
        print("seeded alike", same, torch.neuron.memory_allocated(1) > 0)
        print("peers", torch.neuron.can_device_access_peer(0, 1))
        layer = torch.nn.Linear(3, 2).to("neuron:1")
        layer(a).sum().backward()
        print("grad", layer.weight.grad.device)
        torch.save(a, "/dev/null")
        import io
        f = io.BytesIO(); torch.save(a, f); f.seek(0)
        print("loaded", torch.load(f).device)
        """,
        TORCH_NEURONX_NUM_DEVICES="2",
    )
    for line in (
        "peer neuron:0 [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]",
        "strided peer [[0.0, 0.0, 1.0], [3.0, 3.0, 4.0]]",
        "context neuron:1 1",
        "left 0",
        "of 1",
        "set neuron:1 neuron:1",
        "seeded alike True True",
        "peers True",
        "grad neuron:1",
        "loaded neuron:1",
    ):
        assert line in text.splitlines(), text
    assert "mixed Expected all tensors to be on the same device" in text
    assert text.count("refused") == 2 and "not refused" not in text and "neuron:7" in text


def test_a_saved_second_device_needs_a_map_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "second.pt"
    output_of(
        f"import torch; torch.save(torch.ones(2, device='neuron:1'), {str(file)!r})",
        TORCH_NEURONX_NUM_DEVICES="2",
    )
    with pytest.raises(RuntimeError, match=r"map_location"):
        torch.load(file)
    assert_same(torch.load(file, map_location="neuron:0"), torch.ones(2))
    assert torch.load(file, map_location={"neuron:1": "neuron:0"}).device.index == 0
