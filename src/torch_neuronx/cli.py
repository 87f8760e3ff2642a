"""The command ``torchneuron``.

``torchneuron info`` says what is installed and where registration stands. It starts no device
unless ``--device`` is given. ``torchneuron cache`` lists, verifies and prunes the executable cache.
``torchneuron ops`` says how operators run, from the generated table.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_neuronx import __version__, identity


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status (2 for wrong usage, as argparse does)."""
    parser = argparse.ArgumentParser(prog="torchneuron", description=__doc__)
    parser.add_argument("--version", action="version", version=f"torchneuron {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="what is installed and where registration stands")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.add_argument("--device", action="store_true", help="start the device and list it")
    cache = commands.add_parser("cache", help="the executable cache on the disk")
    cache.set_defaults(action=None)
    actions = cache.add_subparsers(dest="action")
    listing = actions.add_parser("list", help="entries by level, with sizes and last use")
    listing.add_argument("--json", action="store_true", help="print JSON lines")
    actions.add_parser("verify", help="read every entry; remove what is corrupt or unsafe")
    prune = actions.add_parser("prune", help="remove the least recently used entries")
    prune.add_argument("--max-mb", type=float, required=True, help="what may stay, in MiB")
    export = actions.add_parser("export", help="write the executables to a file")
    export.add_argument("file", help="what to write")
    export.add_argument(
        "--portable", action="store_true", help="compile all of it again, for any CPU with AVX2"
    )
    bring = actions.add_parser("import", help="take the executables of such a file")
    bring.add_argument("file", help="what to read")
    bring.add_argument("--trust", action="store_true", help="executables are code: you trust them")
    for action in (export, bring):
        action.add_argument("--key-file", help="sign or check the file with this secret (HMAC)")
    ops = commands.add_parser("ops", help="how operators run: native, composite, on the CPU or not")
    ops.add_argument("name", nargs="?", help="an operator (add, aten::add.Tensor) or part of one")
    ops.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args(argv)
    if options.command == "ops":
        return ops_command(options)
    if options.command == "cache":
        if options.action is None:
            cache.print_help()
            return 0
        return cache_command(options)
    facts = identity.collect()
    if options.device:
        facts["device"] = identity.device_facts()
    print(json.dumps(facts, indent=2) if options.json else identity.render(facts))
    return 1 if "error" in facts.get("device", {}) else 0


def cache_command(options: argparse.Namespace) -> int:
    """``torchneuron cache``: 1 if ``verify`` found something bad or there is no usable cache."""
    from torch_neuronx.compiler.cache import shared_cache

    cache = shared_cache()
    if cache.disabled is not None:
        print(f"no usable cache at {cache.root}: {cache.disabled}", file=sys.stderr)
        return 1
    if options.action == "verify":
        count = len(cache.list())
        bad = cache.verify()
        print(f"{cache.root}: {count} entries read, {len(bad)} removed as corrupt or unsafe")
        for item in bad:
            print(f"  {item.level}/{item.key}")
        return 1 if bad else 0
    if options.action == "prune":
        removed = cache.prune(int(options.max_mb * 2**20))
        print(f"{cache.root}: removed {removed / 2**20:.1f} MiB")
        return 0
    if options.action in ("export", "import"):
        return bundle_command(options, cache)
    items = cache.list()
    for item in items:
        if options.json:
            print(json.dumps(dataclasses.asdict(item)))
        else:
            used = datetime.datetime.fromtimestamp(item.used_s).isoformat(" ", "minutes")
            print(f"{item.level:>6} {item.key[:16]} {item.size_bytes:>10} bytes  used {used}")
    if not options.json:
        total = sum(i.size_bytes for i in items)
        print(f"{cache.root}: {len(items)} entries, {total / 2**20:.1f} MiB")
    return 0


def bundle_command(options: argparse.Namespace, cache: Any) -> int:
    """``torchneuron cache export`` and ``import``: 1 if the file is refused."""
    from torch_neuronx.compiler import bundle

    secret = Path(options.key_file).read_bytes() if options.key_file else None
    if options.action == "export" and options.portable:
        return portable_command(options, secret)
    if options.action == "export":
        count = bundle.export(cache, options.file, secret)
        print(f"{options.file}: {count} entries of {cache.root}")
        return 0
    if not options.trust:
        print(
            f"{options.file}: an executable is code that this machine will run. Pass --trust if "
            "you know where the file comes from.",
            file=sys.stderr,
        )
        return 1
    try:
        count = bundle.take(cache, options.file, secret)
    except bundle.BundleError as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    print(f"{cache.root}: {count} entries of {options.file}")
    return 0


def portable_command(options: argparse.Namespace, secret: bytes | None) -> int:
    """``torchneuron cache export --portable``: 1 if this CPU or plugin cannot make such a file."""
    import torch  # noqa: F401  # registers the device

    from torch_neuronx.compiler import portable, session

    try:
        made = portable.export(session.portable_compiler(), options.file, secret)
    except (RuntimeError, ValueError) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return 1
    left = f"; {made.skipped} made in other circumstances left out" if made.skipped else ""
    print(
        f"{options.file}: {made.programs} programs for CPUs with {', '.join(made.requires)}{left}"
    )
    return 0


def ops_command(options: argparse.Namespace) -> int:
    """``torchneuron ops``: counts, or the rows that match a name; 1 if none does.

    Reads ``compatibility.json`` and starts nothing.
    """
    path = Path(__file__).with_name("compatibility.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    if options.name:
        wanted = options.name.removeprefix("aten::").split(".")[0]
        names = {r["name"].removeprefix("aten::"): r for r in rows}
        exact = names.get(wanted) or names.get(wanted.removesuffix("_"))
        rows = [exact] if exact else [r for n, r in names.items() if wanted in n]
        if not rows:
            print(f"no operator is called like {options.name!r}", file=sys.stderr)
            return 1
    if options.json:
        for row in rows:
            print(json.dumps(row))
    elif not options.name:
        for status in ("native", "composite", "fallback", "unsupported"):
            print(f"{status:11}{sum(r['status'] == status for r in rows):6}")
    elif len(rows) == 1:
        print(_operator(rows[0]))
    else:
        for row in rows:
            print(f"{row['name']:44} {row['status']:11} {' '.join(row['measured'])}")
    return 0


def _operator(row: dict[str, Any]) -> str:
    """One row of the table as text."""
    lines = [f"{row['name']}: {row['status']}"]
    for title in ("measured", "declared only", "backward measured"):
        lines.append(f"  {title}: {' '.join(row[title]) or '-'}")
    lines += ["  overloads:", *(f"    {name}: {how}" for name, how in row["overloads"].items())]
    if row["not equal"]:
        lines.append("  cases not equal to CPU:")
        lines += [f"    {unit}: {text}" for unit, text in row["not equal"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
