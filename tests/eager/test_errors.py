"""Bad input on the device: CPU's exception where CPU has one, and tensors that survive."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from support import assert_same, output_of, run_python, to_device

Call = Callable[..., Any]

# name -> (call, tensors). On CPU each raises when called.
OUT_OF_RANGE: dict[str, tuple[Call, list[torch.Tensor]]] = {
    "embedding": (lambda w, i: F.embedding(i, w), [torch.ones(5, 2), torch.tensor([1, 5])]),
    "embedding, negative": (
        lambda w, i: F.embedding(i, w), [torch.ones(5, 2), torch.tensor([[-1], [0]])],
    ),
    "gather": (lambda x, i: x.gather(1, i), [torch.ones(2, 3), torch.tensor([[0], [3]])]),
    "scatter": (
        lambda x, i: x.scatter(1, i, 1.0), [torch.ones(2, 3), torch.tensor([[0], [-1]])],
    ),
    "scatter_add": (
        lambda x, i: x.scatter_add(0, i, x), [torch.ones(2, 3), torch.tensor([[0, 2, 1]])],
    ),
    "index": (lambda x, i: x[i], [torch.ones(4, 3), torch.tensor([0, 4])]),
    "index, second": (lambda x, i: x[:, i], [torch.ones(4, 3), torch.tensor([0, -4])]),
    "index_put": (
        lambda x, i: x.index_put((i,), torch.zeros(3, device=x.device)),
        [torch.ones(4, 3), torch.tensor([7])],
    ),
    "index_select": (
        lambda x, i: x.index_select(0, i), [torch.ones(4, 3), torch.tensor([0, 4])],
    ),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), [torch.ones(2, 3), torch.tensor([0, 3])]),
    "nll_loss": (lambda x, t: F.nll_loss(x, t), [torch.ones(2, 3), torch.tensor([-1, 0])]),
    "take": (lambda x, i: x.take(i), [torch.ones(2, 3), torch.tensor([6])]),
}  # fmt: skip


def _line() -> str:
    """How errors name this file's lines."""
    return re.escape(Path(__file__).name) + r":\d+"


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.parametrize("point", ["synchronize", "cpu", "item"])
def test_index_out_of_range(name: str, point: str) -> None:
    call, tensors = OUT_OF_RANGE[name]
    with pytest.raises((IndexError, RuntimeError)) as on_cpu:
        call(*tensors)
    device = to_device(tensors)
    torch.neuron.synchronize()
    result = call(*device)
    with pytest.raises((IndexError, RuntimeError), match=_line()) as on_device:
        if point == "synchronize":
            torch.neuron.synchronize()
        elif point == "cpu":
            result.cpu()
        else:
            result.sum().item()
    assert on_device.type is on_cpu.type
    assert "aten::" in str(on_device.value)
    # Reported once; data survive, and the device works.
    torch.neuron.synchronize()
    assert_same(device, tensors)
    assert_same(device[0] + 1, tensors[0] + 1)


def test_the_earliest_error_is_raised() -> None:
    table = torch.ones(3, 2, device="neuron")
    F.embedding(torch.tensor([5], device="neuron"), table)
    table.gather(0, torch.tensor([[9, 9]], device="neuron"))
    with pytest.raises(IndexError, match="aten::embedding"):
        torch.neuron.synchronize()
    torch.neuron.synchronize()


def test_an_error_in_place_keeps_the_other_elements() -> None:
    x = torch.zeros(4, device="neuron")
    x.index_fill_(0, torch.tensor([1, 2], device="neuron"), 3.0)
    x.scatter_(0, torch.tensor([9], device="neuron"), 7.0)
    with pytest.raises(RuntimeError):
        torch.neuron.synchronize()
    assert x.tolist() == [0, 3, 3, 0]


