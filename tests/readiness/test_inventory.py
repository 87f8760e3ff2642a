"""The static inventory: what it finds, and what it must not take for a find."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType

import pytest

from neuron_readiness.inventory import kernels, reach, sources, static
from neuron_readiness.inventory.hit import NOT_SEEN, ON_PATH, UNKNOWN
from neuron_readiness.recording import lines
from readiness.support import EXAMPLES, run


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
        ("import torch\ny = torch.where(x)", "data-dependent"),
        ("def f(x):\n    return x[x > 0]", "data-dependent"),
        ("def f(x):\n    return x[~(x.abs() > 0)]", "data-dependent"),
        ("def f(x):\n    m = x == 0\n    return x[m]", "data-dependent"),
        ("def f(x):\n    g = x.cuda\n    return g()", "device"),
        ("def f(x):\n    return getattr(x, 'cuda')()", "device"),
        ("def f(x):\n    move = getattr(x, 'cuda')\n    return move()", "device"),
        ("def f(x):\n    return int(x.sum())", "host-read"),
        ("import torch\ntorch.backends.cudnn.benchmark = True", "cudnn"),
        ("import torch\ntorch.ops.mine.kernel(x)", "custom-operator"),
        ("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'", "environment"),
        ("import os\nos.getenv('NCCL_DEBUG')", "environment"),
        ("def f(x):\n    if x.device.type == 'cuda':\n        return 1", "device-branch"),
        ("def f(x):\n    return 'cuda' in str(x.device)", "device-branch"),
        ("def f(x):\n    return x.is_cuda", "device-branch"),
        ("import torch\ntorch.set_default_tensor_type('torch.cuda.FloatTensor')", "device"),
        ("import torch\ntorch.amp.GradScaler('cuda')", "amp"),
        ("import torch.distributed as d\nd.init_process_group('cpu:gloo,cuda:nccl')",
         "collectives"),
        ("import torch\ntorch.compile(f, backend='inductor')", "compile-backend"),
        ("import torch\ntorch.compile(f)", "compile-backend"),
        ("def f(model):\n    model.compile(backend='inductor')", "compile-backend"),
        ("import torch\ntorch.compile(f, backend='neuron', mode='reduce-overhead')",
         "compile-mode"),
        ("import torch\ntorch.compile(f, backend='neuron', dynamic=True)", "compile-dynamic"),
    ],
)  # fmt: skip
def test_dependencies_are_found(tmp_path: Path, text: str, kind: str) -> None:
    assert kind in [k for _, k in kinds(tmp_path, text)]


# What holds a device's name on its way from where it is written to where it is used.
HELD = {
    "a constant": "D = 'cuda'\ndef f(x):\n    return x.to(D)\n",
    "a constant of a constant": "A = 'cuda'\nD = A\ndef f(x):\n    return x.to(D)\n",
    "a local name": "def f(x):\n    where = 'cuda'\n    return x.to(where)\n",
    "an index behind it": "D = 'cuda'\ndef f(x, rank):\n    return x.to(f'{D}:{rank}')\n",
    "a sum": "D = 'cuda'\ndef f(x, rank):\n    return x.to(D + ':' + str(rank))\n",
    "a default": "def f(x, where='cuda'):\n    return x.to(where)\n",
    "an argument": "def f(x, where):\n    return x.to(where)\n\nf(x, 'cuda')\n",
    "an attribute": "class A:\n    def __init__(self):\n        self.d = 'cuda'\n"
    "    def f(self, x):\n        return x.to(self.d)\n",
    "a field": "class A:\n    where: str = 'cuda'\n    def f(self, x):\n"
    "        return x.to(self.where)\n",
    "a table": "S = {'device': 'cuda'}\ndef f(x):\n    return x.to(S['device'])\n",
    "an option": "import argparse\np = argparse.ArgumentParser()\n"
    "p.add_argument('--where', default='cuda')\no = p.parse_args()\nx.to(o.where)\n",
    "a look-up": "import os\nD = os.environ.get('DEVICE', 'cuda')\nx.to(D)\n",
    "a fallback": "def f(x, where=None):\n    where = where or 'cuda'\n    x.to(where)\n",
    "a walrus": "def f(x):\n    return x.to(d := 'cuda')\n",
}


@pytest.mark.parametrize("text", HELD.values(), ids=HELD)
def test_a_device_is_followed_through_what_holds_it(tmp_path: Path, text: str) -> None:
    written = next(n for n, row in enumerate(text.splitlines(), 1) if "'cuda'" in row)
    assert kinds(tmp_path, text) == [(written, "device")]


def test_a_constant_of_a_module_beside_is_reported_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("\nDEVICE = 'cuda'\n")
    path = tmp_path / "work.py"
    path.write_text("import settings\nfrom settings import DEVICE\n"
                    "x.to(DEVICE)\nx.to(settings.DEVICE)\n")  # fmt: skip
    [hit] = static.scan(path, "neuron")
    assert (Path(hit.file).name, hit.line) == ("settings.py", 2)
    assert hit.text == "DEVICE = 'cuda', used in lines 3, 4 of work.py"


CHOICES = [
    "import torch\nd = 'cuda' if torch.cuda.is_available() else 'cpu'\nx.to(d)\ny.to(d)\n",
    "import torch\nif torch.cuda.is_available():\n    d = 'cuda'\nelse:\n    d = 'cpu'\nx.to(d)\n",
    "import torch\nx.to('cuda' if torch.cuda.is_available() else 'cpu')\n",
]


@pytest.mark.parametrize("text", CHOICES)
def test_a_choice_that_ends_on_the_host_is_told_apart(tmp_path: Path, text: str) -> None:
    path = tmp_path / "work.py"
    path.write_text(text)
    hits = {h.kind: h for h in static.scan(path, "neuron")}
    assert set(hits) == {"device-choice", "torch.cuda"}
    assert hits["device-choice"].supported is False
    assert "runs on the host" in hits["device-choice"].assumes
    assert hits["torch.cuda"].supported is None  # asking is allowed; the answer is no


def test_a_choice_that_names_the_target_is_no_hit(tmp_path: Path) -> None:
    text = "def f(x, ok):\n    x.to('neuron' if ok else 'cpu')\n"
    assert kinds(tmp_path, text) == []


@pytest.mark.parametrize(
    ("target", "found"), [("neuron", True), ("cuda", False), ("cpu", False), ("xpu", False)]
)
def test_a_compiler_is_foreign_only_to_devices_it_makes_no_code_for(
    tmp_path: Path, target: str, found: bool
) -> None:
    text = "import torch\nB = 'inductor'\ntorch.compile(f, backend=B)\n"
    assert bool(kinds(tmp_path, text, target)) == found


@pytest.mark.parametrize(
    "text",
    [
        "# torch.cuda.synchronize()\n",
        '"""Use model.cuda() and device=\'cuda\'."""\n',
        "message = 'run it with x.to(\"cuda\")'\n",
        "names = ['cuda', 'nccl']\n",
        "def cuda():\n    pass\n\ncuda()\n",
        "class L:\n    def cuda(self): return 1\n\nL().cuda()\n",
        "class L:\n    def item(self): return 1\n\nl = L()\nl.item()\ng = l.item\ng()\n",
        "def f(x, i):\n    x[x > 0] = 0\n    return x[i], x[len(x) > 1], x['a']\n",
        "def f(table):\n    return table[table['age'] > 3], table[table.age > 3]\n",
        "import torch\nx = torch.ones(1, device='cpu')\n",
        "import torch\nx = torch.ones(1, device='neuron')\n",
        "def f(x):\n    return x.cpu().numpy()\n",
        "def f(load):\n    return load(pin_memory=False)\n",
        "def f(table):\n    return table.item('key')\n",
        "def f(n):\n    if sum([n]) > 0:\n        return 1\n",
        "import numpy\nx = numpy.any([1])\nif numpy.any([1]): pass\n",
        "import my.torch as torch\ntorch.cuda.synchronize()\n",
        "D = 'cuda'\nprint(D)\nlog(f'on {D}')\n",
        "D = 'cuda'\n\ndef f(x, D):\n    return x.sum(D)\n",
        "def f(x):\n    D = 'cuda'\n    print(D)\n\ndef g(x, D):\n    return x.to(D)\n",
        "# D = 'cuda'\nD = 'neuron'\nx.to(D)\n",
        "S = {'device': 'neuron', 'title': 'cuda'}\nx.to(S['device'])\n",
        "import re\nre.compile('inductor')\n",
        "import torch\ntorch.compile(f, backend='neuron')\n",
        "def f(options):\n    torch.compile(f, **options)\n",
        "def f(word):\n    return word == 'cuda'\n",
        "import os\nos.environ['HOME']\n",
        "import torch\ntorch.where(c, a, b)\ntorch.ops.aten.add(a, b)\n",
    ],
)
def test_what_only_looks_like_one_is_no_find(tmp_path: Path, text: str) -> None:
    assert kinds(tmp_path, text) == []


