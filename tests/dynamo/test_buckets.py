"""``options={"buckets": ...}``: fewer executables than sizes, the same numbers, or a refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_neuronx
from support import Executables, assert_same
from torch_neuronx.dynamo.buckets import Spec


@pytest.mark.parametrize(
    "given, sizes",
    [
        ("powers_of_two", {1: 1, 2: 2, 3: 4, 8: 8, 9: 16}),
        (6, {1: 6, 6: 6, 7: 12}),
        ([16, 4], {1: 4, 4: 4, 5: 16, 17: 17}),
    ],
)
def test_buckets_of_a_spec(given: Any, sizes: dict[int, int]) -> None:
    spec = Spec.read(given)
    assert {n: spec.bucket(n) for n in sizes} == sizes


@pytest.mark.parametrize("given", ["powers", 0, [], [4, -1], {"a": 4}, {-1: 4}, True])
def test_what_is_no_spec_is_refused(given: Any) -> None:
    function = torch.compile(lambda a: a + 1, backend="neuron", options={"buckets": given})
    with pytest.raises(Exception, match=r"options\['buckets'\].*expected"):
        function(torch.ones(2).to("neuron"))


def run(
    function: Callable[..., Any],
    make: Callable[[int], tuple[torch.Tensor, ...]],
    buckets: Any = 8,
    sizes: tuple[int, ...] = (5, 7, 8, 6),
) -> None:
    """Equal to CPU at every size, with one executable for all."""
    compiled = torch.compile(
        function, backend="neuron", dynamic=True, fullgraph=True, options={"buckets": buckets}
    )
    counts = []
    for n in sizes:
        inputs = make(n)
        expected = function(*inputs)
        with Executables() as new:
            actual = compiled(*(x.to("neuron") for x in inputs))
            torch.neuron.synchronize()
        assert_same(actual, expected, strides=False)
        counts.append(new.count)
    assert counts == [1, *[0] * (len(sizes) - 1)]


# The logarithm makes infinities, and the division NaN, of what inputs are padded with.
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "element-wise": lambda x: (x.log() * 2 + 1).exp() / x,
    "sum": lambda x: (x.log().sum(0), (x / x).sum(), x.log().sum(0, keepdim=True)),
    "mean": lambda x: (x.log().mean(0), (x / x).mean(), x.log().mean(1)),
    "extremes": lambda x: (x.log().amin(0), (-x.log()).amax(0), x.log().min(0), x.log().argmin(0)),
    "all and any": lambda x: ((x > 0).all(0), (x <= 0).any(0), (x > 0).all(), x.prod(0)),
    "softmax": lambda x: (x.log().softmax(0), x.log().log_softmax(0), x.log().softmax(1)),
    "logsumexp": lambda x: x.reciprocal().logsumexp(0),
    "norms": lambda x: (x.log().norm(dim=0), F.layer_norm(x.log(), (6,)), F.rms_norm(x, (6,))),
    "products": lambda x: (x.log().T @ x.log(), x.log() @ x.T, x.T.log() @ x.log()[:, 0]),
    "scans": lambda x: (x.log().cumsum(0), x.cumprod(0), x.cumsum(1)),
    "views": lambda x: (x.T.unsqueeze(1).squeeze(1), x.view(-1, 2, 3).transpose(0, 1), x[:, 2:4]),
    "parts": lambda x: (x[1:].sum(0), x[:-1].log().sum(0), x[2:4], x[:-1] * x[1:], x[0], x[-2]),
    "joins": lambda x: (torch.cat([x, x.log()], 1), torch.stack([x, x]).sum((0, 1)), x.chunk(2, 1)),
    "created": lambda x: (torch.arange(x.shape[0], device=x.device) * 2, torch.ones_like(x).sum(0)),
    "sizes": lambda x: (x * x.shape[0], x.sum(0) / x.shape[0], x + x.shape[0] ** 0.5, x.shape[0]),
    "triangles": lambda x: torch.ones(x.shape[0], x.shape[0], device=x.device).tril() @ x.log(),
    "regrouped": lambda x: x.log().view(-1, 3, 2).permute(1, 0, 2).reshape(-1, 2).sum(0),
    "an input": lambda x: (x, x.view(-1, 3, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_operators_see_no_padding(name: str) -> None:
    run(CASES[name], lambda n: (torch.rand(n, 6) + 0.5,), {0: 8})


def test_inner_dimensions_are_padded_too() -> None:
    run(
        lambda x: (x.log().sum(1), x.T, x.log().T.softmax(0), x.view(-1), x.log() @ x.T),
        lambda n: (torch.rand(3, n) + 0.5,),
        {1: 8},
    )


def test_a_result_whose_padding_lies_inside_is_copied() -> None:
    compiled = torch.compile(
        lambda x: (x.log().view(-1), x.T.reshape(-1).log()), backend="neuron", dynamic=True,
        options={"buckets": 8},
    )  # fmt: skip
    for n in (5, 6):
        x = torch.rand(3, n) + 0.5
        assert_same(compiled(x.to("neuron")), (x.log().view(-1), x.T.reshape(-1).log()))


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 3), requires_grad=False)

    def forward(self, i: torch.Tensor) -> Any:
        i = i + 5  # in the padding: 5, in range; below it is not
        return F.embedding(i, self.table), self.table[i * 2].sum(0)


def test_indices_in_the_padding_are_right_ones() -> None:
    torch.manual_seed(0)
    on_cpu = Lookup()
    moved = {"cpu": on_cpu, "neuron": copy.deepcopy(on_cpu).to("neuron")}
    run(lambda i: moved[i.device.type](i), lambda n: (torch.arange(n) % 5 - 5,))


@pytest.mark.parametrize("causal, masked", [(True, False), (False, True), (False, False)])
def test_attention(causal: bool, masked: bool) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        mask = keep[:, None, None] if masked else None
        return F.scaled_dot_product_attention(q.log(), k.log(), k.log(), mask, is_causal=causal)

    def make(n: int) -> tuple[torch.Tensor, ...]:
        shape = (2, 2, n, 4)
        keep = torch.ones(2, n, dtype=torch.bool)
        keep[0, 1] = False
        return torch.rand(shape) + 0.5, torch.rand(shape) + 0.5, keep

    run(function, make, {1: 8, 2: 8})


def test_a_batch_of_images() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
    ).eval()
    moved = {"cpu": layers, "neuron": copy.deepcopy(layers).to("neuron")}
    run(lambda x: moved[x.device.type](x.log()), lambda n: (torch.rand(n, 3, 8, 8) + 0.5,), {0: 8})


def test_training_pads_the_backward_graph_too() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    head = nn.Linear(8, 5)
    on_cpu = nn.ModuleList([nn.Embedding(5, 8), layer, head])
    on_device = copy.deepcopy(on_cpu).to("neuron")

    def loss(modules: nn.ModuleList, tokens: torch.Tensor) -> torch.Tensor:
        embed, block, out = modules
        logits = out(block(embed(tokens)))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 5), tokens[:, 1:].reshape(-1))

    compiled = torch.compile(loss, backend="neuron", dynamic=True, options={"buckets": {1: 8}})
    counts = []
    for n in (5, 7, 6):
        tokens = torch.randint(5, (3, n))
        on_cpu.zero_grad()
        on_device.zero_grad()
        expected = loss(on_cpu, tokens)
        expected.backward()
        with Executables() as new:
            actual = compiled(on_device, tokens.to("neuron"))
            actual.backward()
            torch.neuron.synchronize()
        assert_same(actual, expected, strides=False)
        for p, q in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
            assert_same(p.grad, q.grad)
        counts.append(new.count)
    assert counts[0] >= 2 and counts[1:] == [0, 0]


def test_a_bucket_that_the_graph_does_not_hold_for_is_not_taken() -> None:
    positions = torch.randn(7, 3)
    moved = {"cpu": positions, "neuron": positions.to("neuron")}

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + moved[x.device.type][: x.shape[0]]

    compiled = torch.compile(function, backend="neuron", dynamic=True, options={"buckets": 8})
    for n in (5, 7):
        x = torch.randn(n, 3)
        assert_same(compiled(x.to("neuron")), function(x), strides=False)


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x: torch.cat([x, x]), "it joins along a padded dimension"),
        (lambda x: x.sort(0), "dimension 0 is padded"),
        (lambda x: F.layer_norm(x.T, (x.shape[0],)), "a normalised dimension is padded"),
        (lambda x: F.dropout(x, 0.5), "a padded draw would take other random numbers"),
        (lambda x: x.flip(0), "there is no rule for padded dimensions"),
        (lambda x: x.mul_(2), "a padded input is written to"),
        (lambda x: (y := x + 1, y.view(-1)), "a padded view of another result.*is regrouped"),
    ],
)
def test_what_is_not_proven_is_refused_by_node_and_line(
    function: Callable[[torch.Tensor], Any], why: str
) -> None:
    compiled = torch.compile(function, backend="neuron", dynamic=True, options={"buckets": {0: 8}})
    with pytest.raises(Exception, match=rf"cannot pad this graph.*{why}.* in `"):
        compiled(torch.ones(5, 2).to("neuron"))


def test_explain_names_the_buckets() -> None:
    compiled = torch.compile(
        lambda x: x + 1, backend="neuron", dynamic=True, options={"buckets": [4, 8]}
    )
    explained = torch_neuronx.explain(compiled, torch.ones(3).to("neuron"))
    assert explained.graphs[0].buckets[0].endswith("[4, 8]")
    assert "padded to buckets" in str(explained)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.cross_entropy(
            x.reshape(-1, 4), torch.zeros(x.shape[0] * x.shape[1], dtype=torch.int64).to(x.device)
        ),
        lambda x: F.cross_entropy(
            x.reshape(-1, 4),
            torch.zeros(x.shape[0] * x.shape[1], dtype=torch.int64).to(x.device),
            reduction="none",
        ),
        lambda x: x.reshape(-1, 4) + torch.ones(x.shape[0] * x.shape[1], 4, device=x.device),
        lambda x: torch.addmm(
            torch.ones(x.shape[0] * x.shape[1], 4, device=x.device), x.reshape(-1, 4), x[0, :4] * 0
        ),
    ],
    ids=["loss", "losses", "sum", "addmm"],
)
def test_one_argument_padded_within_and_one_at_its_end(function: Callable[..., Any]) -> None:
    """(batch, length) flattened has its padding after each row; a tensor made as long, at the end.
    Neither may be taken for the other."""
    compiled = torch.compile(
        function, backend="neuron", dynamic=True, options={"buckets": {1: "powers_of_two"}}
    )
    x = torch.randn(2, 5, 4).to("neuron")
    with pytest.raises(Exception, match="dimension 0 is padded differently in its arguments"):
        compiled(x)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.tokens(tokens)).view(-1, 11), targets.view(-1))


def test_training_with_targets_that_are_flattened_inputs() -> None:
    """The backward graph takes the flattened targets, padded in every row and not at the end."""
    torch.manual_seed(0)
    theirs = LanguageModel()
    ours = copy.deepcopy(theirs).to("neuron")
    compiled = torch.compile(
        ours, backend="neuron", dynamic=True, options={"buckets": {1: "powers_of_two"}}
    )
    for length in (5, 7, 8):
        tokens, targets = torch.randint(11, (2, 3, length)).unbind()
        loss = compiled(tokens.to("neuron"), targets.to("neuron"))
        expected = theirs(tokens, targets)
        assert_same(loss, expected)
        loss.backward()
        expected.backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_same(p.grad, q.grad)
