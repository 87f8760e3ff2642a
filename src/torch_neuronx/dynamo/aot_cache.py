"""AOTAutograd's cache (TORCH_NEURONX_AOT_CACHE=1): a later process skips tracing, too.

All that touches PyTorch's private cache is in this file. AOTAutograd keeps a graph as an
``OutputCode`` of ours, which holds the FX graph; its executables are in our own cache. Both can
travel: ``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts``.

AOTAutograd unpickles what it finds in ``TORCHINDUCTOR_CACHE_DIR``, and pickles are code. So it is
asked only where that directory is as safe as our own cache's (decision D14); otherwise, and where
this PyTorch has no such cache, our own cache alone serves, and ``state`` says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torch_neuronx import config
from torch_neuronx.compiler import fingerprint, saved_artifacts, session, trust
from torch_neuronx.dynamo.options import Options

Build = Callable[[GraphModule, str, tuple[str, ...]], Callable[..., Any]]  # graph, kind, decomposed

_building = threading.local()


@dataclasses.dataclass(frozen=True)
class Cache:
    """PyTorch's classes, and the directory that it keeps entries in."""

    output_code: type
    compiler: Callable[[Callable[..., Any]], Any]
    directory: str


def state() -> str:
    """Why AOTAutograd's cache is not used, or "" if it is."""
    return _open()[1]


def _open() -> tuple[Cache | None, str]:
    if not config.get("TORCH_NEURONX_AOT_CACHE"):
        return None, "TORCH_NEURONX_AOT_CACHE is not set"
    try:
        classes = _classes()
    except (ImportError, AttributeError) as error:
        return None, f"this PyTorch has no such cache ({error})"
    try:
        _check_tree(classes.directory)
    except OSError as error:
        return None, f"its directory is not safe ({error})"
    return classes, ""


def _classes() -> Cache:
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    root = os.path.abspath(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
    saved_artifacts.register()

    def wrap(function: Callable[..., Any]) -> Any:
        return SerializableAOTDispatchCompiler(OutputCode, function)

    return Cache(_output_code(OutputCode), wrap, root)


def _check_tree(root: str) -> None:
    """Refuse a directory whose entries others could have written; make it if there is none."""
    trust.make_root(root)
    kept = os.path.join(root, "aotautograd")
    if not os.path.lexists(kept):
        return
    trust.check_directory(kept)
    for item in os.scandir(kept):
        trust.check_directory(item.path)
        for entry in os.scandir(item.path):
            trust.check_file(entry.stat(follow_symlinks=False), entry.path)


@contextlib.contextmanager
def use(options: Options, build: Build) -> Iterator[Cache | None]:
    """Within, AOTAutograd keeps and finds graphs; None: it does not, and nothing is changed.

    ``build`` makes a callable of a graph that was found.
    """
    cache, _ = _open() if not options.buckets else (None, "")
    if cache is None:
        yield None
        return
    settings = torch.compiler.config
    tag = f"{settings.cache_key_tag} torchneuron {_identity(options)}"
    patches = (
        settings.patch(cache_key_tag=tag),
        # A backward graph that is compiled later would be stored outside of this context.
        torch._functorch.config.patch(
            enable_autograd_cache=True,
            bundled_autograd_cache=True,
            force_non_lazy_backward_lowering=True,
        ),
    )
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        outer = getattr(_building, "build", None)
        stack.callback(setattr, _building, "build", outer)
        _building.build = build
        saved_artifacts.listen(session.compiler())
        yield cache


def _identity(options: Options) -> str:
    """What decides about a graph beside PyTorch's own key: our sources and options."""
    text = f"{fingerprint.sources_hash()} {fingerprint.distribution_versions()} {options}"
    return hashlib.sha256(text.encode()).hexdigest()


def _output_code(base: Any) -> type:
    """Our ``OutputCode``, made once PyTorch's is there; pickles name it ``NeuronGraph``."""
    if "NeuronGraph" in globals():
        return globals()["NeuronGraph"]  # type: ignore[no-any-return]

    class NeuronGraph(base):  # type: ignore[misc]
        """A compiled graph, or its FX graph as bytes."""

        def __init__(
            self, gm: GraphModule, kind: str, decomposed: tuple[str, ...],
            function: Callable[..., Any],
        ) -> None:  # fmt: skip
            super().__init__()
            self._boxed_call = True
            self.kind, self.decomposed = kind, decomposed
            self.gm: GraphModule | None = gm
            self.function: Callable[..., Any] | None = function
            self.data = b""

        def __call__(self, inputs: Sequence[Any]) -> Any:
            assert self.function is not None, "post_compile comes first"
            return self.function(inputs)

        def prepare_for_serialization(self) -> None:
            from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
            from torch.fx._graph_pickler import GraphPickler
            from torch.fx._graph_pickler import Options as PicklerOptions

            assert self.gm is not None
            if any(n.op == "get_attr" for n in self.gm.graph.nodes):
                raise BypassAOTAutogradCache("the graph holds constants or functions")
            only = {"val", "stack_trace"}
            chosen = PicklerOptions(ops_filter=None, node_metadata_key_filter=only.__contains__)
            self.data = GraphPickler.dumps(self.gm, chosen)
            self.gm = self.function = None

        def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
            from torch._guards import detect_fake_mode
            from torch.fx._graph_pickler import GraphPickler

            if self.function is not None:
                return
            gm = GraphPickler.loads(self.data, detect_fake_mode(example_inputs))
            assert isinstance(gm, GraphModule)
            self.gm = gm
            self.function = _building.build(gm, self.kind, self.decomposed)

        def set_triton_bundle(self, triton_bundle: Any) -> None:
            pass  # there is none

    NeuronGraph.__qualname__ = "NeuronGraph"
    globals()["NeuronGraph"] = NeuronGraph
    return NeuronGraph


def __getattr__(name: str) -> Any:
    """The class that pickles of other processes name, before this process has made it."""
    if name == "NeuronGraph":
        from torch._inductor.output_code import OutputCode

        return _output_code(OutputCode)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
