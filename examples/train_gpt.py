"""Trains a small GPT on real English text, on CPU and on device `neuron`, and compares.

The text is CPython's own reference manual (``pydoc_data/topics.py``), the vocabulary its ASCII
characters. Every mode starts from the same weights and sees the same batches:

* ``cpu``       PyTorch's CPU device, eager;
* ``eager``     the device given by --device, eager;
* ``compiled``  the same device, ``torch.compile(backend="neuron")``.

Prints the loss curves side by side and writes everything as JSON. The exit status is 1 if an
operator fell back to the CPU, or if, in float32 without dropout, a final loss is further than
--tolerance from the CPU's.

    python examples/train_gpt.py
    python examples/train_gpt.py --device cpu --modes cpu --steps 20
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from _report import (
    Observer,
    Progress,
    describe_plugin,
    print_operators,
    steady,
    synchronize,
    write_json,
)

VOCABULARY = 128  # ASCII
CONTEXT = 64
BATCH = 32
WIDTH = 128
HEADS = 4
LAYERS = 3
LEARNING_RATE = 1e-3
WARMUP_STEPS = 20
FINAL_STEPS = 10  # the final loss is the mean of the last steps, less noisy than one batch
MODES = ("cpu", "eager", "compiled")


class Block(nn.Module):
    """Pre-norm causal self-attention and a feed-forward layer. (B, T, WIDTH) in and out."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + F.dropout(self.proj(attended), self.dropout, self.training)
        hidden = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(hidden, self.dropout, self.training)


class GPT(nn.Module):
    """A character-level GPT whose output layer shares the embedding's weight."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of predicting ``targets`` from ``tokens``, both (B, T) int64."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def load_text() -> torch.Tensor:
    """The text as int64 character codes below 128; other characters become '?'."""
    text = "\n\n".join(pydoc_data.topics.topics.values())
    return torch.tensor(list(text.encode("ascii", errors="replace")), dtype=torch.int64)


def batches(text: torch.Tensor, steps: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The (tokens, targets) of every step, (BATCH, CONTEXT) int64 on the CPU, from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(CONTEXT + 1)
    result = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
        windows = text[starts + rows]
        result.append((windows[:, :-1].contiguous(), windows[:, 1:].contiguous()))
    return result


def train(mode: str, options: argparse.Namespace, data: list[Any]) -> dict[str, Any]:
    """One run in one mode: losses, times, operators and compilations, JSON-ready."""
    device = torch.device("cpu" if mode == "cpu" else options.device)
    torch.manual_seed(options.seed)
    model = GPT(options.dropout).to(device)  # initialised on the CPU, then copied
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP_STEPS)
    )
    forward = torch.compile(model, backend=options.backend) if mode == "compiled" else model

    observer = Observer(device)
    observer.start()
    progress = Progress(mode, len(data))
    losses: list[float] = []
    seconds: list[float] = []
    for tokens, targets in data:
        start = time.perf_counter()
        loss = forward(tokens.to(device), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        losses.append(loss.item())
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        progress.update(len(losses), f"loss {losses[-1]:.4f}  {1000 * seconds[-1]:.1f} ms")
    last = losses[-FINAL_STEPS:]
    return {
        "device": str(device),
        **describe_plugin(device),
        "losses": losses,
        "final_loss": sum(last) / len(last),
        "first_step_s": seconds[0],
        "steady_step": steady(seconds),
        "step_s": seconds,
        **observer.stop(),
    }


def compare(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each mode's distance from the CPU's curve; empty if the CPU did not run."""
    if "cpu" not in runs:
        return {}
    reference = runs["cpu"]
    return {
        mode: {
            "final_loss_difference": abs(run["final_loss"] - reference["final_loss"]),
            "largest_step_difference": max(
                abs(a - b) for a, b in zip(run["losses"], reference["losses"], strict=True)
            ),
        }
        for mode, run in runs.items()
        if mode != "cpu"
    }


def print_report(runs: dict[str, dict[str, Any]], differences: dict[str, Any]) -> None:
    """Loss curves side by side, then times, operators and compilations of each mode."""
    steps = len(next(iter(runs.values()))["losses"])
    shown = sorted({*range(0, steps, max(1, steps // 15)), steps - 1})
    print("\nstep " + "".join(f"{mode:>12}" for mode in runs))
    for step in shown:
        print(f"{step + 1:4d} " + "".join(f"{run['losses'][step]:12.5f}" for run in runs.values()))
    print("final" + "".join(f"{run['final_loss']:12.5f}" for run in runs.values()))
    print("\nmode        first step   then p10 / median / p90     all steps  device    plugin")
    for mode, run in runs.items():
        step = run["steady_step"]
        times = " / ".join(f"{1000 * step[key]:.1f}" for key in ("p10_s", "median_s", "p90_s"))
        print(
            f"{mode:10} {run['first_step_s']:9.3f} s  {times:>22} ms  {step['sum_s']:8.1f} s  "
            f"{run['device']:9} {run['plugin']} {run['plugin_version']}"
        )
    uneven = [mode for mode, run in runs.items() if run["steady_step"]["uneven"]]
    if uneven:
        print(f"Step times of {', '.join(uneven)} are uneven (busy machine?): do not compare them.")
    for mode, run in runs.items():
        print_operators(mode, run)
    for mode, difference in differences.items():
        print(
            f"{mode} against cpu: final loss differs by {difference['final_loss_difference']:.2e}, "
            f"a single step by at most {difference['largest_step_difference']:.2e}"
        )


def failures(
    runs: dict[str, dict[str, Any]], differences: dict[str, Any], tolerance: float | None
) -> list[str]:
    """What this run was meant to show and did not."""
    found = [
        f"{mode}: {len(run['fallback'])} operators fell back to the CPU"
        for mode, run in runs.items()
        if run["fallback"]
    ]
    for mode, difference in differences.items():
        distance = difference["final_loss_difference"]
        # `not <=`: a NaN must fail too.
        if tolerance is not None and not distance <= tolerance:
            found.append(f"{mode}: final loss is {distance:.2e} from the CPU's, over {tolerance}")
    return found


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--backend", default="neuron", help="of torch.compile")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="with it the curves differ: masks do"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--output", type=Path, default=Path("out/train_gpt.json"))
    options = parser.parse_args(argv)
    options.modes = options.modes.split(",")
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        parser.error(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(unknown)}")
    if options.steps < 1:
        parser.error(f"--steps: expected at least 1, got {options.steps}")
    return options


def main() -> int:
    options = parse()
    text = load_text()
    data = batches(text, options.steps, options.seed)
    parameters = sum(p.numel() for p in GPT().parameters())
    print(
        f"GPT: {LAYERS} layers, width {WIDTH}, {parameters} parameters, float32; "
        f"{len(text)} characters of text; {options.steps} steps of {BATCH} x {CONTEXT}; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    runs = {mode: train(mode, options, data) for mode in options.modes}
    differences = compare(runs)
    print_report(runs, differences)
    failed = failures(runs, differences, options.tolerance if options.dropout == 0 else None)
    write_json(
        options.output,
        {
            "torch": str(torch.__version__),
            "steps": options.steps,
            "seed": options.seed,
            "dropout": options.dropout,
            "differences": differences,
            "failures": failed,
            "modes": runs,
        },
    )
    for text_line in failed:
        print(f"FAILED {text_line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
