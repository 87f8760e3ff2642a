"""Exit codes of ``neuron-readiness``: what a CI job can tell apart without reading the record."""

from __future__ import annotations

from collections.abc import Iterable

PROCEED = 0
USAGE = 2
CONTINUE = 10  # named gaps
KEEP = 11  # a requirement was not met
INTERRUPTED = 130

# A fault says that the tool could not do its work as asked. The first of this order that a record
# has decides the exit code, whatever the decision.
FAULTS: dict[str, int] = {
    "disk-full": 30,
    "newer-schema": 29,
    "device-absent": 28,
    "pilot-raised": 20,
    "needs-network": 26,
    "hung": 21,
    "crashed": 22,
    "leaks": 23,
    "forked": 25,
    "nan": 24,
    "nondeterministic": 27,
    "tool-error": 31,
}
DECISIONS: dict[str, int] = {"proceed": PROCEED, "continue": CONTINUE, "keep": KEEP}


def exit_code(verdict: str, faults: Iterable[str]) -> int:
    """The exit code of a record with this verdict and these kinds of fault."""
    present = set(faults)
    for kind, code in FAULTS.items():
        if kind in present:
            return code
    return DECISIONS[verdict]
