"""Item 3: does the device compute the intended result, in numbers and in the task's terms?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from neuron_readiness import trees
from neuron_readiness.context import Context
from neuron_readiness.evidence import Fault, Finding, Severity, Side, StageResult
from neuron_readiness.pilot import Case
from neuron_readiness.recording import (
    divergence,
    gradients,
    hard,
    inputs,
    precision,
    task,
    tolerance,
)
from neuron_readiness.recording.compare import Difference, compare, compare_all
from neuron_readiness.run import faults
from neuron_readiness.workload import Workload, still

_GATES = {"ordinary": "outputs", "hard": "hard_cases"}


def run(context: Context) -> StageResult:
    result = StageResult("correctness", "Correctness")
    device, reference = context.pair
    ordinary = context.pilot.cases("requests")
    batches = context.pilot.cases("train")
    _inputs(result, [*ordinary, *batches])
    if not ordinary:  # a training job: its steps are compared
        result.open("outputs", "inputs('requests') yields nothing: a training job's steps compare")
        work = partial(_layers, result, context, device, reference, [], batches)
        _part(result, context, "layers", work)
        _gradients(result, context, device, reference, [])
        _precision(result, context)
        _trajectory(result, context)
        return result
    difficult = context.pilot.cases("hard")
    provenance = "pilot"
    if not difficult:
        difficult, provenance = hard.derive(ordinary), "derived"
    _inputs(result, difficult)
    running = _running(context, reference, ordinary)
    if running is None:
        _outputs(result, context, device, reference, ordinary, "ordinary")
        _part(result, context, "precision", lambda: _precision(result, context))
        return result
    result.facts["repeatable"] = _repeatability(result, reference, running)
    if not result.facts["repeatable"]:
        result.open("every comparison with the device", "the reference does not repeat itself")
        _precision(result, context)
        return result
    outputs = _outputs(result, context, device, reference, ordinary, "ordinary")
    hard_outputs = _outputs(result, context, device, reference, difficult, "hard")
    result.facts["hard"]["origin"] = provenance
    both = [c for c in ordinary if c.name in outputs]
    _part(result, context, "task", lambda: _task(result, context, ordinary, outputs))
    answered = both + [c for c in difficult if c.name in hard_outputs]
    work = partial(_layers, result, context, device, reference, answered, batches)
    _part(result, context, "layers", work)
    work = partial(_gradients, result, context, device, reference, both or [running])
    _part(result, context, "gradients", work)
    _part(result, context, "precision", lambda: _precision(result, context))
    _part(result, context, "training trajectory", lambda: _trajectory(result, context))
    return result


def _running(context: Context, reference: Workload, cases: list[Case]) -> Case | None:
    """The first case that the reference answers, None if it answers none."""
    for case in cases:
        try:
            reference.output(case)
        except faults.raised():  # told with its case where outputs are compared
            continue
        return case
    return None


def _part(result: StageResult, context: Context, name: str, work: Callable[[], Any]) -> None:
    """One part of the stage; what it raises is a fault, and the other parts keep their results."""
    try:
        work()
    except faults.raised() as error:
        _raised(result, context, name, error)
        result.open(name, f"it raised {_said(error)}")


def _raised(result: StageResult, context: Context, name: str, error: BaseException) -> None:
    """A fault that names what raised, the error and its file and line; each error once."""
    fault = faults.classify(error, context.pilot_path)
    text = f"{fault.text} ({faults.place(error, context.pilot_path)})"
    if not any(text in known.text for known in result.faults):
        result.faults.append(dataclasses.replace(fault, text=f"{name}: {text}"))


def _inputs(result: StageResult, cases: list[Case]) -> None:
    """What the comparisons were made with, case by case."""
    rows = [row for case in cases for row in inputs.distribution(case)]
    result.ledgers.setdefault("inputs", []).extend(rows)
    result.facts.setdefault("inputs", []).extend(rows[:200])
    bad = {r["case"] for r in rows if r["not_finite"] and r["group"] == "ordinary"}
    for name in sorted(bad):
        text = "an ordinary input has values that are not finite"
        result.findings.append(Finding(text, "note", f"case {name}"))


def _repeatability(result: StageResult, reference: Workload, case: Case) -> bool:
    """Whether the reference agrees with itself; without that no difference means anything."""
    before = _versions(reference)
    once = reference.output(case)
    after = _versions(reference)
    changed = [n for n, (t, v) in after.items() if before[n][0] != t or before[n][1] != v]
    again = reference.output(case)
    rows = compare_all(again, once, lambda *_: tolerance.Tolerance(0, 0, "default", "equality"))
    worst = max((r.max_abs for r in rows), default=0.0)
    if all(r.within for r in rows):
        result.measured("the reference repeats itself to the bit", f"case {case.name}, seeded")
        return True
    text = f"two seeded runs on the reference differ by up to {worst:.3g}"
    if changed:
        text += (
            f"; a forward pass changes {', '.join(changed[:3])}, so that the result depends on the "
            "requests before: reset that state in `forward`"
        )
    else:
        text += "; chance, or state that a request leaves behind (a counter, a cache, a generator)"
    result.faults.append(Fault("nondeterministic", text, "workload"))
    result.measured(text, f"case {case.name}; differences to the device are not smaller than this")
    return False


def _versions(workload: Workload) -> dict[str, tuple[int, int]]:
    """Where each parameter and buffer lies and how often it was written to."""
    return {
        n: (t.data_ptr(), 0 if t.is_inference() else t._version)
        for n, t in workload.parameters().items()
    }


def _outputs(
    result: StageResult,
    context: Context,
    device: Workload,
    reference: Workload,
    cases: list[Case],
    group: str,
) -> dict[str, tuple[Any, Any]]:
    """Compares the outputs of each case; returns them on the host, (device, reference)."""
    tol = tolerance.of_outputs(reference.pilot, reference.model)
    rows: list[tuple[Case, Difference]] = []
    outputs: dict[str, tuple[Any, Any]] = {}
    errors = []
    for case in cases:
        try:
            expected = reference.output(case)
        except faults.raised() as error:
            errors.append(_error(context, case, "reference", error))
            if group == "ordinary":
                _raised(result, context, f"case {case.name}, on the reference", error)
            continue
        try:
            actual = trees.move(device.output(case), "cpu")
        except faults.raised() as error:
            errors.append(_error(context, case, "device", error))
            continue
        outputs[case.name] = (actual, expected)
        rows += [(case, d) for d in compare_all(actual, expected, tol)]
    failed = [(c, d) for c, d in rows if not d.within]
    nan = sum(d.nan_device for _, d in rows)
    first = next(iter(outputs.values()), None)
    stated = tol(trees.tensors(first[1])[0], "") if first and trees.tensors(first[1]) else None
    device_errors = [e for e in errors if e["side"] == "device"]
    compared = bool(rows or device_errors)
    result.facts[group] = {
        "cases": len(cases),
        "outputs": len(rows),
        "failed_outputs": len(failed),
        "errors": errors,
        # Without a case there is no evidence, which is something else than none that fails.
        "failed": len(failed) + len(device_errors) if compared else None,
        "max_abs": max((d.max_abs for _, d in rows), default=0.0),
        "worst_in_tolerances": max((d.worst for _, d in rows), default=0.0),
        "tolerance": dataclasses.asdict(stated) if stated else None,
    }
    result.ledgers.setdefault("outputs", []).extend(
        {"case": c.name, "group": group, **dataclasses.asdict(d)} for c, d in rows
    )
    facts = result.facts[group]
    for e in errors:
        where = f" ({e['where']})" if e["where"] else ""
        text = f"{e['side']}: {e['error']}{where}"
        # What the reference refuses too says nothing of the device.
        refused = e["side"] == "reference"
        gate = "" if refused else _GATES[group]
        result.findings.append(
            Finding(text, "note" if refused else "gap", f"case {e['case']}", "", gate)
        )
    if compared and (missing := [e["case"] for e in errors if e["side"] == "reference"]):
        result.open(f"{group} cases {', '.join(missing[:5])}", "the reference raises on them")
    if not compared:
        why = "the outputs hold no tensor, number or text"
        if errors:
            why = f"the reference raises on every case: {errors[0]['error']}"
        if not cases:
            why = "inputs('hard') yields none, and none could be derived"
        result.open(f"{group} cases", why)
        return outputs
    how = f"tolerance {stated.provenance}: {stated.why}" if stated else ""
    result.measured(
        f"{group} cases: {len(rows) - len(failed)} of {len(rows)} outputs of {len(cases)} cases "
        f"within tolerance, worst at {facts['worst_in_tolerances']:.3g} of it",
        how,
    )
    for case, d in failed[:20]:
        detail = d.problem or f"differs by {d.max_abs:.3g}, {d.worst:.3g} times the tolerance"
        severity: Severity = "gap" if group == "ordinary" else "note"
        result.findings.append(
            Finding(f"{d.name}: {detail}", severity, f"case {case.name}", gate=_GATES[group])
        )
    if group == "ordinary" and nan:
        both = sum(d.nan_reference for _, d in rows)
        side: Side = "workload" if both else "infrastructure"
        where = "on the reference too" if both else "on the device only"
        result.faults.append(Fault("nan", f"{nan} NaN in the outputs, {where}", side))
    return outputs


def _task(
    result: StageResult, context: Context, cases: list[Case], outputs: dict[str, Any]
) -> None:
    facts = task.examine(context.pilot, [c for c in cases if c.name in outputs], outputs)
    result.facts["task"] = facts
    if facts["decisions"] is None:
        result.open("task-level decisions", "the pilot declares no `decide` and no `scores`")
    else:
        result.measured(_decided(facts), facts["how"])
        for flip in facts["flipped"][:10]:
            known = not math.isnan(flip["margin"])
            margin = f" at a margin of {flip['margin']:.3g}" if known else ""
            result.findings.append(
                Finding(
                    f"decision {flip['item']}: {flip['reference']} became {flip['device']}{margin}",
                    "gap",
                    f"case {flip['case']}",
                    gate="decisions",
                )
            )
    if facts["metric"] is None:
        result.open("task metric", "the pilot declares no `task_metric`")
    else:
        for name, row in facts["metric"].items():
            allowed = row["tolerance"]
            result.measured(
                f"task metric {name}: {row['device']:.6g}, reference {row['reference']:.6g}",
                f"ordinary cases; tolerance {allowed['provenance']}: {allowed['why']}",
            )
            if not row["within"]:
                text = f"metric {name} moves by {row['difference']:.3g}"
                result.findings.append(Finding(text, "gap", gate="metric"))


def _decided(facts: dict[str, Any]) -> str:
    """What the decisions did; of order and margins only where there are scores."""
    parts = [f"decisions: {facts['flips']} of {facts['decisions']} flip"]
    if facts["top_k"]:
        parts.append(f"top-{facts['top_k']} order differs in {facts['order_changes']}")
    if not math.isnan(facts["smallest_margin"]):
        parts.append(f"smallest margin {facts['smallest_margin']:.3g}")
    return "; ".join(parts)


def _layers(
    result: StageResult,
    context: Context,
    device: Workload,
    reference: Workload,
    cases: list[Case],
    batches: list[Case],
) -> None:
    """Layers of the requests that both sides answer, and of a training batch of each shape."""
    if not isinstance(reference.model, torch.nn.Module):
        result.open("layers", "the model is no torch.nn.Module")
        return
    if context.pilot.trains and batches:
        if _draws(context, batches[0]):
            why = "the step draws random numbers, which differ by device"
            result.open("layers of a training step", why)
        else:
            first: dict[str, Case] = {}
            for batch in batches:
                first.setdefault(trees.shape_text((batch.args, batch.kwargs)), batch)
            cases = [*cases, *first.values()]
    failed = {r["case"] for r in result.ledgers.get("outputs", []) if not r["within"]}
    limit = context.options.max_layers
    if cases:
        divergence.examine(result, device, reference, cases, limit, frozenset(failed))


def _gradients(
    result: StageResult, context: Context, device: Workload, reference: Workload, cases: list[Case]
) -> None:
    cases = context.pilot.cases("train") or cases
    if not cases:
        result.facts["gradients"] = None
        result.open("gradients", "inputs('train') yields no batch")
        return
    expected = gradients.of(reference, cases[0])
    if expected is None:
        result.facts["gradients"] = None
        why = (
            "the pilot declares no `loss`, the model's output has none, and no `train_step` leaves "
            "a gradient"
        )
        result.open("gradients", why)
        return
    try:
        actual = gradients.of(device, cases[0])
    except faults.raised() as error:
        result.facts["gradients"] = {"failed": 1, "error": _said(error)}
        text = f"backward on the device: {_said(error)}"
        result.findings.append(Finding(text, "gap", gate="gradients"))
        return
    tol = tolerance.of_gradients(expected, reference.model, context.pilot)
    rows = [
        compare(actual[n].cpu(), e, tol(e, n), n) if actual and n in actual else None
        for n, e in expected.items()
    ]
    missing = sum(r is None for r in rows)
    failed = [r for r in rows if r is not None and not r.within]
    worst = max((r.worst for r in rows if r), default=0.0)
    result.facts["gradients"] = {
        "parameters": len(rows),
        "missing": missing,
        "failed": len(failed) + missing,
        "worst_in_tolerances": worst,
    }
    result.measured(
        f"gradients: {len(rows) - len(failed) - missing} of {len(rows)} parameters agree, worst "
        f"at {worst:.3g} of the tolerance",
        f"one backward of the loss of case {cases[0].name}",
    )
    for r in failed[:10]:
        text = f"gradient of {r.name} differs by {r.max_abs:.3g}, {r.worst:.3g} tolerances"
        result.findings.append(Finding(text, "gap", gate="gradients"))


def _precision(result: StageResult, context: Context) -> None:
    """Effective precision of every floating dtype that the workload computes on."""
    names = set(context.earlier.get("inventory", {}).get("dtypes", {})) | {"float32"}
    for tensor in context.pair[1].parameters().values():
        names.add(str(tensor.dtype).removeprefix("torch."))
    rows = precision.probe(context.options.device, sorted(names))
    reduced = [r for r in rows if r["reduced"]]
    result.facts["precision"] = {"rows": rows, "reduced": [r["dtype"] for r in reduced]}
    for row in rows:
        if "error" in row:
            text = f"{row['dtype']} is refused: {row['error']}"
        else:
            text = (
                f"{row['dtype']}: {row['add_bits']} significant bits in additions, "
                f"{row['matmul_bits']} in matrix products, of {row['nominal_bits']}"
            )
        result.measured(text, "1 + 2**-p told from 1, on the device")
    for row in reduced:
        result.findings.append(
            Finding(
                f"the workload computes in {row['dtype']}, and the device computes it with "
                f"{row.get('add_bits', 'no')} of {row['nominal_bits']} bits",
                "gap",
                suggestion="use float32 with a compensated sum, or keep this part on the host",
                gate="precision",
            )
        )


def _trajectory(result: StageResult, context: Context) -> None:
    if not context.pilot.trains:
        result.facts["trajectory"] = None
        return
    batches = context.pilot.cases("train")
    if not batches:
        result.facts["trajectory"] = None
        result.open("training trajectory", "inputs('train') yields no batch")
        return
    steps = min(context.options.train_steps, max(len(batches), 2))
    losses = {}
    for side, adapter in (("reference", context.reference), ("device", context.device)):
        workload, silenced = still(Workload(context.pilot, adapter))
        torch.manual_seed(context.pilot.seed)
        try:
            losses[side] = [workload.train(batches[i % len(batches)]) for i in range(steps)]
        except faults.raised() as error:
            if side == "reference":
                raise
            result.facts["trajectory"] = {"failed": 1, "error": _said(error)}
            text = f"train_step on the device: {_said(error)}"
            result.findings.append(Finding(text, "gap", gate="trajectory"))
            return
    stated = tolerance.given(context.pilot.setting("tolerances", {}), "trajectory")
    stochastic = _draws(context, batches[0])
    allowed = stated or tolerance.Tolerance(
        1e-3, 1e-5, "default", "losses of a short run; rounding grows from step to step"
    )
    gaps = [abs(d - e) for d, e in zip(losses["device"], losses["reference"], strict=True)]
    outside = [
        i
        for i, (g, e) in enumerate(zip(gaps, losses["reference"], strict=True))
        if not g <= allowed.atol + allowed.rtol * abs(e)
    ]
    comparable = not stochastic
    result.facts["trajectory"] = {
        "steps": steps,
        "losses": losses,
        "largest_difference": max(gaps),
        "comparable": comparable,
        "failed": len(outside) if comparable else sum(map(math.isnan, losses["device"])),
        "tolerance": dataclasses.asdict(allowed),
    }
    note = f"tolerance {allowed.provenance}: {allowed.why}"
    if silenced:
        note += f"; {silenced} dropout layers set to 0, because devices draw different numbers"
    if stochastic:
        note = "the step draws random numbers, which differ by device: only NaN counts as failed"
    result.measured(f"{steps} training steps: losses differ by up to {max(gaps):.3g}", note)
    if outside and comparable:
        text = f"loss leaves the tolerance at step {outside[0]}: {gaps[outside[0]]:.3g}"
        result.findings.append(Finding(text, "gap", gate="trajectory"))
    if any(map(math.isnan, losses["device"])):
        both = any(map(math.isnan, losses["reference"]))
        cause: Side = "workload" if both else "infrastructure"
        result.faults.append(Fault("nan", "the training loss becomes NaN", cause))


def _draws(context: Context, batch: Case) -> bool:
    """Whether a step still depends on the seed: two seeds, one step each, on the reference."""
    losses = []
    for seed in (context.pilot.seed, context.pilot.seed + 1):
        workload, _ = still(Workload(context.pilot, context.reference))
        torch.manual_seed(seed)
        losses.append(workload.train(batch))
    return losses[0] != losses[1]


def _error(context: Context, case: Case, side: str, error: BaseException) -> dict[str, str]:
    where = faults.place(error, context.pilot_path)
    return {"case": case.name, "side": side, "error": _said(error), "where": where}


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"[:400]