def test_the_target_itself_is_no_foreign_device(tmp_path: Path) -> None:
    text = "import torch\nx = torch.ones(1, device='cuda')\n"
    assert kinds(tmp_path, text, "cuda") == []
    assert kinds(tmp_path, text, "neuron") == [(2, "device")]


CUDAS_OWN = """
import torch
from torch import cuda as gpu
A = torch.cuda
A.synchronize()
gpu.empty_cache()
A.max_memory_allocated()
torch.sparse.mm(a, b)
x.cuda().pin_memory()
x.double()
import triton, flash_attn
"""


def test_what_is_cudas_own_is_supported_where_the_target_is_cuda(tmp_path: Path) -> None:
    path = tmp_path / "work.py"
    path.write_text(CUDAS_OWN)
    hits = static.scan(path, "cuda")
    assert {h.kind for h in hits} >= {"synchronise", "memory", "sparse", "device", "pinned"}
    assert [h for h in hits if h.supported is not True] == []
    assert any(h.supported is False for h in static.scan(path, "xpu"))


def test_a_vendors_collectives_are_foreign_to_others(tmp_path: Path) -> None:
    text = "import torch.distributed as d\nd.init_process_group('cpu:gloo,cuda:nccl')\n"
    assert kinds(tmp_path, text, "cuda") == []
    assert kinds(tmp_path, text, "xpu") == [(2, "collectives")]


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


