"""The task that trains, is killed, and resumes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.adapters import Adapter
from neuron_readiness.context import Context
from neuron_readiness.pilot import Pilot
from neuron_readiness.workload import Workload


def train(
    context: Context,
    started: float,
    *,
    steps: int,
    checkpoint: str,
    journal: str,
    save_after: int | None = None,
    kill_after: int | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Trains to ``steps``; saves after ``save_after`` steps and dies by SIGKILL after
    ``kill_after``. Every step is written to the journal as it ends, because a killed process
    answers nothing."""
    pilot, adapter = context.pilot, context.device
    workload = Workload(pilot, adapter)
    if isinstance(workload.model, torch.nn.Module):
        workload.model.train()
    workload.optimizer = pilot.optimizer(workload.model)
    batches = pilot.cases("train")
    # After all set-up draws, so that a fresh job and a resumed one begin alike.
    torch.manual_seed(pilot.seed)
    random.seed(pilot.seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(pilot.seed)
    position = 0
    with open(journal, "a", buffering=1) as log:
        if resume:
            position = load(pilot, adapter, workload, Path(checkpoint))
            _write(log, {"event": "loaded", **state(workload, adapter), "position": position})
        while position < steps:
            case = batches[position % len(batches)]
            loss = workload.train(case)
            _write(log, {"event": "step", "sample": position, "case": case.name, "loss": loss})
            position += 1
            if position == save_after:
                save(pilot, adapter, workload, Path(checkpoint), position)
                _write(log, {"event": "saved", **state(workload, adapter), "position": position})
            if position == kill_after:
                log.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        _write(log, {"event": "ended", **state(workload, adapter), "position": position})
    return {"position": position}


def _write(log: Any, entry: dict[str, Any]) -> None:
    log.write(json.dumps(entry) + "\n")


def save(pilot: Pilot, adapter: Adapter, workload: Workload, path: Path, position: int) -> None:
    """The pilot's ``save_checkpoint``, or a complete checkpoint."""
    own = pilot.part("save_checkpoint")
    if own is not None:
        own(path, workload.model, workload.optimizer, position)
        return
    torch.save(
        {
            "model": workload.model.state_dict(),
            "optimizer": workload.optimizer.state_dict(),
            "rng": rng(adapter),
            "random": random.getstate(),
            "numpy": _numpy_state(),
            "position": position,
        },
        path,
    )


def load(pilot: Pilot, adapter: Adapter, workload: Workload, path: Path) -> int:
    """Restores a checkpoint; the position to go on from (0 if the pilot returns none)."""
    own = pilot.part("load_checkpoint")
    if own is not None:
        return int(own(path, workload.model, workload.optimizer) or 0)
    content = torch.load(path, map_location="cpu", weights_only=False)
    workload.model.load_state_dict(content["model"])
    workload.optimizer.load_state_dict(content["optimizer"])
    set_rng(adapter, content["rng"])
    random.setstate(content["random"])
    if content["numpy"] is not None:
        sys.modules["numpy"].random.set_state(content["numpy"])
    return int(content["position"])


def rng(adapter: Adapter) -> dict[str, torch.Tensor]:
    """States of the host's and the device's generator."""
    states = {"cpu": torch.get_rng_state()}
    if adapter.kind != "cpu":
        module = torch.get_device_module(adapter.kind)
        if hasattr(module, "get_rng_state"):
            states[adapter.kind] = module.get_rng_state().cpu()
    return states


def set_rng(adapter: Adapter, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if adapter.kind in states and adapter.kind != "cpu":
        torch.get_device_module(adapter.kind).set_rng_state(states[adapter.kind])


def state(workload: Workload, adapter: Adapter) -> dict[str, str]:
    """Digests of what a job's future depends on."""
    numbers = [repr(random.getstate()), repr(_numpy_state())]
    return {
        "model": _digest(workload.parameters()),
        "optimizer": _digest(workload.optimizer.state_dict()),
        "rng": _digest(rng(adapter)),
        "host_rng": hashlib.sha256("".join(numbers).encode()).hexdigest(),
    }


def _numpy_state() -> Any:
    """The state of NumPy's global generator, if the job has NumPy."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state(legacy=True)


def _digest(value: Any) -> str:
    summary = hashlib.sha256()
    for name, tensor in trees.named_tensors(value, ""):
        summary.update(name.encode())
        data = tensor.detach().cpu().contiguous()
        summary.update(data.flatten().view(torch.uint8).numpy().tobytes())
    return summary.hexdigest()
