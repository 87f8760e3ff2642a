"""Which architectures a sweep takes: all of its sources, or a stratified sample."""

from __future__ import annotations

import difflib
import hashlib
from collections import defaultdict

from neuron_readiness.sweep.pool import Task
from neuron_readiness.sweep.sources import load


def tasks_of(sources: list[str]) -> tuple[list[Task], dict[str, str]]:
    """Every architecture of the sources, and why a source gave none."""
    tasks: list[Task] = []
    missing: dict[str, str] = {}
    for source in sources:
        module = load(source)
        why = module.available()
        if why is not None:
            missing[source] = why
            continue
        tasks += [(source, name, family) for name, family in module.names()]
    return tasks, missing


def unknown(names: list[str], tasks: list[Task]) -> str:
    """Which names no source has, each with the closest that one has, else how names look; "" where
    all are known."""
    known = sorted({name for _, name, _ in tasks})
    folded = {name.lower(): name for name in known}
    lines = []
    for name in dict.fromkeys(names):
        if name not in known:
            close = difflib.get_close_matches(name.lower(), folded, 3, 0.6)
            meant = ", ".join(folded[c] for c in close) or f"names like {', '.join(known[:3])}"
            lines.append(f"--name {name}: no source has it; expected {meant}")
    return "\n".join(lines)


def stratified(tasks: list[Task], count: int) -> list[Task]:
    """``count`` tasks, from each family in proportion to its size and at least one of each; the
    same ones every time."""
    families: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=lambda t: hashlib.sha256("/".join(t).encode()).digest()):
        families[task[0], task[2]].append(task)
    # In turn by how much of its share a family has had.
    taken: list[Task] = []
    given = dict.fromkeys(families, 0)
    while len(taken) < min(count, len(tasks)):
        open_ = [f for f in families if given[f] < len(families[f])]
        family = min(open_, key=lambda f: ((given[f] > 0), given[f] / len(families[f]), f))
        taken.append(families[family][given[family]])
        given[family] += 1
    return taken
