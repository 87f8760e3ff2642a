"""Overloads that give results and also mutate arguments: running statistics, slopes."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten


@pytest.mark.parametrize("form", ["results", "out"])
@pytest.mark.parametrize("name", ["_native_batch_norm_legit", "_batch_norm_with_update"])
def test_running_statistics_are_written_beside_the_results(name: str, form: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 3, 5), torch.randn(3)
    answers = {}
    for device in ("cpu", "neuron"):
        running = [torch.zeros(3, device=device), torch.ones(3, device=device)]
        training = (True,) if name == "_native_batch_norm_legit" else ()
        w = weight.to(device)
        arguments = (x.to(device), w, w, *running, *training, 0.1, 1e-5)
        if form == "results":
            results = list(getattr(aten, name).default(*arguments))[:3]
        else:
            outs = ["out", "save_mean", "save_invstd"]
            made = {o: torch.empty(0, device=device) for o in outs}
            if name == "_batch_norm_with_update":
                made["reserve"] = torch.empty(0, dtype=torch.uint8, device=device)
            getattr(aten, name).out(*arguments, **made)
            results = [made[o] for o in outs]
        answers[device] = [t.cpu() for t in [*results, *running]]
    assert answers["cpu"][3].abs().sum() > 0
    for got, want in zip(answers["neuron"], answers["cpu"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_slopes_are_written_beside_the_result(inplace: bool) -> None:
    x = torch.randn(1000)
    y, noise = x.to("neuron"), torch.zeros(1000, device="neuron")
    if inplace:
        aten.rrelu_with_noise_.default(y, noise, 0.2, 0.4, True)
        got = y
    else:
        got = aten.rrelu_with_noise.default(y, noise, 0.2, 0.4, True)
    slopes = noise.cpu()
    assert torch.equal(slopes[x > 0], torch.ones(int((x > 0).sum())))
    assert bool((slopes[x <= 0] >= 0.2).all() and (slopes[x <= 0] < 0.4).all())
    assert slopes[x <= 0].std() > 0.02
    torch.testing.assert_close(got.cpu(), x * slopes)