def test_names_that_lead_in_circles_come_to_an_end(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(14)]  # each passes its device on to every other: 14! ways
    calls = "".join(f"    {name}(x, where)\n" for name in names)
    text = "".join(f"def {name}(x, where):\n    x.to(where)\n{calls}" for name in names)
    found = kinds(tmp_path, text + "f0(x, 'cuda')\n")
    assert found == [(text.count("\n") + 1, "device")]


HELPERS = """
import torch
DEAD = "cuda"
LIVE = "cuda"

def called(x, where=LIVE):
    if len(x) > 99:
        x = x.cuda()
    y = torch.ones(
        2,
        dtype=torch.float64,
    )
    return [v.item() for v in y]

def never(x, device="mps"):
    return x.to(DEAD)

def short(x): return x.numpy()

def also_short(x): return x.tolist()

def resumes(path):
    return torch.load(path, map_location="cuda")

class Kept:
    size = torch.float64

    def forward(self, x):
        return x.double()

    def other(self, x):
        return x.pin_memory()

if False:
    import triton
"""
WORKLOAD = """
import helpers

def request(x):
    helpers.short(x)
    return helpers.called(x)

def load_checkpoint(path):
    return helpers.resumes(path)

def launch(x):
    return helpers.Kept()(x)
"""


def test_hits_are_told_apart_by_whether_their_lines_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    import torch

    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "workload.py").write_text(WORKLOAD)
    monkeypatch.syspath_prepend(tmp_path)
    recorder = lines.LineRecorder(tmp_path)
    try:
        with recorder:
            workload = importlib.import_module("workload")
        with recorder:
            workload.request(torch.ones(1))
    finally:
        for name in ("workload", "helpers"):
            sys.modules.pop(name, None)
    files = [tmp_path / "workload.py", tmp_path / "helpers.py"]
    hits = [h for f in files for h in static.scan(f, "neuron")]
    found = {
        (h.line, h.kind): h.reach
        for h in reach.mark(hits, recorder.of, files, ["load_checkpoint", "launch"])
    }
    assert found == {
        (3, "device"): NOT_SEEN,  # a constant counts where it is used
        (8, "device"): NOT_SEEN,  # a branch that no case took
        (11, "dtype"): ON_PATH,
        (13, "host-read"): ON_PATH,  # in a comprehension
        (15, "device"): NOT_SEEN,  # the default of a function that was only defined
        (18, "host-read"): ON_PATH,
        (20, "host-read"): NOT_SEEN,  # on the line that defines it, which did run
        (23, "device"): UNKNOWN,  # a part of the pilot that another stage runs leads there
        (26, "dtype"): ON_PATH,
        (29, "dtype"): UNKNOWN,  # of a class that such a part makes
        (32, "pinned"): NOT_SEEN,
        (35, "triton"): NOT_SEEN,
    }