WRONG_SHAPES: dict[str, tuple[Call, list[torch.Tensor]]] = {
    "add": (torch.add, [torch.ones(2, 3), torch.ones(4)]),
    "mm": (torch.mm, [torch.ones(2, 3), torch.ones(2, 3)]),
    "bmm": (torch.bmm, [torch.ones(2, 3, 4), torch.ones(3, 4, 5)]),
    "addmm": (torch.addmm, [torch.ones(7), torch.ones(2, 3), torch.ones(3, 4)]),
    "matmul": (torch.matmul, [torch.ones(2, 3), torch.ones(5)]),
    "cat": (lambda a, b: torch.cat([a, b]), [torch.ones(2, 3), torch.ones(2, 4)]),
    "stack": (lambda a, b: torch.stack([a, b]), [torch.ones(2), torch.ones(3)]),
    "linear": (F.linear, [torch.ones(2, 3), torch.ones(4, 2)]),
    "conv2d": (F.conv2d, [torch.ones(1, 3, 4, 4), torch.ones(2, 4, 3, 3)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 9), [torch.ones(1, 1, 4, 4)]),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), [torch.ones(2, 3)]),
    "cross_entropy": (F.cross_entropy, [torch.ones(2, 3), torch.tensor([1, 2, 0])]),
    "in place": (lambda a, b: a.add_(b), [torch.ones(3), torch.ones(2, 3)]),
    "copy_": (lambda a, b: a.copy_(b), [torch.ones(3), torch.ones(2)]),
    "view": (lambda a: a.view(5), [torch.ones(2, 3)]),
    "view of strided": (lambda a: a.t().view(-1), [torch.ones(2, 3)]),
    "expand": (lambda a: a.expand(4, 3), [torch.ones(2, 3)]),
    "dim": (lambda a: a.sum(2), [torch.ones(2, 3)]),
    "softmax dim": (lambda a: a.softmax(-3), [torch.ones(2, 3)]),
    "gather rank": (lambda a, i: a.gather(0, i), [torch.ones(2, 3), torch.tensor([0])]),
    "index dtype": (lambda a, i: a.gather(0, i), [torch.ones(2), torch.tensor([0.0])]),
    "select": (lambda a: a[5], [torch.ones(2, 3)]),
    "dtypes of mm": (torch.mm, [torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)]),
    "result in int": (lambda a, b: a.add_(b), [torch.ones(2, dtype=torch.int64), torch.ones(2)]),
    "bool minus bool": (torch.sub, [torch.ones(2) > 0, torch.ones(2) > 0]),
    "integer mean": (torch.mean, [torch.ones(2, dtype=torch.int64)]),
    "clamp without bounds": (torch.clamp, [torch.ones(2)]),
    "empty max": (torch.max, [torch.ones(0)]),
    "layer_norm dtypes": (
        lambda x, w: F.layer_norm(x, (3,), w),
        [torch.ones(2, 3), torch.ones(3).double()],
    ),
    "conv dtypes": (F.conv1d, [torch.ones(1, 2, 3), torch.ones(1, 2, 1).double()]),
    "index_copy dtypes": (
        lambda x, i, s: x.index_copy(0, i, s),
        [torch.ones(2, 3), torch.tensor([0]), torch.ones(1, 3).double()],
    ),
    "index_add dtypes": (
        lambda x, i, s: x.index_add(0, i, s),
        [torch.ones(2, 3), torch.tensor([0]), torch.ones(1, 3).double()],
    ),
    "index_put dtypes": (
        lambda x, i, s: x.index_put((i,), s),
        [torch.ones(2, 3), torch.tensor([0]), torch.ones(1, 3).double()],
    ),
    "gelu of integers": (F.gelu, [torch.ones(2, dtype=torch.int64)]),
    "softmax of integers": (lambda x: x.softmax(0), [torch.ones(2, dtype=torch.int64)]),
    "bitwise and of floats": (torch.bitwise_and, [torch.ones(2), torch.ones(2)]),
    "order of complex numbers": (torch.lt, [torch.ones(2) + 0j, torch.ones(2) + 0j]),
    "abs of bools": (torch.abs, [torch.ones(2) > 0]),
    "sort dim": (lambda x: x.sort(2), [torch.ones(2, 3)]),
    "dim of much data": (lambda x: x.softmax(2), [torch.ones(1000, 1000)]),
    "dtypes of a large product": (
        torch.mm,
        [torch.ones(400, 400), torch.ones(400, 400).double()],
    ),
    "empty max over a dim": (lambda x: x.max(0), [torch.ones(0, 2)]),
    "item of many": (lambda a: a.item(), [torch.ones(2)]),
    "bool of many": (bool, [torch.ones(2)]),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_arguments_raise_at_the_call(name: str) -> None:
    call, tensors = WRONG_SHAPES[name]
    with pytest.raises(Exception) as on_cpu:
        call(*[t.clone() for t in tensors])
    device = to_device(tensors)
    with pytest.raises(Exception) as on_device:
        call(*device)
    assert on_device.type is on_cpu.type
    # CPU's words, but for names of devices, types and internal functions.
    common = set(re.findall(r"[a-z]{3,}", str(on_cpu.value).lower()))
    said = set(re.findall(r"[a-z]{3,}", str(on_device.value).lower()))
    assert len(common & said) >= 0.5 * len(common), f"{on_device.value}\nCPU: {on_cpu.value}"
    torch.neuron.synchronize()
    assert_same(device, tensors)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.quint8, torch.bits8], ids=str)
