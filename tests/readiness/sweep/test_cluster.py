"""A sweep over a cluster: the same probes, and what is lost with a machine is tried again.

Ray itself is not part of the tests' environment; a stand-in shows what the sweep makes of an
actor that dies. Where Ray is installed (extra `cluster`), the last test starts a real one.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from typing import Any

import pytest

from neuron_readiness.sweep import cluster, pool
from neuron_readiness.sweep.results import first_to_fix, summary
from readiness.sweep.test_pool import Scripted, tasks


class RayError(Exception):
    """As ``ray.exceptions.RayError``."""


class FakeRay(types.ModuleType):
    """As much of Ray's interface as the cluster uses, in this process. ``dies``: how many of an
    architecture's calls end with their actor."""

    def __init__(self, **dies: int) -> None:
        super().__init__("ray")
        self.started, self.dies, self.actors = False, dies, 0
        self.exceptions = types.SimpleNamespace(RayError=RayError)

    def is_initialized(self) -> bool:
        return self.started

    def init(self, **_: Any) -> None:
        self.started = True

    def remote(self, cls: Any) -> Any:
        ray = self

        class Actor:
            def __init__(self, *args: Any) -> None:
                self._real = cls(*args)
                ray.actors += 1

            def __getattr__(self, name: str) -> Any:
                method = getattr(self._real, name)
                return types.SimpleNamespace(remote=lambda *a: _Reference(method, a))

        kind = types.SimpleNamespace(remote=Actor)
        kind.options = lambda **_: kind
        return kind

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return [self.get(r) for r in reference]
        name = reference.arguments[0][1] if reference.arguments else ""
        if self.dies.get(name, 0):
            self.dies[name] -= 1
            raise RayError(f"the actor of {name} died\nmore lines")
        return reference.method(*reference.arguments)

    def kill(self, actor: Any) -> None:
        actor._real.close()


class _Reference:
    def __init__(self, method: Any, arguments: tuple[Any, ...]) -> None:
        self.method, self.arguments = method, arguments


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cluster, "Probe", Scripted)

    def sweep(ray: FakeRay, *names: str) -> dict[str, dict[str, Any]]:
        monkeypatch.setitem(sys.modules, "ray", ray)
        rows: list[dict[str, Any]] = []
        cluster.run(tasks(*names), "cpu", 2, 20.0, rows.append)
        assert sorted(r["name"] for r in rows) == sorted(names)
        return {r["name"]: r for r in rows}

    return sweep


def test_a_cluster_runs_the_same_probes(swept: Any) -> None:
    rows = swept(ray := FakeRay(), "a", "b", "c", "dies")
    assert {n: r["outcome"] for n, r in rows.items()} == {
        "a": "done", "b": "done", "c": "done", "dies": "crashed"
    }  # fmt: skip
    assert ray.actors == 2


def test_what_an_actor_was_doing_when_it_died_is_tried_again(swept: Any) -> None:
    rows = swept(ray := FakeRay(a=1), "a", "b", "c")
    assert [r["outcome"] for r in rows.values()] == ["done"] * 3
    assert ray.actors == 3


def test_what_is_lost_again_is_a_row_that_blames_the_cluster(swept: Any) -> None:
    rows = swept(FakeRay(a=9), "a", "b")
    assert rows["a"]["outcome"] == "lost" and rows["b"]["outcome"] == "done"
    assert "the actor of a died" in rows["a"]["errors"]["cluster"]
    # It was tried and is not known to load; it is nothing to fix for the device.
    loads = summary([rows["a"]], {})[0]
    assert (loads["passed"], loads["of"]) == (0, 1)
    assert first_to_fix([rows["a"]]) == []


def test_without_ray_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cluster.NoRay, match=r"needs the package ray.*torchneuron\[cluster\]"):
        cluster.run(tasks("a"), "cpu", 1, 1.0, print)


@pytest.mark.full
def test_a_real_cluster_of_two_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="no ray; extra `cluster`: pip install ray")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other programs' memory is theirs
    script = Scripted("cpu", 20.0, {})._command(0)[2]

    class Here(pool.Probe):  # defined here, so that Ray sends it along
        def row(self, task: pool.Task) -> dict[str, Any]:
            if task[1] == "loses its machine":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().row(task)

        def _command(self, answers: int) -> list[str]:
            return [sys.executable, "-c", script, str(answers)]

    monkeypatch.setattr(cluster, "Probe", Here)
    rows: list[dict[str, Any]] = []
    names = ("a", "loses its machine", "b", "dies", "c", "d")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
    try:
        cluster.run(tasks(*names), "cpu", 2, 60.0, rows.append)
    finally:
        ray.shutdown()
    outcome = {r["name"]: r["outcome"] for r in rows}
    assert outcome == {
        "a": "done", "b": "done", "c": "done", "d": "done",
        "dies": "crashed", "loses its machine": "lost",
    }  # fmt: skip
