"""The report in a real browser: decision, reasons and largest gap are on the first screen."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from readiness.support import EXAMPLES, run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
SIZE = (1280, 800)  # a small laptop's window
# Tells where each element ends, in the title of the document that is dumped.
PROBE = """<script>
window.onload = () => {
  const ends = {};
  for (const id of ["decision", "claim", "gap", "reasons"])
    ends[id] = Math.round(document.getElementById(id).getBoundingClientRect().bottom);
  ends.wide = document.documentElement.scrollWidth;
  ends.plots = document.querySelectorAll("svg").length;
  document.title = JSON.stringify(ends);
};
</script>"""
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(BROWSER is None, reason="no chromium; Debian's package `chromium` has it"),
]


def chromium(*arguments: str) -> str:
    """Output of a headless browser without a network."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    offline = ["--proxy-server=127.0.0.1:1", f"--window-size={SIZE[0]},{SIZE[1]}"]
    done = subprocess.run(
        [*command, *offline, *arguments], capture_output=True, text=True, timeout=120
    )
    return done.stdout


def test_the_first_screen_holds_the_decision(tmp_path: Path) -> None:
    _, record = run(EXAMPLES / "rare_host_operator.py", tmp_path)
    page = (tmp_path / "report.html").read_text()
    probed = tmp_path / "probed.html"
    probed.write_text(page.replace("</body>", PROBE + "</body>"))
    seen = chromium("--virtual-time-budget=2000", "--dump-dom", probed.as_uri())
    title = html.unescape(re.search(r"<title>(\{.*?\})</title>", seen)[1])  # type: ignore[index]
    ends = {k: int(v) for k, v in re.findall(r'"(\w+)":(\d+)', title)}
    for part in ("decision", "claim", "gap", "reasons"):
        assert 0 < ends[part] <= SIZE[1], (part, ends)
    assert ends["wide"] <= SIZE[0]  # nothing to scroll sideways
    assert ends["plots"] >= 3
    assert record["decision"]["largest_gap"] in html.unescape(seen)


def test_it_prints(tmp_path: Path) -> None:
    run(EXAMPLES / "rare_host_operator.py", tmp_path, "--only", "execution")
    paper = tmp_path / "report.pdf"
    chromium(f"--print-to-pdf={paper}", (tmp_path / "report.html").as_uri())
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 12
