"""Every option and environment variable, declared once.

``get(name)`` reads a variable at its first use and freezes the value, unless the option is
``live``; ``override`` replaces values for the length of a ``with`` block. ``python -m
torch_neuronx.config`` prints ``docs/environment.md``. Imports nothing but the standard library's
cheapest modules, because ``import torch`` reaches this file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

PREFIXES = ("TORCH_NEURONX_", "NEURON_", "NKI_")

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


class ConfigError(ValueError):
    """A variable has a value that its option does not take."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    ``kind`` is "bool", "int", "float", "str", "path" or "choice". ``default`` is a value, or a
    function of the environment; then ``default_text`` says in words what it gives. ``keyed``: the
    value changes what is compiled, so it enters the cache key. ``live``: read at every use. Bounds
    are inclusive.
    """

    name: str
    kind: str
    default: Any
    stage: str  # "stable" or "experimental"
    keyed: bool
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default_text: str = ""
    alias_of: str | None = None
    live: bool = False

    def parse(self, text: str, source: str | None = None) -> Any:
        """The typed value of ``text``; ``source`` names the variable it came from.

        Raises:
            ConfigError: names the variable, what was expected and what came.
        """
        text = text.strip()
        value: Any = None
        if self.kind == "bool":
            lowered = text.lower()
            value = True if lowered in _TRUE else False if lowered in _FALSE else None
        elif self.kind == "choice":
            value = text.lower() if text.lower() in self.choices else None
        elif self.kind == "path":
            value = os.path.abspath(os.path.expanduser(text))
        elif self.kind == "str":
            value = text
        else:
            with contextlib.suppress(ValueError):
                value = int(text) if self.kind == "int" else float(text)
            low, high = self.minimum, self.maximum
            if value is not None and not (
                (low is None or value >= low) and (high is None or value <= high)
            ):
                value = None
        if value is None:
            raise ConfigError(
                f"{source or self.name}: expected {self.expects()}, got {text!r}. "
                f"Set it to such a value or unset it (default: {self.describe_default()})."
            )
        return value

    def expects(self) -> str:
        """What a value looks like, in words."""
        if self.kind == "bool":
            return "0 or 1 (false/true, no/yes, off/on)"
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "path":
            return "a path"
        if self.kind == "str":
            return "a text"
        noun = "an integer" if self.kind == "int" else "a number"
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{noun} from {low:g} to {high:g}"
        if low is not None:
            return f"{noun} of at least {low:g}"
        return noun

    def describe_default(self) -> str:
        """The default, in words."""
        if self.default_text:
            return self.default_text
        if self.default is None:
            return "unset"
        return str(int(self.default)) if self.kind == "bool" else str(self.default)


def _cores(environ: Mapping[str, str]) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_threads(environ: Mapping[str, str]) -> int:
    first = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else _cores(environ)


def _num_devices(environ: Mapping[str, str]) -> int:
    text = environ.get("LOCAL_WORLD_SIZE", "").strip()
    return max(1, int(text)) if text.isdigit() else 1


def _eager(environ: Mapping[str, str]) -> str:
    return "adaptive" if get("TORCH_NEURONX_ENABLE_CONCATENATION") else "per-op"


def _cache_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative one
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "torchneuron")


def _debug_dir(environ: Mapping[str, str]) -> str:
    return os.path.join(get("TORCH_NEURONX_CACHE_DIR"), "debug")


_STABLE, _EXPERIMENTAL = "stable", "experimental"

_TABLE = (
    Option(
        "TORCH_NEURONX_PJRT_PLUGIN",
        "str",
        None,
        _STABLE,
        False,  # the plugin's own hash and version enter the key
        "The PJRT plugin: a path to a shared library, or a name that discovery lists.",
        default_text="the CPU plugin",
    ),
    Option(
        "TORCH_NEURONX_TARGET",
        "choice",
        "trn2",
        _STABLE,
        True,
        "The target profile: memory per core, float64 policy, fp8 formats, engine table.",
        choices=("trn2", "trn3", "host"),
    ),
    Option(
        "TORCH_NEURONX_FLOAT64",
        "choice",
        "auto",
        _STABLE,
        True,
        "`exact` computes float64 in float64; `auto` does so on target `host` only and otherwise "
        "computes in float32.",
        choices=("auto", "exact"),
    ),
    Option(
        "TORCH_NEURONX_NUM_DEVICES",
        "int",
        _num_devices,
        _STABLE,
        False,
        "How many devices this process has.",
        minimum=1,
        default_text="LOCAL_WORLD_SIZE, at least 1",
    ),
    Option(
        "TORCH_NEURONX_CPU_THREADS",
        "int",
        _cpu_threads,
        _STABLE,
        False,  # the worker-thread count enters the key by itself
        "Worker threads of the CPU plugin.",
        minimum=1,
        default_text="OMP_NUM_THREADS, else the cores this process may use",
    ),
    Option(
        "TORCH_NEURONX_CACHE_DIR",
        "path",
        _cache_dir,
        _STABLE,
        False,
        "Root of the executable cache. It must be writable by its owner alone.",
        default_text="$XDG_CACHE_HOME/torchneuron, else ~/.cache/torchneuron",
    ),
    Option(
        "TORCH_NEURONX_NEFF_CACHE_DIR",
        "path",
        None,
        _STABLE,
        False,
        "TorchNeuron's name for TORCH_NEURONX_CACHE_DIR.",
        alias_of="TORCH_NEURONX_CACHE_DIR",
    ),
    Option(
        "TORCH_NEURONX_DISABLE_NEFF_CACHE",
        "bool",
        False,
        _STABLE,
        False,
        "Neither read nor write the executable cache on disk: always recompile.",
    ),
    Option(
        "TORCH_NEURONX_NEFF_DISABLE_CACHE",
        "bool",
        None,
        _STABLE,
        False,
        "Another of TorchNeuron's names for TORCH_NEURONX_DISABLE_NEFF_CACHE.",
        alias_of="TORCH_NEURONX_DISABLE_NEFF_CACHE",
    ),
    Option(
        "TORCH_NEURONX_EXECUTABLE_MEMORY_MB",
        "int",
        1024,
        _STABLE,
        False,
        "Bound, in MiB, of the executables kept loaded in memory; the least recently used go.",
        minimum=1,
    ),
    Option(
        "TORCH_NEURONX_COMPILE_WORKERS",
        "int",
        _cores,
        _STABLE,
        False,
        "Threads that compile.",
        minimum=1,
        default_text="the cores this process may use",
    ),
    Option(
        "TORCH_NEURONX_HOST_KERNELS",
        "bool",
        False,
        _EXPERIMENTAL,
        False,  # the handlers' names enter the key by themselves
        "Programs may call PyTorch's own CPU kernels where those are quicker than the plugin's "
        "code. CPU plugins only; `torchneuron info --device` says which, or why not.",
    ),
    Option(
        "TORCH_NEURONX_LOWERING",
        "choice",
        "server",
        _STABLE,
        False,
        "Where operators are lowered: in a helper process, or in this one (for debugging: it "
        "imports jax here).",
        choices=("server", "inprocess"),
    ),
    Option(
        "TORCH_NEURONX_LOWERING_IDLE_S",
        "float",
        300.0,
        _STABLE,
        False,
        "Seconds without a request after which a lowering server exits.",
        minimum=0.01,
    ),
    Option(
        "TORCH_NEURONX_LOWERING_SERVERS",
        "int",
        1,
        _EXPERIMENTAL,
        False,
        "How many lowering servers may run; another starts only while all others are busy.",
        minimum=1,
        maximum=2,
    ),
    Option(
        "TORCH_NEURONX_FALLBACK",
        "choice",
        "warn",
        _STABLE,
        False,
        "An operator without a lowering rule runs on the CPU: `warn` once per overload, `allow` "
        "silently (still counted), or `error`.",
        choices=("warn", "allow", "error"),
    ),
    Option(
        "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
        "bool",
        True,
        _STABLE,
        False,
        "TorchNeuron's switch, accepted for compatibility. It is always on here: a lowering or an "
        "execution that fails is an error, and 0 does not change that.",
    ),
    Option(
        "TORCH_NEURONX_DYNAMIC",
        "choice",
        "accept",
        _STABLE,
        False,
        "`reject` makes torch.compile refuse dynamic shapes, as TorchNeuron does.",
        choices=("accept", "reject"),
        live=True,
    ),
    Option(
        "TORCH_NEURONX_AOT_CACHE",
        "bool",
        False,
        _EXPERIMENTAL,
        False,
        "torch.compile keeps AOTAutograd's results in PyTorch's cache (TORCHINDUCTOR_CACHE_DIR, if "
        "only you can write it), and `torch.compiler.save_cache_artifacts` includes executables.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
        "bool",
        True,
        _STABLE,
        False,
        "A graph of torch.compile that cannot be compiled raises; 0 runs it operator by operator "
        "instead, with a warning. `options={'fallback_execution': ...}` comes before it.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY",
        "bool",
        False,
        _STABLE,
        False,
        "CPU tensors given to a compiled function are an error instead of being copied to the "
        "device at each call.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_COMPILE_ONLY",
        "bool",
        False,
        _EXPERIMENTAL,
        False,
        "Compile and store programs without running them: tensors take no device memory and have "
        "no values. `torchneuron cache export` takes the executables elsewhere.",
    ),
    Option(
        "TORCH_NEURONX_RETAIN_DEVICE_MODE",
        "bool",
        False,
        _STABLE,
        False,
        "A compiled function's results lie where eager would have them; otherwise results that "
        "were computed from copied CPU inputs stay on the device.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_ENABLED_METRIC_TABLES",
        "str",
        "",
        _STABLE,
        False,
        "Tables of torch.compile to write as CSV when the program ends, separated by commas "
        "(`graph_stats`, `specialisations`, `eager_frames`).",
        default_text="none",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_METRICS_DIR",
        "path",
        "/tmp",
        _STABLE,
        False,
        "Where those tables go: `metric_table_<table>_rank<rank>.csv`.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_EAGER",
        "choice",
        _eager,
        _EXPERIMENTAL,
        False,
        "How eager operators run: one executable each (`per-op`), sequences that come again fused "
        "in the background (`adaptive`), or each waited for (`blocking`).",
        choices=("per-op", "adaptive", "blocking"),
        default_text="per-op; adaptive if TORCH_NEURONX_ENABLE_CONCATENATION=1",
    ),
    Option(
        "TORCH_NEURONX_EAGER_BUDGET",
        "int",
        64,
        _EXPERIMENTAL,
        False,
        "How many fused executables adaptive eager may compile for a device.",
        minimum=0,
    ),
    Option(
        "TORCH_NEURONX_EAGER_LONGEST",
        "int",
        128,
        _EXPERIMENTAL,
        False,
        "How many launches adaptive eager makes one executable at most.",
        minimum=2,
        maximum=4096,
    ),
    Option(
        "TORCH_NEURONX_FUSE_REDUCTIONS",
        "bool",
        False,
        _EXPERIMENTAL,
        False,  # in the key of fused sequences, which alone it changes
        "Adaptive eager lets the compiler fuse reductions, products and the like with what "
        "surrounds them: faster, and results may then differ from operators run one by one.",
    ),
    Option(
        "TORCH_NEURONX_ENABLE_CONCATENATION",
        "bool",
        False,
        _STABLE,
        False,
        "TorchNeuron's switch for TORCH_NEURONX_EAGER=adaptive.",
    ),
    Option(
        "NEURON_LAUNCH_BLOCKING",
        "bool",
        False,
        _STABLE,
        False,
        "Wait for every launch, so that an error appears at the operator that caused it.",
    ),
    Option(
        "TORCH_NEURONX_LOG_LEVEL",
        "int",
        0,
        _STABLE,
        False,
        "0 warnings, 1 compile progress, 2 compile events, 3 debug.",
        minimum=0,
        maximum=3,
    ),
    Option(
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS",
        "bool",
        False,
        _STABLE,
        False,
        "Keep the FX graph, the program, the StableHLO module and the executable of what is "
        "compiled, in folders `fx_graphs`, `raw`, `stablehlo` and `neff`. What the cache has is "
        "lowered again for that.",
        live=True,
    ),
    Option(
        "TORCH_NEURONX_DEBUG_DIR",
        "path",
        _debug_dir,
        _STABLE,
        False,
        "Where preserved compilation artefacts go.",
        default_text="debug under the cache root",
        live=True,
    ),
    Option(
        "NEURON_PLATFORM_TARGET_OVERRIDE",
        "choice",
        None,
        _STABLE,
        True,
        "TorchNeuron's name for TORCH_NEURONX_TARGET.",
        choices=("trn2", "trn3", "host"),
        alias_of="TORCH_NEURONX_TARGET",
    ),
    *(
        Option(
            name,
            "str",
            None,
            _STABLE,
            False,
            f"TorchNeuron's variable, accepted and without effect: {why}",
        )
        for name, why in (
            ("TORCH_NEURONX_COMPLEX_DECOMPOSE", "complex operators have rules of their own."),
            ("TORCH_NEURONX_DYNAMO_BACKEND_ONLY", "compiler and runtime are one package here."),
            ("TORCH_NEURONX_ENABLE_STACK_TRACE", "errors and reports name the Python line anyway."),
            ("TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR", "locks lie in the cache root."),
            ("TORCH_NEURONX_HLO_CACHE_DIR", "lowered modules lie in the cache root."),
            (
                "NEURON_COMPILATION_CACHE_MAX_ENTRIES",
                "executables are bounded by TORCH_NEURONX_EXECUTABLE_MEMORY_MB.",
            ),
            (
                "NEURON_EAGER_MODEL_CACHE_SIZE",
                "executables are bounded by TORCH_NEURONX_EXECUTABLE_MEMORY_MB.",
            ),
            (
                "TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD",
                "what repeats is found by itself.",
            ),
            ("NEURON_CC_FLAGS", "they are flags of another compiler."),
            ("NEURON_COMPILER_OPT_LEVEL", "it is a flag of another compiler."),
            ("NEURON_COMPILE_CACHE_URL", "the cache is TORCH_NEURONX_CACHE_DIR."),
            ("TORCH_NEURONX_ENABLE_STABLEHLO", "StableHLO is the only way."),
            ("TORCH_NEURONX_MLIR_ATEN_OPS", "StableHLO is the only way."),
            ("TORCH_NEURONX_ENABLE_PROLOGUE", "views are steps of the program that reads them."),
            (
                "TORCH_NEURONX_CONTIGUOUS_FALLBACK_FATAL",
                "nothing falls back because of its strides.",
            ),
            (
                "TORCH_NEURONX_ENABLE_ASYNC_NRT",
                "launches are asynchronous unless NEURON_LAUNCH_BLOCKING=1.",
            ),
            (
                "NEURON_FALLBACK_ENABLED",
                "undocumented; see TORCH_NEURONX_FALLBACK.",
            ),
            (
                "TORCH_NEURONX_DUMP",
                "undocumented; see TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS.",
            ),
            (
                "TORCH_NEURONX_METRICS_ENABLED",
                "undocumented; see TORCH_NEURONX_ENABLED_METRIC_TABLES.",
            ),
            ("TORCH_NEURONX_SPMD_DISABLE", "undocumented."),
            ("NEURON_SCRATCHPAD_PAGE_SIZE", "it pairs with a flag of another compiler."),
        )
    ),
)

OPTIONS: dict[str, Option] = {option.name: option for option in _TABLE}

_frozen: dict[str, Any] = {}
_overrides: dict[str, Any] = {}


def get(name: str) -> Any:
    """The value of an option, read from the environment at its first use and then frozen; a live
    one at every use.

    Raises:
        KeyError: the option is not declared here.
        ConfigError: the variable's value is not one the option takes.
    """
    option = _declared(name)
    if option.alias_of is not None:
        return get(option.alias_of)
    if name in _overrides:
        return _overrides[name]
    if option.live:
        return _read(option, os.environ)
    if name not in _frozen:
        _frozen[name] = _read(option, os.environ)
    return _frozen[name]


def _declared(name: str) -> Option:
    option = OPTIONS.get(name)
    if option is None:
        close = _closest(name)
        hint = f"; did you mean {close}?" if close else ""
        raise KeyError(f"{name} is not declared in torch_neuronx.config{hint}")
    return option


def _read(option: Option, environ: Mapping[str, str]) -> Any:
    names = [option.name, *(o.name for o in _TABLE if o.alias_of == option.name)]
    given = {n: option.parse(environ[n], n) for n in names if environ.get(n, "").strip()}
    if len(set(given.values())) > 1:
        raise ConfigError(
            f"{' and '.join(given)} mean the same option but differ: "
            f"{', '.join(repr(v) for v in given.values())}. Unset one of them."
        )
    if given:
        return next(iter(given.values()))
    default: Any = option.default
    return default(environ) if isinstance(default, Callable) else default  # type: ignore[arg-type]


def keyed() -> tuple[tuple[str, Any], ...]:
    """Name and value of every option that enters the cache key, in the table's order."""
    return tuple((o.name, get(o.name)) for o in _TABLE if o.keyed and o.alias_of is None)