def test_unsupported_dtype(dtype: torch.dtype) -> None:
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)) as caught:
        torch.empty(2, dtype=dtype, device="neuron")
    assert re.search(r"neuron|dtype|supported", str(caught.value)), caught.value


def test_dimensioned_cpu_tensor_beside_a_device_tensor() -> None:
    x = torch.ones(3, device="neuron")
    for call in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) + x,
        lambda: torch.mm(x[None], torch.ones(3, 1)),
        lambda: x.add_(torch.ones(3)),
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.where(x > 0, x, torch.ones(3)),
    ):
        with pytest.raises(
            RuntimeError, match="Expected all tensors to be on the same device, but found at least"
        ):
            call()
    assert_same(x + torch.tensor(2.0), torch.full((3,), 3.0))
    assert_same(torch.tensor(2.0) * x, torch.full((3,), 2.0))
    assert_same(x, torch.ones(3))


def test_cpu_indices_index_device_tensors() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    assert_same(x.to("neuron")[torch.tensor([2, 0])], x[torch.tensor([2, 0])])


def test_generator_of_another_device() -> None:
    with pytest.raises(RuntimeError, match=r"[Ee]xpected a .*generator.*cpu|generator"):
        torch.empty(3, device="neuron").normal_(generator=torch.Generator())
    with pytest.raises(
        RuntimeError, match="Expected a 'cpu' device type for generator but found 'neuron'"
    ):
        torch.randn(3, generator=torch.Generator("neuron"))


