"""Several devices in a process: current device, streams of each, copies between them (D17)."""

from __future__ import annotations

import pytest

from support import output_of


def test_several_devices() -> None:
    text = output_of(
        """
        import torch
        from torch_neuronx import _C
        assert torch.neuron.device_count() == torch.accelerator.device_count() == 3

        # Streams belong to devices; a stream's context makes its device current.
        one = torch.neuron.Stream(1)
        assert one.device == torch.device("neuron:1") != torch.neuron.Stream(0).device
        assert torch.neuron.Stream(0) != one
        with torch.neuron.stream(one):
            assert torch.neuron.current_device() == 1
            assert torch.empty(1, device="neuron").device.index == 1
            assert torch.neuron.current_stream() == one
            assert torch.neuron.current_stream(0) == torch.neuron.default_stream(0)
            with torch.neuron.device(2):
                assert torch.neuron.Stream().device.index == 2
                assert torch.neuron.current_stream(1) == one
        assert torch.neuron.current_device() == 0
        assert torch.neuron.current_stream(1) == torch.neuron.default_stream(1)
        with torch.accelerator.device_index(2):
            assert torch.neuron.current_device() == 2
        torch.accelerator.set_stream(one)
        assert torch.neuron.current_device() == 1
        torch.neuron.set_stream(torch.neuron.default_stream(1))
        torch.neuron.set_device(0)

        # Copies between devices: dense, strided, cast, in place, with gradients.
        a = torch.arange(6.0, device="neuron:1").reshape(2, 3)
        (a + 1).to("neuron:0").cpu()
        before = _C.counters()
        b = (a + 1).to("neuron:0")
        c = a.t().to("neuron:2")
        d = a[:, 1:].to("neuron:0", torch.int32)
        e = torch.zeros(3, 2, device="neuron:2")
        e[1:].copy_(a[:, :2])
        torch.neuron.synchronize(0); torch.neuron.synchronize(2)
        after = _C.counters()
        print("through the host", after["d2h_bytes"] - before["d2h_bytes"])
        print(b.tolist(), c.tolist(), d.tolist(), e.tolist())
        a.add_(100)  # not seen by the copies
        print(b.device, b.tolist()[0], c.is_contiguous(), c.stride(), d.dtype)
        w = torch.ones(3, device="neuron:2", requires_grad=True)
        (w.to("neuron:0") * 3).sum().backward()
        print("gradient", w.grad.device, w.grad.tolist())
        print("empty", torch.empty(0, 2, device="neuron:1").to("neuron:0").shape)
        print("conjugate", torch.tensor([1 + 2j], device="neuron:1").conj().to("neuron:0").tolist())

        # Events order one device's stream after another's.
        event = one.record_event()
        torch.neuron.current_stream(0).wait_event(event)
        print("event", event.device, event.query())

        # An error of the source surfaces where the copy is read.
        index = torch.tensor([9], device="neuron:1")
        bad = a.flatten().gather(0, index).to("neuron:0")
        try:
            bad.cpu()
            print("not raised")
        except RuntimeError as error:
            print("raised", error)
        torch.neuron.synchronize(1)

        for call in (lambda: torch.ones(1, device="neuron:7"), lambda: torch.neuron.Stream(7),
                     lambda: torch.neuron.set_device(7), lambda: torch.neuron.device(7).__enter__(),
                     lambda: torch.neuron.synchronize(7)):
            try:
                call()
                print("not refused")
            except (RuntimeError, AssertionError) as error:
                print("refused", "neuron:7" in str(error), "3 neuron device" in str(error))
        """,
        TORCH_NEURONX_NUM_DEVICES="3",
    )
    lines = text.splitlines()
    assert "through the host 0" in lines, text
    assert (
        "[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]] [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] "
        "[[1, 2], [4, 5]] [[0.0, 0.0], [0.0, 1.0], [3.0, 4.0]]" in lines
    ), text
    assert "neuron:0 [1.0, 2.0, 3.0] False (1, 3) torch.int32" in lines, text
    assert "gradient neuron:2 [3.0, 3.0, 3.0]" in lines
    assert "empty torch.Size([0, 2])" in lines and "conjugate [(1-2j)]" in lines
    assert "event neuron:1 True" in lines
    assert "aten::gather" in text and "of neuron:1" in text and "not raised" not in text
    assert lines.count("refused True True") == 5 and "not refused" not in text, text


@pytest.mark.parametrize("devices", [1, 2])
def test_executables_of_one_device_are_bound_to_it(devices: int) -> None:
    """The plugin then copies no compile options at a launch; two devices share executables."""
    text = output_of(
        """
        import torch
        from torch_neuronx.compiler import options, session
        for i in range(torch.neuron.device_count()):
            x = torch.arange(4.0, device=f"neuron:{i}")
            print((x + x).tolist(), (x * 3).device.index)
        portable = [options.encode(options.EXACT_CPU, portable=p) for p in (False, True)]
        print("portable", portable.index(session.compiler()._options))
        """,
        TORCH_NEURONX_NUM_DEVICES=str(devices),
    )
    results = [f"[0.0, 2.0, 4.0, 6.0] {i}" for i in range(devices)]
    assert text.splitlines() == [*results, f"portable {devices - 1}"]