@contextlib.contextmanager
def override(values: Mapping[str, str]) -> Iterator[None]:
    """Within the block, options have these values (texts, as in the environment).

    Holds for the whole process, for tests and tools; threads do not have options of their own.
    """
    global _overrides
    parsed = {}
    for name, text in values.items():
        option = _declared(name)
        parsed[option.alias_of or name] = option.parse(text)
    before = _overrides
    _overrides = {**before, **parsed}
    try:
        yield
    finally:
        _overrides = before


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A variable that is set but not declared; ``closest`` is the name that was meant, if any."""

    name: str
    closest: str | None


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[Unknown]:
    """Set variables that look like ours and that nothing here declares: misspellings, mostly.

    They have one of our prefixes, or nearly the name of an option.
    """
    names = os.environ if environ is None else environ
    found = []
    for name in sorted(n for n in names if n not in OPTIONS):
        if name.startswith(PREFIXES):
            found.append(Unknown(name, _closest(name)))
        elif "NEURON" in name.upper() and (close := _closest(name)):
            found.append(Unknown(name, close))
    return found


def problems(environ: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with the environment, one sentence each: bad values, unknown names."""
    source = os.environ if environ is None else environ
    texts = []
    for option in _TABLE:
        try:
            _read(option, source)
        except ConfigError as error:
            texts.append(str(error))
    for unknown in unknown_variables(source):
        hint = f"; did you mean {unknown.closest}?" if unknown.closest else ""
        texts.append(f"{unknown.name}: unknown variable, it has no effect{hint}")
    return list(dict.fromkeys(texts))


