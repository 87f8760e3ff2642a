"""The static inventory: what it finds, and what it must not take for a find."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_readiness.inventory import sources, static


def kinds(folder: Path, text: str, target: str = "neuron") -> list[tuple[int, str]]:
    path = folder / "work.py"
    path.write_text(text)
    return [(h.line, h.kind) for h in static.scan(path, target)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\ntorch.cuda.empty_cache()", "torch.cuda"),
        ("import torch as t\nt.cuda.synchronize()", "synchronise"),
        ("from torch import cuda as c\nc.current_stream()", "torch.cuda"),
        ("from torch.cuda import amp\namp.autocast()", "amp"),
        ("import torch\ncu = torch.cuda\ncu.current_stream()", "torch.cuda"),
        ("import torch\ngetattr(torch, 'cuda').current_stream()", "torch.cuda"),
        ("import torch\nx = torch.ones(1, device='cuda:0')", "device"),
        ("import torch\nx = torch.device(f'cuda:{0}')", "device"),
        ("def f(x):\n    return x.to('cuda')", "device"),
        ("def f(x):\n    return x.cuda()", "device"),
        ("import torch\nz = torch.load('a', map_location='cuda')", "device"),
        ("import torch\nwith torch.autocast('cuda'): pass", "amp"),
        ("import torch\nwith torch.autocast(device_type='cuda'): pass", "amp"),
        ("import torch.distributed as d\nd.init_process_group('nccl')", "collectives"),
        ("import torch.distributed as d\nd.init_process_group(backend='nccl')", "collectives"),
        ("import triton\n", "triton"),
        ("from triton import language as tl\n", "triton"),
        ("from torch.utils.cpp_extension import load\nload('a', [])", "extension"),
        ("import flash_attn\n", "cuda-library"),
        ("import torch\nx = torch.zeros(1, dtype=torch.float64)", "dtype"),
        ("def f(load):\n    return load(pin_memory=True)", "pinned"),
        ("def f(x):\n    return x.pin_memory()", "pinned"),
        ("def f(x):\n    return x.numpy()", "host-read"),
        ("def f(x):\n    return x.item()", "host-read"),
        ("def f(x):\n    if x.sum() > 0:\n        return 1", "data-dependent-branch"),
        ("import torch\ndef f(x):\n    while torch.any(x): pass", "data-dependent-branch"),
        ("import torch\ny = torch.nonzero(x)", "data-dependent"),
    ],
)
def test_dependencies_are_found(tmp_path: Path, text: str, kind: str) -> None:
    assert kind in [k for _, k in kinds(tmp_path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "# torch.cuda.synchronize()\n",
        '"""Use model.cuda() and device=\'cuda\'."""\n',
        "message = 'run it with x.to(\"cuda\")'\n",
        "names = ['cuda', 'nccl']\n",
        "def cuda():\n    pass\n\ncuda()\n",
        "import torch\nx = torch.ones(1, device='cpu')\n",
        "import torch\nx = torch.ones(1, device='neuron')\n",
        "def f(x):\n    return x.cpu().numpy()\n",
        "def f(load):\n    return load(pin_memory=False)\n",
        "def f(table):\n    return table.item('key')\n",
        "def f(n):\n    if sum([n]) > 0:\n        return 1\n",
        "import numpy\nx = numpy.any([1])\nif numpy.any([1]): pass\n",
        "import my.torch as torch\ntorch.cuda.synchronize()\n",
    ],
)
def test_what_only_looks_like_one_is_no_find(tmp_path: Path, text: str) -> None:
    assert kinds(tmp_path, text) == []


def test_the_target_itself_is_no_foreign_device(tmp_path: Path) -> None:
    text = "import torch\nx = torch.ones(1, device='cuda')\n"
    assert kinds(tmp_path, text, "cuda") == []
    assert kinds(tmp_path, text, "neuron") == [(2, "device")]


def test_a_hit_says_what_it_assumes_and_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "work.py"
    path.write_text("def f(x):\n    return x.cuda()\n")
    [hit] = static.scan(path, "neuron")
    assert (hit.line, hit.supported, hit.suggestion) == (2, False, ".to(device)")
    assert "NVIDIA" in hit.assumes


def test_a_file_that_is_no_python_is_reported(tmp_path: Path) -> None:
    assert kinds(tmp_path, "def f(:\n") == [(1, "unreadable")]


def test_the_workload_is_the_pilot_what_it_imports_beside_it_and_what_it_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "pilot.py").write_text("import helper\nfrom pack import part\nimport torch\n")
    (tmp_path / "helper.py").write_text("import deeper\n")
    (tmp_path / "deeper.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "part.py").write_text("")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "extra.py").write_text("")
    found = {p.name for p in sources.of_workload(tmp_path / "pilot.py", ["more"])}
    assert found == {"pilot.py", "helper.py", "deeper.py", "__init__.py", "part.py", "extra.py"}
