"""Item 1: what was evaluated, exactly enough that two records can be told apart."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from neuron_readiness.context import Context
from neuron_readiness.evidence import Finding, StageResult


def run(context: Context) -> StageResult:
    import torch

    result = StageResult("environment", "Environment identity")
    packages = installed()
    text = "\n".join(packages)
    facts: dict[str, Any] = {
        "instance": instance(),
        "os": platform.platform(),
        "distribution": os_release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "packages_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "packages": packages,
        "variables": variables(),
    }
    for side, adapter in (("device", context.device), ("reference", context.reference)):
        reason = adapter.absent()
        facts[side] = {"name": adapter.device, "absent": reason, **_identity(adapter, reason)}
    facts["stands_in"] = "" if facts["device"]["absent"] else context.device.stands_in()
    facts["configuration"] = configuration(facts)
    supported, why = context.device.route()
    facts["supported_route"] = {True: "yes", False: "no", None: "unknown"}[supported]
    facts["supported_route_because"] = why
    lineage = facts["device"].get("lineage", "unknown")
    facts["lineage_clear"] = lineage not in ("none", "unclear", "unknown")
    result.facts = facts
    result.measured(
        f"{facts['os']}, Python {facts['python']}, torch {facts['torch']}, "
        f"{len(packages)} packages (sha256 {facts['packages_sha256'][:12]})",
        "read from the running process; the full list is in the record",
    )
    result.measured(
        f"device {context.options.device}: {facts['device'].get('backend package')}, "
        f"lineage: {lineage}",
        str(facts["device"].get("lineage because", "by the adapter")),
    )
    if facts["stands_in"]:
        result.measured(facts["stands_in"], "the plugin's own properties")
        result.open("speed and memory of the device itself", "run the pilot where it is installed")
    if supported is None:
        result.open(f"supported installation route: {why}", "compare with the vendor's table")
    else:
        text = f"supported installation route: {facts['supported_route']}"
        result.documented(text, why) if "release notes" in why else result.measured(text, why)
        if not supported:
            result.findings.append(
                Finding(
                    f"the installation is not a supported route: {why}",
                    "gap",
                    suggestion="install the documented package family in a clean environment",
                    gate="route",
                )
            )
    for name in ("compiler", "runtime", "plugin", "driver"):
        if not facts["device"].get(name) and context.options.device != "cpu":
            result.open(f"{name} of the device", "the adapter cannot read it")
    return result


def configuration(facts: dict[str, Any]) -> str:
    """What was evaluated, in a line: a claim holds for this and for nothing else."""
    device = facts["device"]
    parts = [f"torch {facts['torch']}", f"Python {facts['python']}"]
    package = str(device.get("backend package") or "")
    if package and not package.startswith("torch "):
        parts.append(f"backend {package} ({device.get('lineage')})")
    for name in ("plugin", "plugin version", "target", "runtime", "driver"):
        value = device.get(name)
        if value and not str(value).startswith("none"):
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def _identity(adapter: Any, absent: str | None) -> dict[str, Any]:
    """What the adapter knows of its device; of an absent one, what can be known without it."""
    try:
        identity: dict[str, Any] = adapter.identity()
    except Exception:
        if not absent:
            raise
        return {}
    return identity


def installed() -> list[str]:
    """``name==version`` of every distribution, sorted: what ``pip freeze`` records, with the
    origin of what was installed from elsewhere than an index."""
    rows = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if not name:
            continue
        origin = distribution.read_text("direct_url.json")
        suffix = f" @ {hashlib.sha256(origin.encode()).hexdigest()[:12]}" if origin else ""
        rows.add(f"{name}=={distribution.version}{suffix}")
    return sorted(rows, key=str.lower)


def instance() -> dict[str, Any]:
    """The machine: CPU, cores, memory, and the cloud's name for it where firmware tells."""
    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "cpu": platform.processor() or _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("product_name", "sys_vendor"):
        try:
            facts[name] = Path(f"/sys/class/dmi/id/{name}").read_text().strip()
        except OSError:
            facts[name] = None
    return facts


def os_release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def variables() -> dict[str, str]:
    """Variables that change how a backend works. Values of secrets are not among these names."""
    prefixes = ("TORCH_NEURONX_", "NEURON_", "NKI_", "XLA_", "PJRT_", "OMP_", "MKL_", "PYTORCH_")
    names = {"TORCH_DEVICE_BACKEND_AUTOLOAD", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"}
    return {n: v for n, v in sorted(os.environ.items()) if n.startswith(prefixes) or n in names}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return ""