def _closest(name: str) -> str | None:
    import difflib  # only needed once something is wrong
    import re

    # Compared without the prefix they all share, which would make every pair look alike.
    def stem(n: str) -> str:
        upper = n.upper()
        prefix = next((p for p in PREFIXES if upper.startswith(p)), None)
        if prefix is None:  # a misspelt one: TORCH_NEURON_, TORCHNEURON_
            return re.sub(r"^(TORCH_?)?NEURON_?X?_", "", upper)
        return upper[len(prefix) :]

    stems = {stem(n): n for n in OPTIONS}
    close = difflib.get_close_matches(stem(name), stems, n=1, cutoff=0.7)
    return stems[close[0]] if close else None


def markdown() -> str:
    """The text of ``docs/environment.md``."""
    lines = [
        "# Environment variables",
        "",
        "Generated from `src/torch_neuronx/config.py` by "
        "`python -m torch_neuronx.config > docs/environment.md`; do not edit.",
        "",
        "An empty value counts as unset. *Read* says when: `once` at the first use, so that a "
        "later change has no effect, or `each time`, mostly whenever a graph is compiled. "
        "*Key* says whether the value is part of the cache key, so that changing it recompiles.",
        "",
        "| Variable | Values | Default | Read | Key | Stage | Meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for o in _TABLE:
        default = "" if o.alias_of else o.describe_default()
        live = OPTIONS[o.alias_of or o.name].live
        lines.append(
            f"| `{o.name}` | {o.expects()} | {default} | {'each time' if live else 'once'} "
            f"| {'yes' if o.keyed else 'no'} | {o.stage} | {o.help} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
