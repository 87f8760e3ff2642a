"""Recording memory history, and snapshots that PyTorch's memory visualiser reads."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    torch.neuron.synchronize()
    torch.empty(1, device="neuron")
    torch.neuron.empty_cache()
    yield
    torch.neuron.memory._record_memory_history(None, clear_history=True)


def entries(*actions: str) -> list[dict[str, Any]]:
    trace = torch.neuron.memory._snapshot()["device_traces"][0]
    return [e for e in trace if not actions or e["action"] in actions]


def names(frames: list[dict[str, Any]]) -> list[str]:
    return [f["name"] for f in frames]


def block_of(tensor: torch.Tensor) -> dict[str, Any]:
    segments = torch.neuron.memory._snapshot()["segments"]
    return next(
        b
        for s in segments
        for b in s["blocks"]
        if b["address"] == tensor.untyped_storage().data_ptr()
    )


def make(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="neuron")


def test_nothing_is_recorded_while_it_is_off() -> None:
    tensor = make(5000)
    assert entries() == []
    assert block_of(tensor)["frames"] == []
    assert torch.neuron.memory._allocation_traceback(tensor.data_ptr()) is None


def test_live_memory_has_the_stack_that_made_it() -> None:
    torch.neuron.memory._record_memory_history(stacks="python")
    tensor = make(5000)
    result = tensor + 1
    for live, function in ((tensor, "make"), (result, inspect.currentframe().f_code.co_name)):
        found = block_of(live)
        assert found["state"] == "active_allocated"
        assert found["requested_size"] == 5000 and found["size"] == 5120
        frame = found["frames"][0]
        assert frame["filename"] == __file__ and frame["name"] == function and frame["line"] > 0
        assert torch.neuron.memory._allocation_traceback(live.data_ptr()) == found["frames"]
    assert torch.neuron.memory._allocation_traceback(1) is None


def test_history_of_a_tensor() -> None:
    torch.neuron.memory._record_memory_history(stacks="python", clear_history=True)
    tensor = make(40 * MIB)
    address = tensor.data_ptr()
    del tensor
    torch.neuron.empty_cache()
    trace = entries()
    assert [(e["action"], e.get("addr")) for e in trace] == [
        ("segment_alloc", address),
        ("alloc", address),
        ("free_requested", address),
        ("free_completed", address),
        ("segment_free", address),
        ("snapshot", 0),
    ]
    assert all(e["size"] == 40 * MIB for e in trace[:5])
    assert "make" in names(trace[1]["frames"])
    assert inspect.currentframe().f_code.co_name in names(trace[2]["frames"])
    times = [e["time_us"] for e in trace]
    assert times == sorted(times) and times[0] > 0
    assert {e["stream"] for e in trace} == {0} and {e["pool_id"] for e in trace} == {(0, 0)}


def test_out_of_memory_is_in_the_history() -> None:
    torch.neuron.memory._record_memory_history(stacks="python", clear_history=True)
    with pytest.raises(torch.OutOfMemoryError):
        make(1 << 40)
    (oom,) = entries("oom")
    assert oom["size"] == 1 << 40
    assert oom["device_free"] == torch.neuron.mem_get_info()[0]
    assert "make" in names(oom["frames"])


def test_only_the_newest_entries_are_kept() -> None:
    torch.neuron.memory._record_memory_history(max_entries=6, stacks="python", clear_history=True)
    for size in range(1, 20):
        make(size * 1000)
    kept = entries()
    assert len(kept) == 6
    assert [e["action"] for e in kept[-4:]] == [
        "alloc",
        "free_requested",
        "free_completed",
        "snapshot",
    ]
    assert kept[-2]["size"] >= 19_000
    assert [e["time_us"] for e in kept] == sorted(e["time_us"] for e in kept)


def test_what_is_kept_can_be_chosen() -> None:
    record = torch.neuron.memory._record_memory_history
    record("state", stacks="python", clear_history=True)
    tensor = make(5000)
    assert entries() == [] and block_of(tensor)["frames"]
    record("all", context=None, stacks="python", clear_history=True)
    tensor = make(5000)
    assert entries("alloc")[-1]["frames"] == [] == block_of(tensor)["frames"]
    del tensor
    record("all", context="alloc", stacks="python", clear_history=True)
    address = make(5000).data_ptr()
    made, freed = (e for e in entries("alloc", "free_completed") if e["addr"] == address)
    assert made["frames"] and freed["frames"] == made["frames"]  # of the allocation
    record("all", stacks="python", skip_actions=["free_requested", "snapshot"], clear_history=True)
    make(5000)
    assert [e["action"] for e in entries()] == ["alloc", "free_completed"]
    record(None)
    make(5000)
    assert len(entries("alloc")) == 1  # what was recorded stays, nothing is added
    for wrong in (
        {"enabled": "some"},
        {"context": "some"},
        {"stacks": "some"},
        {"skip_actions": ["some"]},
    ):
        with pytest.raises(ValueError, match="some"):
            record(**wrong)


def test_metadata() -> None:
    torch.neuron.memory._record_memory_history(stacks="python", clear_history=True)
    torch.neuron.memory._set_memory_metadata("epoch 3")
    assert torch.neuron.memory._get_memory_metadata() == "epoch 3"
    make(100)
    torch.neuron.memory._set_memory_metadata("")
    make(100)
    assert [e["user_metadata"] for e in entries("alloc")] == ["epoch 3", ""]


def test_signatures_are_cudas() -> None:
    for name in [
        "_record_memory_history",
        "_snapshot",
        "_dump_snapshot",
        "_allocation_traceback",
        "_set_memory_metadata",
        "_get_memory_metadata",
        "_save_segment_usage",
        "_save_memory_usage",
    ]:
        ours = inspect.signature(getattr(torch.neuron.memory, name)).parameters
        theirs = inspect.signature(getattr(torch.cuda.memory, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [
            (p.name, p.default) for p in theirs.values()
        ], name


def test_memory_visualiser_reads_a_snapshot(tmp_path: Path) -> None:
    torch.neuron.memory._record_memory_history(stacks="python", clear_history=True)
    kept = [make(3 * MIB), make(500)]
    with torch.no_grad():
        result = kept[0] + 1
    del kept[1]
    file = tmp_path / "snapshot.pickle"
    torch.neuron.memory._dump_snapshot(file)
    with file.open("rb") as opened:
        snapshot = pickle.load(opened)
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    assert "Device 0" in _memory_viz.trace(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<html" in plot(snapshot).lower() or "<script" in plot(snapshot)
    lines = []
    _memory_viz.memory(snapshot, format_flamegraph=lines.append)
    _memory_viz.segments(snapshot, format_flamegraph=lines.append)
    assert all("test_memory_snapshot.py" in text and "active_allocated" in text for text in lines)
    del result


def test_segments_and_their_sizes() -> None:
    tensors = [make(3 * MIB + 1), make(5 * MIB)]
    segments = torch.neuron.memory_snapshot()
    assert segments == torch.neuron.memory._snapshot()["segments"]
    assert sum(s["total_size"] for s in segments) == torch.neuron.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == torch.neuron.memory_allocated()
    for segment in segments:
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert segment["allocated_size"] == segment["active_size"] == sum(b["size"] for b in used)
        assert segment["requested_size"] == sum(b["requested_size"] for b in used)
        assert segment["device"] == 0 and segment["segment_pool_id"] == (0, 0)
    with pytest.raises(ValueError, match="mempool_id"):
        torch.neuron.memory_snapshot((0, 1))
    del tensors


def test_large_blocks_always_say_where_they_come_from() -> None:
    base = torch.zeros(MIB, device="neuron")
    result = base * 2
    line = f"{__file__}:"
    assert block_of(result)["origin"].startswith(f"aten::mul.Tensor at {line}")
    assert line in block_of(base)["origin"]
    assert "origin" not in block_of(make(100))
