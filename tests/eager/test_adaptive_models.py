"""Models trained in adaptive mode: the losses, weights and buffers of operators run one by one."""

from __future__ import annotations

import copy
import io
import sys
import threading
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_neuronx
from adaptive_support import Fused, bits, compiled, equal, no_budget  # noqa: F401
from eager.test_models import MODELS
from support import run_python

STEPS = 7
MODES = ("per-op", "adaptive")


def made(name: str, steps: int = STEPS) -> tuple[nn.Module, TensorDataset]:
    """A model on the CPU and ``steps`` batches; not for threads: they share a generator."""
    create, make_input = MODELS[name]
    torch.manual_seed(0)
    model, x = create(), torch.cat([make_input() for _ in range(steps)])
    return model, TensorDataset(x, torch.randint(0, 5, (len(x),)))


def train(model: nn.Module, data: TensorDataset, workers: int = 0) -> list[Any]:
    """Losses, then weights and buffers, after a step with each batch of a DataLoader."""
    model = model.to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    losses = []
    for i, (a, b) in enumerate(DataLoader(data, 4, num_workers=workers)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a.to("neuron")), b.to("neuron"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item() if i % 2 else loss.detach())
        compiled()
    return bits([losses, [p.data for p in model.parameters()], list(model.buffers())])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "bert" else pytest.mark.full) for n in MODELS]
)
def test_training(name: str) -> None:
    found = {}
    with Fused() as fused:
        for mode in MODES:
            with torch_neuronx.eager_mode(mode):
                found[mode] = train(*made(name))
    assert equal(found["per-op"], found["adaptive"])
    assert fused.operators > 0


@pytest.mark.full
def test_two_threads_train_with_a_data_loader_each() -> None:
    names = ("bert", "llama")
    expected = {name: train(*made(name)) for name in names}
    work_of = {name: made(name) for name in names}
    found: dict[str, Any] = {}
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            found[name] = train(*work_of[name], workers=1)
        except BaseException as error:  # told by the main thread
            errors.append(error)

    with torch_neuronx.eager_mode("adaptive"):
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert equal([expected[n] for n in names], [found[n] for n in names])


@pytest.mark.full
def test_a_decoding_loop_with_a_cache() -> None:
    torch.manual_seed(0)
    create, make_input = MODELS["llama"]
    model, prompt = create().to("neuron").eval(), make_input().to("neuron")

    def decode() -> list[Any]:
        tokens = prompt.new_zeros(4, 24)
        tokens[:, :9] = prompt
        seen = []
        for at in range(9, 24):
            with torch.no_grad():
                scores = model(tokens)
            new = scores.argmax(-1)
            tokens[:, at] = new
            seen.append(int(new[0]))
            compiled()
        return [seen, tokens]

    found = {}
    with Fused() as fused:
        for mode in MODES:
            with torch_neuronx.eager_mode(mode):
                found[mode] = bits(decode())
    assert equal(found["per-op"], found["adaptive"])
    assert fused.operators > 0


def test_prints_and_breakpoints_see_true_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.arange(6.0) + i for i in range(2))
    seen: list[Any] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["w"]))

    def run(device: str) -> Any:
        a, b = x.to(device), y.to(device)
        text = io.StringIO()
        for i in range(12):
            z = a * b + i
            w = z - b
            w.mul_(2)
            if i in (8, 10):
                with redirect_stdout(text):
                    print(w)
                breakpoint()
                seen[-1] = seen[-1].tolist()
            v = w / 4
            compiled()
        return text.getvalue().replace(", device='neuron:0'", ""), v.tolist(), seen.copy()

    expected = run("cpu")
    seen.clear()
    with torch_neuronx.eager_mode("adaptive"), Fused() as fused:
        assert run("neuron") == expected
    assert fused.operators > 0


@pytest.mark.full
def test_a_copy_of_a_model_in_the_middle_of_a_loop() -> None:
    create, make_input = MODELS["bert"]

    def run() -> list[Any]:
        torch.manual_seed(0)
        model, x = create().to("neuron"), make_input().to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        kept = []
        for i in range(STEPS):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if i >= STEPS - 2:  # the loop is fused by now
                kept += [copy.deepcopy(model).head.weight.data, optimizer.state_dict()["state"][0]]
            compiled()
        return [kept[0], kept[1]["momentum_buffer"], kept[2], kept[3]["momentum_buffer"]]

    found = {}
    for mode in MODES:
        with torch_neuronx.eager_mode(mode):
            found[mode] = bits(run())
    assert equal(found["per-op"], found["adaptive"])


def test_a_fork_in_the_middle_of_a_loop() -> None:
    code = """
        import os, torch, torch_neuronx
        from torch_neuronx.compiler import session

        x = torch.arange(8.0).to("neuron")
        def work():
            return ((x + 1) * 2).tanh() - x
        for i in range(12):
            y = work()
            if i > 6:
                z = x + 1  # held
                if (child := os.fork()) == 0:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                assert z.tolist() == [k + 1.0 for k in range(8)]
            torch.neuron.synchronize()
            session.compiler().drain()
        assert torch_neuronx.eager_stats()["fused_launches"] > 0
        expected = ((x.cpu() + 1) * 2).tanh() - x.cpu()
        torch.testing.assert_close(y.cpu(), expected)
        print("alive")
    """
    done = run_python(code, TORCH_NEURONX_EAGER="adaptive")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alive"]
