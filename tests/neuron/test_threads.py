"""Threads and processes: single flight, background compilation, forks, data loading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

import torch_neuronx
from support import assert_same, last_event, output_of, run_python


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """Runs the functions at the same moment; their results, or the first one's exception."""
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(functions))

    def work(i: int) -> None:
        try:
            barrier.wait()
            results[i] = functions[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def test_two_threads_that_miss_on_one_key_compile_once() -> None:
    x = torch.arange(37.0 * 3).reshape(37, 3)
    device = x.to("neuron")
    before = last_event()
    results = in_threads(*[lambda: torch.special.expm1(device * 0.01).cpu()] * 4)
    events = torch_neuronx.compile_events(before)
    names = [e["name"] for e in events if e["source"] == "compiled"]
    for result in results:
        torch.testing.assert_close(result, torch.special.expm1(x * 0.01), rtol=2e-5, atol=2e-5)
    assert len(names) == len(set(names)), names


def test_threads_with_operators_of_their_own() -> None:
    x = torch.arange(41.0 * 2).reshape(41, 2) / 50

    def program(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            y = x.to("neuron")
            for _ in range(20):
                y = function(y)
                y.mul_(0.5)
            return y

        return run

    def on_cpu(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        y = x
        for _ in range(20):
            y = function(y) * 0.5
        return y

    functions = (torch.sin, torch.tanh, torch.cos, lambda t: t * t + 1)
    for result, function in zip(
        in_threads(*[program(f) for f in functions]), functions, strict=True
    ):
        assert_same(result, on_cpu(function))


def test_threads_that_write_to_one_storage_in_turn() -> None:
    x = torch.zeros(8, 5, device="neuron")

    def add_to(row: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(50):
                x[row].add_(1)

        return run

    in_threads(*[add_to(i) for i in range(4)])
    assert_same(x, torch.tensor([50.0] * 4 + [0.0] * 4)[:, None].expand(8, 5).contiguous())


def test_backward_of_two_threads() -> None:
    weight = torch.randn(6, 6)

    def run(device: str) -> torch.Tensor:
        w = weight.clone().to(device).requires_grad_()
        for _ in range(3):
            (w.tanh() @ w).sum().backward()
        return w.grad

    expected = run("cpu")
    for result in in_threads(lambda: run("neuron"), lambda: run("neuron")):
        assert_same(result, expected)


def test_a_thread_that_chose_no_device_follows_the_main_thread() -> None:
    text = output_of(
        """
        import threading, torch
        torch.neuron.set_device(1)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
        thread.start(); thread.join()
        print(seen, torch.neuron.current_device(), torch.ones(1, device="neuron").device)
        """,
        TORCH_NEURONX_NUM_DEVICES="2",
    )
    assert text.strip().endswith("[1] 1 neuron:1")


LOADER = """
    import sys, torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 12
        def __getitem__(self, i):
            return torch.full((3,), float(i * i))

    if __name__ == "__main__":
        x = torch.ones(3, device="neuron")
        (x * 2).cpu()
        total = torch.zeros(3, device="neuron")
        for batch in DataLoader(Squares(), batch_size=4, num_workers=2):
            total += batch.to("neuron").sum(0)
        print("total", total.tolist())
"""


def test_data_loader_workers_after_eager_work() -> None:
    """Workers are forked: no warning of threads or deadlocks, no deadlock."""
    done = run_python("import warnings; warnings.simplefilter('always')\n" + _dedent(LOADER))
    assert done.returncode == 0, done.stderr
    assert "total [506.0, 506.0, 506.0]" in done.stdout
    assert "Warning" not in done.stderr and "fork" not in done.stderr, done.stderr


def _dedent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text)


def test_forked_child_is_refused_with_the_way_out() -> None:
    text = output_of(
        """
        import os, torch
        torch.ones(2, device="neuron").sum().item()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.ones(2, device="neuron")
                said = "nothing"
            except RuntimeError as error:
                said = str(error)
            os.write(write, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        print(os.read(read, 10000).decode())
        print("parent", (torch.ones(2, device="neuron") + 1).tolist())
        """
    )
    assert "forked" in text and "'spawn'" in text
    assert "parent [2.0, 2.0]" in text


def test_fork_before_the_runtime_starts_is_fine() -> None:
    text = output_of(
        """
        import os, torch
        torch.neuron.device_count()
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, str((torch.ones(2, device="neuron") + 1).tolist()).encode())
            os._exit(0)
        os.wait()
        print("child", os.read(read, 10000).decode())
        print("parent", (torch.ones(2, device="neuron") + 1).tolist())
        """
    )
    assert "child [2.0, 2.0]" in text and "parent [2.0, 2.0]" in text


def test_spawned_children_use_the_device(tmp_path: Any) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(
        _dedent(
            """
            import torch, torch.multiprocessing as mp

            def work(rank, queue):
                x = torch.full((3,), float(rank), device="neuron")
                queue.put((rank, (x + 1).tolist()))

            if __name__ == "__main__":
                torch.ones(1, device="neuron").sum().item()
                context = mp.get_context("spawn")
                queue = context.Queue()
                children = [context.Process(target=work, args=(i, queue)) for i in range(2)]
                for child in children: child.start()
                print("children", sorted(queue.get(timeout=200) for _ in children))
                for child in children: child.join()
            """
        )
    )
    text = output_of(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert "children [(0, [1.0, 1.0, 1.0]), (1, [2.0, 2.0, 2.0])]" in text


def test_the_process_ends_with_work_in_flight() -> None:
    done = run_python(
        """
        import torch
        x = torch.ones(300, 300, device="neuron")
        for _ in range(50):
            x = (x @ x) * 1e-3
        """
    )
    assert done.returncode == 0, done.stderr