def test_in_place_on_a_leaf_that_needs_a_gradient() -> None:
    x = torch.ones(3, device="neuron", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


# -- Faults injected into a process of their own --------------------------------------------------

BROKEN_RULE = """
    import torch
    from torch_neuronx.lowering import table
    import dataclasses
    table.load_rules()
    def broken(*args, **kwargs):
        raise ValueError("the rule is broken")
    for name in ("aten::tanh", "aten::mul.Tensor"):
        table.RULES[name] = dataclasses.replace(
            table.RULES[name], function=broken, wants=frozenset())
"""


def test_a_lowering_that_fails_is_an_error_and_no_fallback() -> None:
    text = output_of(
        BROKEN_RULE
        + """
    import torch_neuronx
    x = torch.arange(3.0).to("neuron")
    y = torch.tanh(x)
    try:
        y.cpu()
    except RuntimeError as error:
        print("raised", error)
    try:
        (y + 1).cpu()
    except RuntimeError as error:
        print("later", error)
    x.mul_(x)
    try:
        torch.neuron.synchronize()
    except RuntimeError as error:
        print("in place", error)
    print("x", x.tolist(), (x + 1).tolist(), torch_neuronx.get_fallback_ops())
    """,
        TORCH_NEURONX_LOWERING="inprocess",
        TORCH_NEURONX_DISABLE_NEFF_CACHE="1",
    )
    assert re.search(r"raised aten::tanh.*the rule is broken.*<string>:\d+", text)
    assert re.search(r"later .*the rule is broken", text)
    assert re.search(r"in place aten::mul_.*the rule is broken", text)
    assert "x [0.0, 1.0, 2.0] [1.0, 2.0, 3.0] []" in text


def test_blocking_launches_raise_at_the_call() -> None:
    text = output_of(
        """
    import torch
    table = torch.ones(3, 2, device="neuron")
    index = torch.tensor([5], device="neuron")
    try:
        torch.nn.functional.embedding(index, table)
        print("not raised")
    except IndexError as error:
        print("raised", error)
    print((table + 1).sum().item())
    """,
        NEURON_LAUNCH_BLOCKING="1",
    )
    assert re.search(r"raised .*aten::embedding.*<string>:\d+", text)
    assert "12.0" in text


def _no_plugin(value: str) -> str:
    done = run_python(
        """
    import torch
    print("imported", torch.neuron.is_available())
    try:
        torch.ones(3, device="neuron")
    except RuntimeError as error:
        print("raised", type(error).__name__, error)
    print(torch.ones(2).sum().item(), "on cpu")
    """,
        TORCH_NEURONX_PJRT_PLUGIN=value,
    )
    assert done.returncode == 0, done.stderr
    assert "2.0 on cpu" in done.stdout
    return done.stdout


def test_plugin_path_that_does_not_exist() -> None:
    text = _no_plugin("/nowhere/plugin.so")
    assert "imported False" in text
    assert re.search(r"raised \w+ .*/nowhere/plugin.so.*does not exist", text)
    assert "TORCH_NEURONX_PJRT_PLUGIN" in text


def test_plugin_name_that_nobody_has() -> None:
    text = _no_plugin("npu_of_tomorrow")
    assert re.search(r"raised .*'npu_of_tomorrow'; installed: .*lammps_jax_pjrt_cpu", text)


def test_plugin_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "plugin.so"
    file.write_text("no library")
    text = _no_plugin(str(file))
    assert re.search(rf"raised .*{re.escape(str(file))}", text)
    assert re.search(r"invalid ELF header|file too short", text)


def test_library_that_is_no_plugin() -> None:
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    text = _no_plugin(str(library))
    assert re.search(r"raised .*libc10\.so.*GetPjrtApi", text)


FALLBACK = """
    import warnings
    import torch
    import torch_neuronx
    library = torch.library.Library("demo", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    x = torch.ones(2, 3, dtype=torch.float32, device="neuron")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in range(2):
                r = torch.ops.demo.twice(x)
            print("ran", r.tolist(), r.device)
        except Exception as error:
            print("raised", type(error).__name__, isinstance(error, NotImplementedError), error)
    print("warned", len([w for w in caught if "demo::twice" in str(w.message)]),
          [str(w.message) for w in caught][:1])
    print("listed", torch_neuronx.get_fallback_ops())
    from torch_neuronx.eager import tracking
    print("counted", [(f.overload, f.dtypes, f.shapes, n) for f, n in tracking.fallbacks()])
    print(torch_neuronx.fallback_table())
    torch_neuronx.clear_op_tracking()
    print("cleared", torch_neuronx.get_fallback_ops())
"""


def test_fallback_error_names_the_call() -> None:
    text = output_of(FALLBACK, TORCH_NEURONX_FALLBACK="error")
    assert re.search(
        r"raised FallbackError True demo::twice.*float32.*\(2, 3\).*<string>:\d+", text
    )
    assert "listed []" in text


def test_fallback_warns_once() -> None:
    text = output_of(FALLBACK, TORCH_NEURONX_FALLBACK="warn")
    assert "ran [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]] neuron:0" in text
    assert "warned 1 ['demo::twice" in text
    assert "listed ['demo::twice" in text


def test_fallback_allowed_is_silent_and_counted() -> None:
    text = output_of(FALLBACK, TORCH_NEURONX_FALLBACK="allow")
    assert "warned 0 []" in text
    assert re.search(r"counted \[\('demo::twice', \('float32',.*\), 2\)\]", text)
    assert re.search(r"^count +overload +dtypes +shapes +line$", text, re.MULTILINE)
    assert re.search(r"^2 +demo::twice +float32 +\(2, 3\) +<string>:\d+$", text, re.MULTILINE)
    assert "cleared []" in text


def test_option_with_a_bad_value() -> None:
    done = run_python("import torch; torch.ones(3, device='neuron')", TORCH_NEURONX_TARGET="trn9")
    assert done.returncode == 1
    assert "TORCH_NEURONX_TARGET: expected one of trn2, trn3, host, got 'trn9'" in done.stderr
