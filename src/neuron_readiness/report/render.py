"""Renders a record through the templates beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuron_readiness.report import figures


def environment(*, html: bool) -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(
        loader=loader,
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals |= {
        "plot_of": figures.plot_of,
        "tables_of": figures.tables_of,
        "evidence_of": figures.evidence_of,
    }
    made.filters["value"] = figures.value
    made.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return made


def html(record: dict[str, Any]) -> str:
    """One self-contained page: style and plots inside, no script, nothing fetched."""
    return str(environment(html=True).get_template("report.html.j2").render(record=record))


def markdown(record: dict[str, Any]) -> str:
    """The same content as Markdown, without plots."""
    return str(environment(html=False).get_template("report.md.j2").render(record=record))
