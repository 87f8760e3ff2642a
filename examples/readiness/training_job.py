"""A training job with two defects that a short happy run does not show.

It accumulates its loss in float64, which some devices compute in float32; and its checkpoint keeps
model, optimizer and position, and forgets the random state on which dropout depends.
"""

import torch

name = "training job"
compile = False
# This team requires that a job resumes as if it had never been killed.
gates = {"recovery": {"level": "require"}}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
        )
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.layers(x)


def model():
    return Model()


def inputs(split):
    make = torch.Generator().manual_seed(1)
    if split == "requests":
        return [(torch.randn(4, 16, generator=make),)]
    if split == "train":
        x = torch.randn(8, 8, 16, generator=make)
        return [(batch, batch.sum(-1, keepdim=True)) for batch in x]
    return []


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss(output, x, y=None):
    return output.square().mean() if y is None else (output - y).square().mean()


def forward(model, x, y=None):
    return model(x)


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    error = torch.nn.functional.mse_loss(model(x), y)
    error.backward()
    optimizer.step()
    with torch.no_grad():
        model.total += error.double()
    return error.item()


def save_checkpoint(path, model, optimizer, position):
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**content, "position": position}, path)


def load_checkpoint(path, model, optimizer):
    content = torch.load(path, map_location="cpu")
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return content["position"]
