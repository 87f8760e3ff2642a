"""Device tensors on the way to another process: through host memory.

PJRT has no handles by which a process could open another's device memory, so
``torch.multiprocessing`` queues and pipes carry a copy in shared host memory, and the receiver
moves it to its own device. What one side writes afterwards the other does not see. Arguments of a
process that is being started carry the bytes themselves: their file descriptors would have to stay
open until the child runs, and nobody would hold the copy they belong to.
"""

from __future__ import annotations

import pickle
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor


def register() -> None:
    """Tell multiprocessing's pickler; tensors of other devices go torch's way, as before."""
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "neuron":
        return reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that requires grad and is not a leaf cannot be sent to another process, "
            "which has no part of its graph: send tensor.detach()"
        )
    host = tensor.detach().cpu()
    sent = pickle.dumps(host) if get_spawning_popen() is not None else host
    arguments = (sent, str(tensor.device), type(tensor) is torch.nn.Parameter, tensor.requires_grad)
    return _rebuild, arguments


def _rebuild(
    sent: torch.Tensor | bytes, device: str, is_parameter: bool, requires_grad: bool
) -> torch.Tensor:
    host = pickle.loads(sent) if isinstance(sent, bytes) else sent
    moved = host.to(device)
    if is_parameter:
        return torch.nn.Parameter(moved, requires_grad)
    return moved.requires_grad_(requires_grad)
