"""What leaves the process and comes back: files, pickles, safetensors, other processes."""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, output_of

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.uint32,
    torch.float8_e4m3fn,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex128,
]


def round_trip(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bytes(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [2, 3]]).to(dtype)
    for back in (round_trip(x.to("neuron")), round_trip(x, map_location="neuron")):
        assert back.device == torch.device("neuron:0") and back.dtype == dtype
        assert torch.equal(back.cpu().view(torch.uint8), x.view(torch.uint8))


def test_empty_and_zero_dimensional_tensors() -> None:
    for x in (torch.empty(0, 3), torch.tensor(5), torch.empty(0, dtype=torch.bool)):
        assert_same(round_trip(x.to("neuron")), x)
        assert_same(pickle.loads(pickle.dumps(x.to("neuron"))), x)


@pytest.mark.parametrize(
    "where",
    [
        "cpu",
        torch.device("cpu"),
        {"neuron:0": "cpu"},
        lambda storage, tag: storage.cpu() if tag == "neuron:0" else None,
    ],
)
def test_maps_to_the_host(where: Any) -> None:
    back = round_trip({"x": torch.ones(3, device="neuron")}, map_location=where)
    assert back["x"].device.type == "cpu" and torch.equal(back["x"], torch.ones(3))


@pytest.mark.parametrize(
    "where",
    ["neuron", {"cpu": "neuron:0"}, lambda storage, tag: storage.neuron(), torch.device("neuron")],
)
def test_maps_to_the_device(where: Any) -> None:
    assert_same(round_trip({"x": torch.ones(3)}, map_location=where)["x"], torch.ones(3))


def test_the_old_format_and_the_context_of_meta() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(3, device="neuron"), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert_same(torch.load(file), torch.ones(3))
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    layer.load_state_dict(nn.Linear(2, 2).to("neuron").state_dict(), assign=True)
    assert layer.weight.device.type == "neuron"
    assert layer.to_empty(device="neuron").weight.device.type == "neuron"


def test_parameters_modules_and_requires_grad() -> None:
    parameter = nn.Parameter(torch.ones(2, device="neuron"))
    back = round_trip(parameter)
    assert isinstance(back, nn.Parameter) and back.requires_grad
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("neuron")
    model(torch.randn(5, 3, device="neuron"))
    again = round_trip(model, weights_only=False)
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name].cpu(), value.cpu())
    buffer = io.BytesIO()
    pickle.dump(model, buffer)
    buffer.seek(0)
    assert pickle.load(buffer)[0].weight.device.type == "neuron"


def test_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    file = tmp_path / "model.safetensors"
    model = nn.ModuleDict({"embed": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    model["head"].weight = model["embed"].weight
    model.to("neuron")
    safetensors.save_model(model, str(file))  # finds tied weights by their addresses
    weight = model["embed"].weight.detach().cpu()
    loaded = safetensors.load_file(str(file))
    assert len(loaded) == 1 and torch.equal(next(iter(loaded.values())), weight)
    other = nn.ModuleDict({"embed": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    other["head"].weight = other["embed"].weight
    safetensors.load_model(other.to("neuron"), str(file))
    assert_same(other["head"].weight.detach(), weight)
    # The library's list of devices is closed (torch_neuronx.integrations.safetensors takes the
    # name); an index goes to torch as it is.
    with pytest.raises(Exception, match="invalid"):
        safetensors.load_file(str(file), device="neuron")
    assert next(iter(safetensors.load_file(str(file), device=0).values())).is_neuron
    data = safetensors.save({"x": torch.arange(4.0, device="neuron")[1:].contiguous()})
    assert safetensors.load(data)["x"].tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="share"):
        x = torch.zeros(4, device="neuron")
        safetensors.save_file({"a": x, "b": x.view(2, 2)}, str(file))


def test_distributed_checkpoint_of_one_process(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = nn.Linear(3, 2).to("neuron")
    expected = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    dcp.save(model.state_dict(), checkpoint_id=str(tmp_path), no_dist=True)
    state = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
    dcp.load(state, checkpoint_id=str(tmp_path), no_dist=True)
    for name, value in expected.items():
        assert_same(state[name], value)


def test_distributed_code_finds_this_device() -> None:
    from torch._utils import _get_available_device_type, _get_device_module
    from torch.distributed import distributed_c10d

    assert _get_available_device_type() == "neuron"
    assert _get_device_module("neuron") is torch.neuron
    assert distributed_c10d._get_pg_default_device is not None


SENDER = """
from multiprocessing.reduction import ForkingPickler
import torch
import torch.multiprocessing as mp

def child(queue, back, received, argument, model):
    print(argument.device, argument.tolist(), model.weight.device, flush=True)
    x, parameter = queue.get()
    print(x.device, type(parameter).__name__, parameter.requires_grad, flush=True)
    back.put(x * 2)
    x.add_(100)  # the child's own
    received.wait(120)  # shared host memory is handed over by a process that lives

if __name__ == "__main__":
    x = torch.arange(6.0, device="neuron").reshape(2, 3).t()
    context = mp.get_context("spawn")
    queue, back, received = context.Queue(), context.Queue(), context.Event()
    argument = torch.arange(3, device="neuron", dtype=torch.bfloat16)
    model = torch.nn.Linear(2, 1).to("neuron")
    process = context.Process(target=child, args=(queue, back, received, argument, model))
    process.start()
    queue.put((x, torch.nn.Parameter(x.sum(0))))
    y = back.get(timeout=120)
    received.set()
    process.join()
    print(y.device, y.tolist(), x.tolist() == (y / 2).tolist(), process.exitcode)
    try:
        ForkingPickler.dumps(torch.ones(1, device="neuron", requires_grad=True) * 2)
    except RuntimeError as error:
        print(error)
"""


def test_tensors_reach_another_process_through_host_memory(tmp_path: Path) -> None:
    (tmp_path / "sender.py").write_text(SENDER)
    text = output_of(
        f"import runpy; runpy.run_path({str(tmp_path / 'sender.py')!r}, {{}}, '__main__')"
    )
    lines = text.splitlines()
    assert lines[0] == "neuron:0 [0.0, 1.0, 2.0] neuron:0"  # arguments of the process
    assert lines[1] == "neuron:0 Parameter True"
    assert lines[2] == "neuron:0 [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]] True 0"
    assert "send tensor.detach()" in lines[3]


def test_the_pickler_of_multiprocessing_gives_a_copy() -> None:
    x = torch.arange(3.0, device="neuron", requires_grad=True)
    y = pickle.loads(ForkingPickler.dumps(x))
    assert_same(y, torch.arange(3.0).requires_grad_())
    assert y.requires_grad and y.data_ptr() != x.data_ptr()
    host = torch.arange(3.0)
    twin = pickle.loads(ForkingPickler.dumps(host))
    host.add_(1)
    assert twin.tolist() == [1, 2, 3]  # host tensors are shared, as ever
