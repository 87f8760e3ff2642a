"""How many instructions does launching a small operator take, and whose are they?

The cases of ``launch.py`` under ``valgrind --tool=callgrind``, counted in the thread that launches:
CPU eager, per-operator ``neuron``, and adaptive eager once its loop is fused. Unlike times, counts
repeat on a machine that does other work. Each way runs in a process of its own.

``plugin`` is inside the plugin's calls (executing, destroying buffers, asking events; its symbols
are stripped, so that they are not told apart); ``ours`` is the extension module with what it calls
of the C and C++ libraries; ``tensors`` is what it calls of PyTorch; ``pytorch`` is the rest:
interpreter, bindings, dispatcher.

    python benchmarks/instructions.py [--quick] [--cases add,sum] [--top 20]

``--top`` also prints the functions with the most instructions of their own, as lines of text.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from _harness import emit

CASES = "add,mul_changing_number,view_add,add_in_place,matmul_64,sum,foreach_add_100,optimizer_100"
WAYS = {
    "cpu": ("cpu", "per-op"),
    "neuron": ("neuron", "per-op"),
    "adaptive": ("neuron", "adaptive"),
}

CHILD = """
import dataclasses, sys
sys.path.insert(0, sys.argv[1])
names, device, mode, calls = sys.argv[2].split(","), sys.argv[3], sys.argv[4], int(sys.argv[5])
import torch, torch_neuronx
from launch import cases
from torch_neuronx.compiler import session
from torch_neuronx.neuron import target
torch.set_num_threads(1)
small = dataclasses.replace(target.current(), hbm_bytes=1 << 30)  # valgrind's address space is
target.current = lambda: small
by_name = cases(device)
if device == "neuron":
    session.compiler()
    wait = torch.neuron.synchronize
else:
    wait = lambda: None
def count(name):
    return max(calls // 100, 1) if name.endswith("_100") else calls

with torch.no_grad(), torch_neuronx.eager_mode(mode):
    for name in names:
        for _ in range(4):  # a loop is found, compiled, and run
            for _ in range(30):
                by_name[name]()
            wait()
            if device == "neuron":
                session.compiler().drain()
    print("ready", flush=True)
    sys.stdin.readline()
    for name in names:
        case = by_name[name]
        for _ in range(count(name)):
            case()
        wait()
        torch._C._valgrind_toggle()
        for _ in range(count(name)):
            case()
        wait()
        torch._C._valgrind_toggle_and_dump_stats()
"""


@dataclass
class Profile:
    """Instructions of one dump of callgrind."""

    own: Counter[tuple[str, str]] = field(default_factory=Counter)  # (object, function)
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # from, to, function

    @property
    def total(self) -> int:
        return sum(self.own.values())


def parse_profile(text: str) -> Profile:
    """Reads callgrind's format; names are written once and then stand as their number."""
    profile = Profile()
    names: dict[tuple[str, str], str] = {}

    def name(kind: str, value: str) -> str:
        match = re.match(r"\((\d+)\)(?: (.*))?", value)
        if not match:
            return value
        if match[2] is not None:
            names[kind, match[1]] = match[2]
        return names[kind, match[1]]

    obj = function = called_obj = called = ""
    in_call = False
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key in ("ob", "cob", "fn", "cfn"):
            if key == "ob":
                obj = called_obj = name("ob", value)
            elif key == "cob":
                called_obj = name("ob", value)
            elif key == "fn":
                function = name("fn", value)
            else:
                called = name("fn", value)
        elif equals and key == "calls":
            in_call = True
        elif line and line[0] in "0123456789+-*":
            cost = int((*line.split(), 0)[1])  # a cost of zero may be left out
            if in_call:
                profile.calls[obj, called_obj, called] += cost
                in_call, called_obj = False, obj
            else:
                profile.own[obj, function] += cost
    return profile


def owner(path: str) -> str:
    """Whose object file this is."""
    name = Path(path).name
    if name.startswith("_C.cpython") and "torch_neuronx" in path:
        return "ours"
    if "pjrt" in name:
        return "plugin"
    if name.startswith(("libtorch", "libc10", "_C.cpython")):
        return "pytorch"
    return (
        "library" if name.startswith(("libc.", "libc-", "libstdc", "libpthread", "ld-")) else "rest"
    )


def split(profile: Profile) -> dict[str, int]:
    """Instructions by whose they are; see the module's text."""
    parts = Counter[str]()
    for (obj, _), cost in profile.own.items():
        if owner(obj) == "ours":
            parts["ours"] += cost
    for (source, target, _), cost in profile.calls.items():
        if owner(source) != "ours" or owner(target) == "ours":
            continue
        match owner(target):
            case "plugin":
                parts["plugin"] += cost
            case "library":
                parts["ours"] += cost
            case _:
                parts["tensors"] += cost
    parts["pytorch"] = profile.total - sum(parts.values())
    return dict(parts)


def count(way: str, cases: str, calls: int) -> dict[str, Profile]:
    """By case, of one process, which warms up at valgrind's plain speed."""
    device, mode = WAYS[way]
    names = cases.split(",")
    with tempfile.TemporaryDirectory(prefix="torchneuron-bench-") as folder:
        out = Path(folder, "callgrind")
        child = subprocess.Popen(
            [
                "valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no",
                f"--callgrind-out-file={out}", sys.executable, "-c", CHILD,
                str(Path(__file__).resolve().parent), cases, device, mode, str(calls),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(folder),
        )  # fmt: skip
        assert child.stdout
        if child.stdout.readline() == "ready\n":
            control = ["callgrind_control", "--instr=on", str(child.pid)]
            subprocess.run(control, check=True, capture_output=True)
        _, errors = child.communicate("go\n")
        dumps = [Path(f"{out}.{i + 1}") for i in range(len(names))]
        if child.returncode or not all(path.exists() for path in dumps):
            raise RuntimeError(f"the counted process failed ({child.returncode}):\n{errors}")
        return {
            case: parse_profile(path.read_text()) for case, path in zip(names, dumps, strict=True)
        }


def environment(folder: str) -> dict[str, str]:
    """What makes runs alike. Valgrind hides some instruction sets, so the cache is its own."""
    fixed = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "TORCH_NEURONX_CPU_THREADS": "1"}
    return {**os.environ, **fixed, "TORCH_NEURONX_CACHE_DIR": f"{folder}/cache"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few calls, to see that it runs")
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--top", type=int, default=0)
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed: this benchmark counts instructions with it")
    calls = 20 if options.quick else 200
    profiles = {way: count(way, options.cases, calls) for way in options.ways.split(",")}
    for case in options.cases.split(","):
        made = max(calls // 100, 1) if case.endswith("_100") else calls
        for way, by_case in profiles.items():
            profile = by_case[case]
            facts: dict[str, float] = {k: round(v / made) for k, v in split(profile).items()}
            if "cpu" in profiles:
                facts["against_cpu"] = round(profile.total / profiles["cpu"][case].total, 3)
            emit(
                "instructions",
                case=case,
                way=way,
                total=round(profile.total / made),
                **facts,
                calls=made,
            )
            for (obj, function), cost in profile.own.most_common(options.top):
                print(f"{cost / made:10.0f}  {Path(obj).name[:24]:24}  {function[:110]}")


if __name__ == "__main__":
    main()
