"""Every ``_foreach_`` overload of PyTorch against CPU, on lists of different shapes."""

from typing import Any

import pytest
import torch
from tests.lowering.harness import check_filled, overload_of

from torch_neuronx.lowering import table


def functional_overloads() -> list[str]:
    """The functional foreach overloads that the installed PyTorch declares."""
    names = []
    for s in torch._C._jit_get_all_schemas():
        foreach = s.name.startswith("aten::_foreach") and not s.name.endswith("_")
        if foreach and not s.overload_name.endswith("out"):
            names.append(s.name + (f".{s.overload_name}" if s.overload_name else ""))
    return sorted(set(names))


def arguments(name: str, dtype: torch.dtype) -> list[Any]:
    """Numbers in (0, 1), where every function is defined."""
    torch.manual_seed(0)
    values: list[Any] = []
    for a in overload_of(name)._schema.arguments:
        kind = str(a.real_type)
        if kind == "List[Tensor]":
            shapes = [(2, 2), (2, 2)] if name.endswith("mm") else [(2, 3), (4,), ()]
            values.append([(torch.rand(s) * 0.9 + 0.05).to(dtype) for s in shapes])
        elif kind == "Tensor":
            one_each = a.name == "scalars"
            scalars = torch.tensor([0.5, 2.0, 3.0])
            values.append(scalars if one_each else torch.tensor(0.5).to(dtype))
        elif kind == "List[number]":
            values.append([0.5, 2, 1])
        elif kind == "number" and a.default_value is None:
            values.append(2.5)
        else:
            values.append(a.default_value)
    return values


def test_every_overload_has_a_rule() -> None:
    names = functional_overloads()
    assert len(names) >= 77
    assert not [n for n in names if n not in table.load_rules()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", functional_overloads())
def test_foreach(name: str, dtype: torch.dtype) -> None:
    for form in ("eager", "graph"):
        check_filled(name, arguments(name, dtype), form=form)


def test_list_of_one() -> None:
    x = [torch.ones(3)]
    check_filled("aten::_foreach_add.Scalar", [x, 2])
    check_filled("aten::_foreach_addcdiv.ScalarList", [x, x, x, [0.5]])
