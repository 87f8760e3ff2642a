"""PyTorch Geometric's convolutions on made-up graphs: gather and scatter work, and its loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clients.common import library, numbers, same_as_cpu

CLIENTS = ("torch-geometric",)
pytestmark = pytest.mark.clients

NODES, EDGES, IN, OUT = 12, 40, 8, 6

# Constructor arguments beside (in_channels, out_channels); None: none at all.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "GCNConv": {},
    "SAGEConv": {},
    "GraphConv": {},
    "GATConv": {"heads": 2},
    "GATv2Conv": {"heads": 2},
    "TransformerConv": {"heads": 2},
    "ChebConv": {"K": 3},
    "TAGConv": {},
    "SGConv": {},
    "ARMAConv": {},
    "LEConv": {},
    "ClusterGCNConv": {},
    "GENConv": {},
    "ResGatedGraphConv": {},
    "FeaStConv": {},
    "MFConv": {},
    "SuperGATConv": {},
    "FiLMConv": {},
    "PDNConv": None,
    "GINConv": None,
    "EdgeConv": None,
}


def graph() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, NODES, (2, EDGES), generator=generator)


def convolution(name: str) -> torch.nn.Module:
    nn = library("torch_geometric.nn")
    torch.manual_seed(0)
    options = CONVOLUTIONS[name]
    if name == "GINConv":
        made = nn.GINConv(torch.nn.Linear(IN, OUT), train_eps=True)
    elif name == "EdgeConv":
        made = nn.EdgeConv(torch.nn.Linear(2 * IN, OUT))
    elif name == "PDNConv":
        made = nn.PDNConv(IN, OUT, edge_dim=3, hidden_channels=4)
    else:
        made = getattr(nn, name)(IN, OUT, **(options or {}))
    return made.eval()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_gradients(name: str) -> None:
    more = (numbers(EDGES, 3),) if name == "PDNConv" else ()
    same_as_cpu(convolution(name), numbers(NODES, IN), graph(), *more, train=True, scale=5)


@pytest.mark.parametrize("name", ["mean", "max", "add", "softmax", "median", "std", "lstm"])
def test_aggregations(name: str) -> None:
    aggr = library("torch_geometric.nn.aggr")
    torch.manual_seed(0)
    made = {
        "mean": aggr.MeanAggregation,
        "max": aggr.MaxAggregation,
        "add": aggr.SumAggregation,
        "softmax": aggr.SoftmaxAggregation,
        "median": aggr.MedianAggregation,
        "std": aggr.StdAggregation,
        "lstm": lambda: aggr.LSTMAggregation(IN, OUT),
    }[name]()
    index = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 4, 4, 4])
    same_as_cpu(made, numbers(NODES, IN), index, train=name == "lstm", scale=5)


def test_training_on_made_up_graphs() -> None:
    """Batches of several graphs, pooled by graph."""
    geometric, loader = library("torch_geometric"), library("torch_geometric.loader")
    nn = library("torch_geometric.nn")
    generator = torch.Generator().manual_seed(0)
    data = [
        geometric.data.Data(
            x=torch.randn(n, IN, generator=generator),
            edge_index=torch.randint(0, n, (2, 3 * n), generator=generator),
            y=torch.tensor([n % 2]),
        )
        for n in (5, 6, 7, 8)
    ]

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.GCNConv(IN, 16), nn.GATConv(16, 16)
            self.head = torch.nn.Linear(16, 2)

        def forward(self, batch: Any) -> torch.Tensor:
            x = self.one(batch.x, batch.edge_index).relu()
            x = self.two(x, batch.edge_index).relu()
            result: torch.Tensor = self.head(nn.global_mean_pool(x, batch.batch))
            return result

    def run(device: str) -> list[float]:
        torch.manual_seed(0)
        model = Classifier().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(2):
            for batch in loader.DataLoader(data, batch_size=2):
                batch = batch.to(device)
                loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    assert run("neuron") == pytest.approx(run("cpu"), rel=1e-4)
