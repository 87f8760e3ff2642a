"""Views, aliases and in-place writes: what one tensor writes, every alias of its storage reads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, no_fallback, to_device

Program = Callable[[torch.Tensor], Any]


def base() -> torch.Tensor:
    return torch.arange(24.0).reshape(4, 6)


def both(program: Program, x: torch.Tensor | None = None) -> None:
    """Runs ``program`` on CPU and on the device; results and the changed argument must agree."""
    on_cpu = base() if x is None else x
    on_device = to_device(on_cpu)
    with no_fallback():
        expected = program(on_cpu)
        actual = program(on_device)
        assert_same(actual, expected)
        assert_same(on_device, on_cpu, where="argument")


CHAINS: dict[str, Program] = {
    "slice": lambda x: x[1:3],
    "step": lambda x: x[::2, 1::3],
    "slice of a slice": lambda x: x[1:][:, 2:][1:, :3],
    "transpose": lambda x: x.t(),
    "slice of a transpose": lambda x: x.t()[1:5:2, 1:],
    "step then transpose": lambda x: x[1:3, ::2].t(),
    "select": lambda x: x[2],
    "select last": lambda x: x[:, -1],
    "one element": lambda x: x[1, 2],
    "diagonal": lambda x: x.diagonal(1),
    "view": lambda x: x.view(2, 2, 6)[1],
    "flatten and cut": lambda x: x.view(-1)[5:17],
    "split": lambda x: x.view(2, 12).split(5, dim=1)[1],
    "unflatten": lambda x: x.unflatten(1, (2, 3))[:, 1, 1:],
    "squeeze": lambda x: x[1:2].squeeze(0)[3:],
    "unsqueeze": lambda x: x[:, 1].unsqueeze(1),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1)[1:3],
    "as_strided": lambda x: x.as_strided((2, 3), (7, 2), 3),
    "movedim": lambda x: x.view(2, 3, 4).movedim(0, 2)[:, 1],
    "chunk": lambda x: x.chunk(3, 1)[2],
    "narrow": lambda x: x.narrow(1, 2, 3).narrow(0, 1, 2),
    "unbind": lambda x: x.unbind(1)[4],
    "real part": lambda x: torch.view_as_complex(x.view(4, 3, 2))[1:, 2].real,
    "empty": lambda x: x[2:2, 1:],
}


@pytest.mark.parametrize("name", CHAINS)
def test_reading_a_view(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        view = CHAINS[name](x)
        return view, view * 2, view.contiguous(), view.sum()

    both(program)


@pytest.mark.parametrize("name", CHAINS)
def test_writing_to_a_view_changes_the_base(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        other = x.view(-1)
        CHAINS[name](x).add_(100)
        CHAINS[name](x).mul_(torch.tensor(3.0, device=x.device))
        return other, x + 0

    both(program)


@pytest.mark.parametrize("name", CHAINS)
def test_copying_into_a_view(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        view = CHAINS[name](x)
        source = torch.arange(-1.0, view.numel() - 1, device="cpu").reshape(view.shape)
        view.copy_(source)  # from the host
        first = x.clone()
        view.copy_((source * 3).to(x.device))
        return first, view

    both(program)


def test_every_alias_sees_a_write() -> None:
    x = base().to("neuron")
    aliases = [x, x.view(-1), x.t(), x[1:], x.detach(), x.view(2, 12), x.data]
    expected = base()
    views = [
        expected, expected.view(-1), expected.t(), expected[1:], expected, expected.view(2, 12),
        expected,
    ]  # fmt: skip
    for i, (writer, writer_cpu) in enumerate(zip(aliases, views, strict=True)):
        writer.add_(i + 1)
        writer_cpu.add_(i + 1)
        for reader, reader_cpu in zip(aliases, views, strict=True):
            assert_same(reader, reader_cpu)


def test_writes_after_a_synchronisation_reach_the_base() -> None:
    x = torch.zeros(3, 3, device="neuron")
    view = x[1]
    view.add_(1)
    torch.neuron.synchronize()
    view.add_(1)
    view.cpu()
    view[2].add_(5)
    assert_same(x, torch.tensor([[0.0, 0, 0], [2, 2, 7], [0, 0, 0]]))


def test_expanded_tensors() -> None:
    def program(x: torch.Tensor) -> Any:
        row = x[1:2].expand(5, 6)
        column = x[:, :1].expand(-1, 3)
        x.add_(1)
        return row + 1, column.sum(), row.t()[2], column.reshape(-1)

    both(program)


def test_unfolded_windows_read_and_overlap() -> None:
    def program(x: torch.Tensor) -> Any:
        windows = x.unfold(1, 3, 2)
        overlapping = x.view(-1).unfold(0, 4, 1)
        return windows, windows * 2, overlapping.sum(1)

    both(program)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[:1].expand(4, 6).add_(1),
        lambda x: x.as_strided((3, 3), (1, 1)).zero_(),
        lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
        lambda x: torch.add(x.view(-1)[:-1], 1, out=x.view(-1)[1:]),
    ],
    ids=["expand", "as_strided", "copy_ of a shifted self", "out= over an input"],
)
def test_overlapping_writes_end_as_on_cpu(write: Program) -> None:
    ends = []
    for device in ("cpu", "neuron"):
        x = base().to(device)
        try:
            write(x)
            ends.append((None, x.cpu().tolist()))
        except RuntimeError as error:
            ends.append((str(error).split(".")[0], x.cpu().tolist()))
    assert ends[1] == ends[0]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int64, torch.int32),
        (torch.int16, torch.bfloat16),
        (torch.uint8, torch.float32),
        (torch.complex64, torch.float32),
        (torch.bool, torch.uint8),
    ],
    ids=str,
)
def test_view_as_another_dtype(source: torch.dtype, target: torch.dtype) -> None:
    x = (torch.arange(32) % 3 * 63 + 1).reshape(4, 8).to(source)

    def program(x: torch.Tensor) -> Any:
        seen = x.view(target)
        before = seen.clone()
        seen[1:3].copy_(seen[:2].clone())  # written through the other dtype
        return before, seen, x.clone()

    both(program, x)


def test_data_rebinding_leaves_older_views_alone() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x.clone()
        view = x[0]
        x.data.add_(1)
        after_write = view.clone()
        x.data = x.data + 1
        return after_write, view, x

    both(program)


def test_data_of_another_length() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x.clone()
        old = x.view(-1)
        x.data = old[:5] + 1
        return x, old

    both(program)


def test_gradient_of_an_overwritten_slice() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(3, 4)
    x = torch.randn(2, 3)
    gradients = []
    for device in ("cpu", "neuron"):
        layer = copy.deepcopy(linear).to(device)
        y = layer(x.to(device))
        y[:, :2] = 0
        y.sum().backward()
        gradients.append(layer.weight.grad)
    assert_same(gradients[1], gradients[0])
    assert not gradients[1][:2].any()


def test_gradients_through_views_and_in_place_writes() -> None:
    torch.manual_seed(0)
    data = torch.randn(4, 6)

    def run(device: str) -> Any:
        leaf = data.to(device).requires_grad_()
        x = leaf * 1
        x[1:3, ::2].t().mul_(2)
        x.view(-1)[::5] += x[0, :5].clone()
        x[:, 1] = x[:, 2].clone().sin()
        (x.square().sum() + x.t()[3].prod()).backward()
        return x.detach(), leaf.grad

    assert_same(run("neuron"), run("cpu"))


def test_storage_addresses() -> None:
    x = torch.zeros(4, 6, device="neuron")
    y = torch.zeros(4, 6, device="neuron")
    assert x.data_ptr() == x.view(-1).data_ptr() == x.detach().data_ptr() == x.t().data_ptr()
    assert x[1:].data_ptr() == x.data_ptr() + 6 * 4
    assert x.untyped_storage().data_ptr() == x[2:].untyped_storage().data_ptr()
    assert x.data_ptr() != y.data_ptr() != 0
    before = x.data_ptr()
    x.add_(1)
    x.cpu()
    x.copy_(y)
    torch.add(x, y, out=x)
    assert x.data_ptr() == before
    assert len({torch.empty(n, device="neuron").data_ptr() for n in (1, 1)}) >= 1
    alive = [torch.empty(1, device="neuron") for _ in range(100)]
    assert len({t.data_ptr() for t in alive}) == 100


def test_tied_weights_stay_tied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    torch.manual_seed(0)
    on_cpu = Tied()
    on_device = copy.deepcopy(on_cpu).to("neuron")
    for model in (on_device, copy.deepcopy(on_device)):
        assert model.head.weight is model.embed.weight
        assert len(list(model.parameters())) == 1
    tokens = torch.tensor([[1, 2, 6]])
    for model, x in ((on_cpu, tokens), (on_device, tokens.to("neuron"))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x).square().sum().backward()
        optimizer.step()
    assert_same(on_device.embed.weight, on_cpu.embed.weight)
    assert on_device.head.weight.data_ptr() == on_device.embed.weight.data_ptr()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.complex64]
)
def test_element_assignment(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        for i in (0, 2, -1, -5):
            x[i] = True if dtype is torch.bool else 3 + i % 7
        x[1:3] = x[5]
        return x

    both(program, torch.zeros(7, dtype=dtype))


def test_assignment_with_many_indices() -> None:
    def program(w: torch.Tensor) -> Any:
        w[0, 1, 0, 0] = 3
        w[1, -1] = 2
        w[:, 0, 1:, ::2] = torch.arange(4.0).reshape(2, 2, 1).to(w.device)[:, :, :]
        w[..., 2] = 9
        w[None, 1] += 1
        return w

    both(program, torch.zeros(2, 2, 3, 3))


def test_dirac_initialisation() -> None:
    both(lambda w: torch.nn.init.dirac_(w), torch.empty(4, 2, 3, 3).zero_())


def test_resize() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x.clone()
        view = x.view(-1)
        x.resize_(2, 3)
        smaller = x.clone()
        x.resize_(4, 6)
        same = x.clone()
        y = torch.arange(4.0, device=x.device)
        y.resize_(9)[4:].zero_()
        return smaller, same, view, y

    both(program)


def test_resize_of_an_empty_tensor_then_out() -> None:
    out = torch.empty(0, device="neuron")
    torch.add(base().to("neuron"), 1, out=out)
    assert_same(out, base() + 1)


def test_storage_resize_releases_and_returns() -> None:
    x = base().to("neuron")
    storage = x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(size)
    x.copy_(base() * 2)
    assert_same(x, base() * 2)


def test_set() -> None:
    def program(x: torch.Tensor) -> Any:
        y = torch.empty(0, device=x.device)
        y.set_(x)
        y.add_(1)
        z = torch.empty(0, device=x.device)
        z.set_(x.untyped_storage(), 3, (2, 4), (8, 2))
        z.mul_(2)
        w = torch.empty(0, device=x.device)
        w.set_(x.untyped_storage())
        return y, z, w

    both(program)


def test_gaps_of_a_strided_host_tensor_stay_untouched() -> None:
    device = torch.arange(24.0).to("neuron")
    for make in (
        lambda t: t[::2],
        lambda t: t[1::3],
        lambda t: t.view(4, 6)[::2, 1:4],
        lambda t: t.view(4, 6).t()[1::2],
    ):
        parent = torch.full((24,), -1.0)
        expected = parent.clone()
        make(parent).copy_(make(device))
        make(expected).copy_(make(torch.arange(24.0)))
        assert torch.equal(parent, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.permute(2, 0, 1),
        lambda x: x.transpose(0, 2),
        lambda x: x[:, ::2],
        lambda x: x[:, :1].expand(2, 3, 4),
        lambda x: x.flip(1),
        lambda x: x[1:, 1:, 1:],
    ],
    ids=["permute", "transpose", "step", "expand", "flip", "slice"],
)
def test_moving_strided_host_tensors(make: Program) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert_same(make(x).to("neuron"), make(x), strides=False)
    assert_same(make(x).to("neuron", torch.float64), make(x).double(), strides=False)
    back = make(x.to("neuron")).cpu()
    assert torch.equal(back, make(x))


def test_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    device = x.to("neuron")
    assert_same(device, x)
    assert_same(device[:, :1] * 2, x[:, :1] * 2)
    assert_same(device.contiguous(), x.contiguous())
    assert_same(torch.nn.functional.conv2d(device[:, :1], device[:1, :1]),
                torch.nn.functional.conv2d(x[:, :1], x[:1, :1]), strides=False)  # fmt: skip


def test_three_sliced_dimensions() -> None:
    def program(x: torch.Tensor) -> Any:
        x = x[:1]
        return x[:, 0:1, 0:1] * x[:, 1:2, 1:2]

    both(program, torch.arange(12.0).reshape(3, 2, 2))


def test_softmax_of_a_last_dimension_slice() -> None:
    both(lambda x: torch.softmax(x[..., :4], 1)[..., 0], torch.randn(3, 5, 6))


def test_cache_written_by_index_put_through_a_view() -> None:
    def program(cache: torch.Tensor) -> Any:
        slots = torch.tensor([3, 0, 5], device=cache.device)
        new = torch.arange(18.0, device=cache.device).reshape(3, 2, 3)
        cache.view(-1, 2, 3).index_put_((slots,), new)
        return cache

    both(program, torch.zeros(2, 4, 2, 3))


def test_odd_widths_of_int64_views() -> None:
    both(lambda x: (x[:, 1:] + 1, x[:, ::7]), torch.arange(855)[None])


def test_conjugated_views() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])

    def program(z: torch.Tensor) -> Any:
        c = z.conj()
        return c.imag, (c * z).real, c.resolve_conj(), torch.view_as_real(z)

    both(program, z)
    assert torch.equal(z.to("neuron").conj().cpu().resolve_conj(), z.conj().resolve_conj())


def test_metadata_only_in_place_calls() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x.clone()
        y.unsqueeze_(0)
        y.squeeze_(0)
        y.t_()
        y.transpose_(0, 1)
        y.detach_()
        z = x.clone()
        z.as_strided_((2, 3), (6, 1), 2)
        return y, z

    both(program)


@pytest.mark.parametrize("offset", [None, 2])
def test_copies_of_as_strided_count_from_the_storage(offset: int | None) -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_copy(x[1:, ::2], (2, 2), (3, 1), offset)

    def scattered(x: torch.Tensor) -> torch.Tensor:
        source = torch.full((2, 2), -1.0, device=x.device)
        return torch.as_strided_scatter(x[1:, ::2], source, (2, 2), (3, 1), offset)

    a = torch.arange(40.0).reshape(4, 10)
    for function in (copied, scattered):
        assert torch.equal(function(a.to("neuron")).cpu(), function(a))
    compiled = torch.compile(copied, backend="neuron")
    assert torch.equal(compiled(a.to("neuron")).cpu(), copied(a))
