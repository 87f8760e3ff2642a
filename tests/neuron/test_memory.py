"""Device memory: pools, size classes, statistics, limits and what is said when none is left."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from support import assert_same

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
METRICS = [
    "allocation",
    "active",
    "segment",
    "inactive_split",
    "allocated_bytes",
    "active_bytes",
    "requested_bytes",
    "reserved_bytes",
    "inactive_split_bytes",
    "temporary_bytes",
]


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    torch.empty(1, device="neuron")  # starts the runtime
    gc.collect()
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    yield
    torch.neuron.set_per_process_memory_fraction(1.0)


@contextmanager
def limited_to(nbytes: int) -> Iterator[None]:
    """At most ``nbytes`` more than now can be reserved."""
    _, total = torch.neuron.mem_get_info()
    fraction = (torch.neuron.memory_reserved() + nbytes + 1) / total
    torch.neuron.set_per_process_memory_fraction(fraction)
    try:
        yield
    finally:
        torch.neuron.set_per_process_memory_fraction(1.0)


def block(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="neuron")


def stat(name: str) -> int:
    return int(torch.neuron.memory_stats()[name])


# -- Placing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "counted"),
    [
        (1, 256),
        (256, 256),
        (257, 512),
        (2048, 2048),
        (2049, 2304),
        (4 * KIB + 1, 4 * KIB + 512),
        (100_000, 106_496),  # 13/16 of 128 KiB
        (MIB - 1, MIB),
        (MIB + 1, MIB + 128 * KIB),
        (16 * MIB - 1, 16 * MIB),
        (16 * MIB, 16 * MIB),
        (16 * MIB + 1, 16 * MIB + 1),  # not rounded
    ],
)
def test_requests_are_rounded_to_size_classes(requested: int, counted: int) -> None:
    before = torch.neuron.memory_allocated()
    asked = stat("requested_bytes.all.current")
    tensor = block(requested)
    assert torch.neuron.memory_allocated() - before == counted
    assert stat("requested_bytes.all.current") - asked == requested
    assert tensor.data_ptr() % 256 == 0
    del tensor
    assert torch.neuron.memory_allocated() == before


def test_a_size_class_wastes_at_most_an_eighth() -> None:
    for requested in (3000, 5000, 70_000, 600_000, 3 * MIB + 5, 9 * MIB + 7):
        before = torch.neuron.memory_allocated()
        tensor = block(requested)
        assert requested <= torch.neuron.memory_allocated() - before <= requested * 9 / 8 + 256
        del tensor


def test_small_and_large_requests_have_pools_of_their_own() -> None:
    before = {
        pool: stat(f"allocated_bytes.{pool}.current") for pool in ("small_pool", "large_pool")
    }
    small, large = block(MIB - 1), block(MIB)
    assert stat("allocated_bytes.small_pool.current") - before["small_pool"] == MIB
    assert stat("allocated_bytes.large_pool.current") - before["large_pool"] == MIB
    assert small.data_ptr() // (2 * MIB) != large.data_ptr() // (2 * MIB)
    types = {s["segment_type"] for s in torch.neuron.memory_snapshot()}
    assert types == {"small", "large"}


def test_segments_are_reserved_cached_and_given_back() -> None:
    reserved = torch.neuron.memory_reserved()
    tensors = [block(3 * MIB) for _ in range(4)]
    assert torch.neuron.memory_reserved() - reserved == 32 * MIB  # one segment for all
    addresses = {t.data_ptr() for t in tensors}
    tensors.clear()
    assert torch.neuron.memory_reserved() - reserved == 32 * MIB
    assert {block(3 * MIB).data_ptr()} <= addresses  # placed where the others were
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() == reserved
    huge = block(100 * MIB + 1)
    assert torch.neuron.memory_reserved() - reserved == 102 * MIB
    del huge
    torch.accelerator.empty_cache()
    assert torch.neuron.memory_reserved() == reserved


def test_blocks_are_split_and_merged_again() -> None:
    reserved = torch.neuron.memory_reserved()
    whole = block(20 * MIB)
    address = whole.data_ptr()
    del whole
    parts = [block(4 * MIB) for _ in range(5)]
    assert all(address <= p.data_ptr() < address + 20 * MIB for p in parts)
    assert torch.neuron.memory_reserved() - reserved == 20 * MIB
    del parts[1::2]
    assert stat("inactive_split_bytes.all.current") >= 8 * MIB
    parts.clear()
    assert block(20 * MIB).data_ptr() == address
    assert torch.neuron.memory_reserved() - reserved == 20 * MIB


def test_live_blocks_do_not_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    live: dict[int, torch.Tensor] = {}
    for size in torch.randint(1, 3 * MIB, (300,), generator=generator).tolist():
        tensor = block(size)
        live[tensor.data_ptr()] = tensor
        if len(live) > 40:
            live.pop(sorted(live)[size % 40])
    ends = sorted((a, a + t.numel()) for a, t in live.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    for segment in torch.neuron.memory_snapshot():
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
        position = segment["address"]
        for piece in segment["blocks"]:
            assert piece["address"] == position
            position += piece["size"]


# -- Statistics -----------------------------------------------------------------------------------


def test_statistics_have_cudas_flat_keys_and_nested_names() -> None:
    stats = torch.neuron.memory_stats(torch.device("neuron"))
    kinds = ("current", "peak", "allocated", "freed")
    for metric in METRICS:
        for pool in ("all", "small_pool", "large_pool"):
            for kind in kinds:
                assert stats[f"{metric}.{pool}.{kind}"] == stats[metric][pool][kind]
        assert stats[metric]["current"] == stats[f"{metric}.all.current"]
        assert stats[metric]["peak"] == stats[f"{metric}.all.peak"]
        assert metric in stats and stats.get(metric) == stats[metric]
    for counter in [
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_tensor_frees",
        "allocation_requests",
        "max_split_size",
        "oversize_allocations.current",
        "oversize_segments.peak",
    ]:
        assert isinstance(stats[counter], int)
    assert list(stats) == sorted(stats) and all(isinstance(v, int) for v in stats.values())
    assert stats.get("no such key", 7) == 7 and "no such key" not in stats
    with pytest.raises(KeyError):
        stats["no such key"]
    assert torch.neuron.memory_stats_as_nested_dict()["allocation"]["all"] == {
        kind: stats[f"allocation.all.{kind}"] for kind in kinds
    }


def test_reserved_is_at_least_allocated_is_at_least_active() -> None:
    tensors = []
    for size in (10, 5000, MIB, 17 * MIB):
        tensors.append(block(size))
        stats = torch.neuron.memory_stats()
        for pool in ("all", "small_pool", "large_pool"):
            for kind in ("current", "peak"):
                reserved, allocated, active = (
                    stats[f"{m}_bytes.{pool}.{kind}"] for m in ("reserved", "allocated", "active")
                )
                assert reserved >= allocated >= active > 0 or pool != "all"


def test_memory_is_counted_once_for_all_views() -> None:
    before = torch.neuron.memory_allocated()
    x = torch.empty(1 << 20, device="neuron")
    assert torch.neuron.memory_allocated() - before == 4 * MIB
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated()
    view = x[10:]
    del x
    assert torch.neuron.memory_allocated() - before == 4 * MIB
    del view
    assert torch.neuron.memory_allocated() == before


def test_peaks_and_totals_can_be_reset() -> None:
    before = torch.neuron.memory_allocated()
    del [block(10 * MIB)][:]
    assert torch.neuron.max_memory_allocated() >= before + 10 * MIB
    assert torch.neuron.max_memory_reserved() >= torch.neuron.memory_reserved() > 0
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before
    torch.neuron.reset_accumulated_memory_stats()
    assert stat("allocation.all.allocated") == stat("allocation.all.freed") == 0
    assert stat("num_tensor_frees") == stat("allocation_requests") == 0
    tensors = [block(100) for _ in range(5)]
    del tensors
    assert stat("num_tensor_frees") == stat("allocation_requests") == 5


@pytest.mark.parametrize("device", [None, 0, "neuron", "neuron:0", torch.device("neuron")])
def test_devices_may_be_given_in_any_form(device: torch.device | int | str | None) -> None:
    allocated = torch.neuron.memory_allocated(device)
    assert allocated == torch.accelerator.memory_allocated(device)
    assert torch.neuron.memory_reserved(device) == torch.accelerator.memory_reserved(device)
    assert torch.neuron.mem_get_info(device) == torch.accelerator.get_memory_info(device)
    assert "Neuron Memory Summary" in torch.neuron.memory_summary(device)


def test_memory_of_a_device_that_does_not_exist() -> None:
    for function in (
        torch.neuron.memory_allocated,
        torch.neuron.memory_summary,
        torch.neuron.mem_get_info,
        torch.neuron.reset_peak_memory_stats,
    ):
        with pytest.raises(AssertionError, match="neuron:7"):
            function(7)
        with pytest.raises(ValueError, match="Expected a neuron device"):
            function("cpu")
    with pytest.raises(RuntimeError, match="neuron:7"):
        torch.accelerator.memory_stats(7)


def test_accelerator_functions_agree() -> None:
    x = block(5 * MIB)
    stats = torch.accelerator.memory_stats()
    ours = torch.neuron.memory_stats()
    assert {k: v for k, v in stats.items() if k in ours} == {k: ours[k] for k in stats if k in ours}
    assert stats["allocated_bytes.large_pool.current"] >= 5 * MIB
    assert torch.accelerator.max_memory_reserved() == torch.neuron.max_memory_reserved()
    del x
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.neuron.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.neuron.memory_stats()["allocation.all.freed"] == 0


def test_info_is_what_is_not_reserved() -> None:
    free, total = torch.neuron.mem_get_info()
    assert total == 24 * GIB == torch.neuron.get_device_properties().total_memory
    assert free == total - torch.neuron.memory_reserved()
    x = block(64 * MIB)
    assert torch.neuron.mem_get_info()[0] == free - 64 * MIB
    del x
    assert torch.neuron.mem_get_info()[0] == free - 64 * MIB  # cached
    torch.neuron.empty_cache()
    assert torch.neuron.mem_get_info()[0] == free


def test_summary() -> None:
    x = block(3 * MIB)
    text = torch.neuron.memory_summary()
    assert "Neuron Memory Summary" in text and "model of trn2" in text
    assert "largest free block: " in text
    assert len({len(line) for line in text.splitlines()}) == 1
    for name in ("Allocated memory", "Reserved memory", "from large pool", "Executables' temps"):
        assert name in text
    short = torch.neuron.memory_summary(abbreviated=True)
    assert "from large pool" not in short and len(short) < len(text)
    del x


def test_the_allocator_is_the_native_one() -> None:
    assert torch.neuron.get_allocator_backend() == "native"


# -- Temporaries ----------------------------------------------------------------------------------


def test_a_launch_is_charged_its_executables_temporaries() -> None:
    x = torch.randn(512, 512, device="neuron")
    torch.linalg.qr(x)  # works in temporaries
    torch.neuron.synchronize()
    torch.neuron.reset_peak_memory_stats()
    torch.neuron.reset_accumulated_memory_stats()
    before = torch.neuron.memory_allocated()
    q, r = torch.linalg.qr(x)
    results = torch.neuron.memory_allocated() - before
    temporaries = stat("temporary_bytes.all.peak")
    assert temporaries >= q.numel() * 4
    assert stat("temporary_bytes.all.current") == 0
    assert stat("temporary_bytes.all.allocated") == stat("temporary_bytes.all.freed")
    assert torch.neuron.max_memory_allocated() >= before + results + temporaries
    del q, r
    assert torch.neuron.memory_allocated() == before


def test_temporaries_that_do_not_fit_are_out_of_memory_before_the_launch() -> None:
    x = torch.randn(1024, 1024, device="neuron")
    torch.linalg.qr(x)
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    before = torch.neuron.memory_allocated()
    with limited_to(0):
        fillers = []
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                fillers.append(block(MIB))
        del fillers[-9:]  # room for the results, and not for more
        with pytest.raises(torch.OutOfMemoryError, match="for temporaries of aten::linalg_qr"):
            torch.linalg.qr(x)
        del fillers
    assert torch.neuron.memory_allocated() == before
    torch.neuron.synchronize()  # nothing was launched, nothing failed
    q, r = torch.linalg.qr(x)
    assert_same(q @ r, x.cpu(), scale=100)


# -- Out of memory --------------------------------------------------------------------------------


def test_out_of_memory_says_who_holds_what() -> None:
    ooms = stat("num_ooms")
    held = [torch.ones(2 << 20, device="neuron") for _ in range(3)]  # THE LINE
    with limited_to(8 * MIB), pytest.raises(torch.OutOfMemoryError) as caught:
        block(100 * MIB)
    text = str(caught.value)
    assert text.startswith("Neuron out of memory. Tried to allocate 100.00 MiB. neuron:0 has a ")
    for part in (
        " out of memory.",
        "total capacity of 24.00 GiB",
        " is free. ",
        " allowed; ",
        " is allocated by tensors, and ",
        "reserved by PyTorch but unallocated",
        "The largest free block has ",
        "Executables' temporaries took up to ",
    ):
        assert part in text
    source, first = inspect.getsourcelines(test_out_of_memory_says_who_holds_what)
    line = first + next(i for i, s in enumerate(source) if "THE LINE" in s)
    assert f"24.00 MiB in 3 tensor(s): aten::fill_.Scalar at {__file__}:{line}" in text or (
        f"24.00 MiB in 3 tensor(s): torch.empty at {__file__}:{line}" in text
    )
    assert stat("num_ooms") == ooms + 1
    assert len(caught.value.args) == 1  # accelerate looks at it
    del held


def test_out_of_memory_leaves_everything_as_it_was() -> None:
    x = torch.arange(4.0, device="neuron")
    before = torch.neuron.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match=r"Neuron out of memory\. Tried"):
        torch.empty(25 << 28, device="neuron")
    huge = torch.empty(20 << 28, device="neuron")  # an address, no bytes yet
    with pytest.raises(torch.OutOfMemoryError):
        x[:1].expand(6 << 28) + 1
    with pytest.raises(torch.OutOfMemoryError):
        torch.cat([huge, huge])
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 62, dtype=torch.uint8, device="neuron")
    with pytest.raises(torch.OutOfMemoryError):
        huge.resize_(25 << 28)
    assert huge.numel() == 20 << 28
    del huge
    assert torch.neuron.memory_allocated() == before
    assert_same(x, torch.arange(4.0))
    assert_same(x + 1, torch.arange(1.0, 5.0))


def test_cached_segments_are_given_back_before_memory_is_out() -> None:
    reserved = torch.neuron.memory_reserved()
    with limited_to(32 * MIB):
        block(20 * MIB)
        retries, ooms = stat("num_alloc_retries"), stat("num_ooms")
        whole = block(30 * MIB)
        assert torch.neuron.memory_reserved() - reserved <= 32 * MIB
        assert stat("num_alloc_retries") == retries + 1
        assert stat("num_ooms") == ooms
        del whole


def test_free_memory_in_pieces_serves_a_request_longer_than_any_piece() -> None:
    free, _ = torch.neuron.mem_get_info()
    piece = free // 24 // MIB * MIB
    held = [block(piece) for _ in range(24)]
    with pytest.raises(torch.OutOfMemoryError):
        block(3 * piece)
    del held[::2]  # never two neighbours
    whole = block(3 * piece)
    ranges = sorted((t.data_ptr(), t.nbytes) for t in [*held, whole])
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ranges))
    rest = [block(3 * piece) for _ in range(3)]  # the memory is the limit, not the addresses
    with pytest.raises(torch.OutOfMemoryError):
        block(3 * piece)
    del rest


def test_a_request_that_is_made_again_is_counted() -> None:
    with limited_to(32 * MIB):
        kept = block(20 * MIB)
        retries, ooms = stat("num_alloc_retries"), stat("num_ooms")
        with pytest.raises(torch.OutOfMemoryError):
            block(20 * MIB)  # no cached segment to give back
        assert stat("num_alloc_retries") == retries + 1
        assert stat("num_ooms") == ooms + 1
        del kept


def test_garbage_cycles_are_freed_before_memory_is_out() -> None:
    class Node:
        pass

    gc.disable()
    try:
        with limited_to(40 * MIB):
            node = Node()
            node.itself, node.tensor = node, block(30 * MIB)
            del node
            ooms = stat("num_ooms")
            assert block(30 * MIB).numel() == 30 * MIB  # a factory
            node = Node()
            node.itself, node.tensor = node, torch.zeros(6 * MIB, device="neuron")
            x = torch.zeros(1, device="neuron")
            del node
            assert (x.expand(6 * MIB) + 1).numel() == 6 * MIB  # a launch
            assert stat("num_ooms") == ooms
    finally:
        gc.enable()


def test_an_exception_keeps_nothing() -> None:
    before = torch.neuron.memory_allocated()

    def fails() -> None:
        x = torch.zeros(1 << 20, device="neuron")
        y = x + 1
        torch.mm(x.view(1024, 1024), y.view(512, 2048))

    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                fails()
            try:
                with limited_to(MIB):
                    kept = torch.zeros(8 << 20, device="neuron")
                    del kept
            except torch.OutOfMemoryError:
                pass
        assert torch.neuron.memory_allocated() == before
    finally:
        gc.enable()


def test_the_fraction_is_a_limit() -> None:
    total = torch.neuron.mem_get_info()[1]
    torch.neuron.set_per_process_memory_fraction(0.5, 0)
    assert torch.neuron.get_per_process_memory_fraction() == 0.5
    with pytest.raises(torch.OutOfMemoryError, match=r"12\.00 GiB allowed"):
        block(total // 2 + MIB)
    with pytest.raises(ValueError, match="Invalid fraction value"):
        torch.neuron.set_per_process_memory_fraction(1.5)
    with pytest.raises(TypeError, match="must be `float`"):
        torch.neuron.set_per_process_memory_fraction(1)  # type: ignore[arg-type]


# -- Misuse ---------------------------------------------------------------------------------------


def test_raw_blocks_can_be_freed_once() -> None:
    before = torch.neuron.memory_allocated()
    address = torch.neuron.caching_allocator_alloc(5000)
    assert torch.neuron.memory_allocated() > before
    torch.neuron.caching_allocator_delete(address)
    assert torch.neuron.memory_allocated() == before
    for wrong in (address, address + 1, 0, 12345):
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.neuron.caching_allocator_delete(wrong)
    tensor = block(100)
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.neuron.caching_allocator_delete(tensor.data_ptr())
    with pytest.raises(ValueError, match="above 0"):
        torch.neuron.caching_allocator_alloc(0)
    with pytest.raises(TypeError, match="stream"):
        torch.neuron.caching_allocator_alloc(10, stream="s")
    with pytest.raises(torch.OutOfMemoryError):
        torch.neuron.caching_allocator_alloc(25 * GIB)


# -- Leaks ----------------------------------------------------------------------------------------


def test_ten_thousand_steps_leak_nothing() -> None:
    weight = torch.ones(8, device="neuron", requires_grad=True)
    x = torch.ones(8, device="neuron")

    def step() -> None:
        loss = (weight * x).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=1e-6)
        weight.grad = None

    for _ in range(20):
        step()
    torch.neuron.synchronize()
    torch.neuron.reset_peak_memory_stats()
    allocated, reserved = torch.neuron.memory_allocated(), torch.neuron.memory_reserved()
    blocks = stat("allocation.all.current")
    for _ in range(10_000):
        step()
    torch.neuron.synchronize()
    assert torch.neuron.memory_allocated() == allocated
    assert torch.neuron.memory_reserved() == reserved
    assert stat("allocation.all.current") == blocks
    assert torch.neuron.max_memory_allocated() < allocated + 64 * KIB
