"""One executable cache for the test session, cold by default.

Set before torch is imported, so that neither a user's warm cache hides what the tests compile nor
the tests fill it. A TORCH_NEURONX_CACHE_DIR that is already set is kept, for quick repetitions.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

_made: list[str] = []

if not os.environ.get("TORCH_NEURONX_CACHE_DIR"):
    _made.append(tempfile.mkdtemp(prefix="torchneuron-tests-"))
    os.environ["TORCH_NEURONX_CACHE_DIR"] = _made[0]


def pytest_unconfigure(config: pytest.Config) -> None:
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)