def test_a_file_that_was_imported_before_is_judged_by_what_guards_a_line(tmp_path: Path) -> None:
    path = tmp_path / "early.py"
    path.write_text("import triton\nif 0:\n    import flash_attn\n")
    hits = static.scan(path, "neuron")
    nothing = {h.kind: h.reach for h in reach.mark(hits, lambda _: set(), [path], [])}
    assert set(nothing.values()) == {NOT_SEEN}
    module = ModuleType("early")
    module.__file__ = str(path)
    sys.modules["early"] = module
    try:
        marked = reach.mark(hits, lambda _: set(), [path], [])
    finally:
        del sys.modules["early"]
    assert [(h.line, h.reach) for h in marked] == [(1, ON_PATH), (3, UNKNOWN)]


def test_another_tracer_is_left_alone(tmp_path: Path) -> None:
    def other(*_: object) -> None:
        return None

    sys.settrace(other)
    try:
        with lines.LineRecorder(tmp_path) as recorder:
            assert sys.gettrace() is other
        assert sys.gettrace() is other and "debugger" in recorder.blind
    finally:
        sys.settrace(None)


KERNELS = """
import torch, triton
import triton.language as tl
from torch.utils.cpp_extension import load
from torch.library import triton_op

NAME = "mine::scale"
fast = load(name="fast", sources=["fast.cpp"])

@triton.jit
def add_kernel(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))

@torch.library.custom_op(NAME, mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@triton_op("mine::add", mutates_args=())
def add(x: torch.Tensor) -> torch.Tensor:
    return x

lib = torch.library.Library("mine", "FRAGMENT")

def go(x):
    return torch.ops.mine.scale(x) + scale(x)
"""


def test_a_kernel_counts_once_whatever_lines_name_it(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(KERNELS)
    hits = [dataclasses.asdict(h) for h in static.scan(path, "neuron")]
    names = [name for name, *_ in kernels.in_source(hits, ["mine::scale.default"])]
    assert names == [
        "fast (extension) at own.py:8",
        "add_kernel (triton) at own.py:10",
        "mine::add (custom-operator) at own.py:19",
    ]
    unreached = [name for name, *_ in kernels.in_source(hits, [])]
    assert "mine::scale (custom-operator) at own.py:15" in unreached and len(unreached) == 4
    path.write_text("import flash_attn\nfrom flash_attn import f\nimport triton\nf(1)\n")
    hits = [dataclasses.asdict(h) for h in static.scan(path, "neuron")]
    assert [n for n, *_ in kernels.in_source(hits, [])] == [
        "flash_attn (cuda-library) at own.py:1",
        "import triton (triton) at own.py:3",
    ]


def test_an_operator_that_is_reached_is_one_kernel_of_the_record(tmp_path: Path) -> None:
    arguments = ("--device", "cpu", "--only", "inventory", "--only", "kernels")
    pilot = EXAMPLES / "rare_host_operator.py"
    _, record = run(pilot, tmp_path, *arguments, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    facts = record["items"]["kernels"]["facts"]
    [kernel] = facts["kernels"]
    assert kernel["name"] == "clinic::spectral_radius"
    assert kernel["calls"] == 1 and kernel["has_gradient"] is False
    assert facts["count"] == facts["without_owner_or_test"] == 1


def test_a_kernel_that_no_case_runs_is_open_and_no_gap(tmp_path: Path) -> None:
    pilot = tmp_path / "pilot.py"
    pilot.write_text(
        "import torch\n"
        "def model():\n    return torch.nn.Linear(2, 2)\n"
        "def sharded(model):\n    import deepspeed\n    return deepspeed.initialize(model)\n"
        "def inputs(split):\n    return [(torch.ones(1, 2),)] if split == 'requests' else []\n"
    )
    arguments = ("--device", "cpu", "--only", "inventory", "--only", "kernels")
    _, record = run(pilot, tmp_path, *arguments, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    facts = record["items"]["kernels"]["facts"]
    [kernel] = facts["kernels"]
    assert kernel["name"].startswith("deepspeed (cuda-library)") and not kernel["seen"]
    assert (facts["count"], facts["without_owner_or_test"]) == (1, 0)
