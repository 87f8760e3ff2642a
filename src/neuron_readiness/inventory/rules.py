"""The table of what the static inventory looks for: dotted names, methods, arguments.

Each entry says what the use assumes and what to write instead. A name matches its own and
everything below it, the longest entry first.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Rule:
    kind: str
    assumes: str
    suggestion: str
    supported: bool | None = False  # on a device that is none of `home`
    home: tuple[str, ...] = ("cuda",)  # kinds of device that surely have it


_CUDA = "an NVIDIA (or ROCm) device behind torch.cuda"
NAMES: dict[str, Rule] = {
    "torch.cuda": Rule("torch.cuda", _CUDA, "use torch.accelerator or torch.get_device_module()"),
    "torch.cuda.is_available": Rule(
        "torch.cuda",
        "that an accelerator is CUDA: False on any other device",
        "torch.accelerator.is_available() and torch.accelerator.current_accelerator()",
        None,
    ),
    "torch.cuda.device_count": Rule(
        "torch.cuda",
        "that accelerators are CUDA devices: 0 on any other device",
        "torch.accelerator.device_count()",
        None,
    ),
    "torch.cuda.amp": Rule(
        "amp", "CUDA's mixed precision", "torch.amp.autocast(device_type=x.device.type)"
    ),
    "torch.cuda.nvtx": Rule("profiling", "NVIDIA's tools", "torch.profiler.record_function"),
    "torch.cuda.graph": Rule("cuda-graph", "CUDA graphs", "torch.compile captures graphs"),
    "torch.cuda.CUDAGraph": Rule("cuda-graph", "CUDA graphs", "torch.compile captures graphs"),
    "torch.cuda.memory_allocated": Rule("memory", _CUDA, "torch.accelerator.memory_allocated()"),
    "torch.cuda.max_memory_allocated": Rule(
        "memory", _CUDA, "torch.accelerator.max_memory_allocated()"
    ),
    "torch.cuda.synchronize": Rule("synchronise", _CUDA, "torch.accelerator.synchronize()"),
    "torch.backends.cudnn": Rule(
        "cudnn", "cuDNN's switches; no effect elsewhere", "guard it", None
    ),
    "torch.backends.cuda": Rule(
        "cuda-switch", "CUDA's switches; no effect elsewhere", "guard it", None
    ),
    "torch.set_float32_matmul_precision": Rule(
        "precision", "TF32 or bfloat16 products behind float32", "state the dtype", None
    ),
    "torch.distributed.ProcessGroupNCCL": Rule("collectives", "NCCL", "torch.distributed"),
    "torch.mps": Rule("torch.mps", "an Apple device", "torch.accelerator", home=("mps",)),
    "torch.xpu": Rule("torch.xpu", "an Intel device", "torch.accelerator", home=("xpu",)),
    "torch_xla": Rule(
        "torch_xla",
        "the XLA-era product, not the native device",
        "the native device",
        home=("xla",),
    ),
    "triton": Rule("triton", "Triton and a GPU behind it", "PyTorch operators, or an NKI kernel"),
    "pycuda": Rule("cuda-library", _CUDA, "PyTorch operators"),
    "cupy": Rule("cuda-library", _CUDA, "PyTorch operators"),
    "numba.cuda": Rule("cuda-library", _CUDA, "PyTorch operators, or an NKI kernel"),
    "flash_attn": Rule(
        "cuda-library", "CUDA kernels", "torch.nn.functional.scaled_dot_product_attention"
    ),
    "xformers": Rule(
        "cuda-library", "CUDA kernels", "torch.nn.functional.scaled_dot_product_attention"
    ),
    "bitsandbytes": Rule("cuda-library", "CUDA kernels", "a dtype that the target supports"),
    "apex": Rule("cuda-library", "CUDA kernels", "torch.amp and torch.optim"),
    "deepspeed": Rule("cuda-library", "CUDA kernels in places", "FSDP2", None),
    "nvidia": Rule("cuda-library", _CUDA, "PyTorch's own data loading"),
    "torch.utils.cpp_extension": Rule(
        "extension", "a C++ or CUDA extension that is built for one device", "port or replace it"
    ),
    "torch.library.custom_op": Rule(
        "custom-operator",
        "a kernel for the devices it registers",
        "register one for the target",
        None,
        home=(),
    ),
    "torch.library.triton_op": Rule(
        "custom-operator",
        "a Triton kernel, for the devices that Triton compiles for",
        "register a kernel for the target",
        None,
        home=("cuda", "xpu"),
    ),
    "torch.library.Library": Rule(
        "custom-operator",
        "a kernel for the devices it registers",
        "register one for the target",
        None,
        home=(),
    ),
    "torch.ops.load_library": Rule(
        "extension", "a compiled operator library", "port or replace it", home=()
    ),
    "nki": Rule("nki", "a NeuronCore", "keep a PyTorch twin as reference", None, home=()),
    "torch.float64": Rule(
        "dtype", "64-bit arithmetic; some targets compute it in float32", "float32", None
    ),
    "torch.double": Rule(
        "dtype", "64-bit arithmetic; some targets compute it in float32", "float32", None
    ),
    "torch.complex128": Rule("dtype", "64-bit complex arithmetic", "complex64", None),
    "torch.complex64": Rule("dtype", "complex arithmetic", "two real tensors", None),
    "torch.float8_e4m3fn": Rule(
        "dtype", "one of several fp8 formats", "ask the target", None, home=()
    ),
    "torch.float8_e5m2": Rule(
        "dtype", "one of several fp8 formats", "ask the target", None, home=()
    ),
    "torch.sparse": Rule("sparse", "sparse kernels", "dense tensors with a mask", None),
    "torch.sparse_coo_tensor": Rule("sparse", "sparse kernels", "dense tensors with a mask", None),
    "torch.nested": Rule("nested", "nested tensors", "padding with a mask", None),
    "torch.quantize_per_tensor": Rule("quantised", "quantised kernels", "a float dtype", None),
    "torch.nonzero": Rule(
        "data-dependent",
        "a result whose size is known only after it ran",
        "torch.where with a mask",
        None,
    ),
    "torch.unique": Rule(
        "data-dependent", "a result whose size is known only after it ran", "fixed sizes", None
    ),
    "torch.masked_select": Rule(
        "data-dependent", "a result whose size is known only after it ran", "torch.where", None
    ),
}

# Methods, by name: the receiver is not known to be a tensor, hence the narrow list.
METHODS: dict[str, Rule] = {
    "cuda": Rule("device", _CUDA, ".to(device)"),
    "pin_memory": Rule("pinned", "page-locked memory of a CUDA driver", "drop it", None),
    "numpy": Rule(
        "host-read",
        "a tensor on the host; on a device it raises or copies",
        ".cpu() once, late",
        None,
    ),
    "item": Rule("host-read", "waiting for the device and copying a value", "read it rarely", None),
    "tolist": Rule("host-read", "waiting for the device and copying", "read it rarely", None),
    "double": Rule("dtype", "64-bit arithmetic", ".float()", None),
    "nonzero": Rule("data-dependent", "a result whose size depends on values", "a mask", None),
    "masked_select": Rule(
        "data-dependent", "a result whose size depends on values", "torch.where", None
    ),
    "argwhere": Rule("data-dependent", "a result whose size depends on values", "a mask", None),
}
# Methods of a tensor that take no positional argument: with one, the receiver is something else.
WITHOUT_ARGUMENTS = (
    "numpy", "item", "tolist", "nonzero", "double", "pin_memory", "argwhere",
)  # fmt: skip

# Keyword arguments with a literal that matters.
ARGUMENTS: dict[str, Rule] = {
    "pin_memory": Rule("pinned", "page-locked memory of a CUDA driver", "set it by device", None),
    "device_map": Rule("placement", "a placement that a library chooses", "one device", None),
}

DEVICE_STRING = Rule("device", "one particular device", "take the device from the caller", home=())
DEVICE_CHOICE = Rule(
    "device-choice",
    "this device or the CPU: on any other accelerator all runs on the host, without an error",
    "torch.accelerator.current_accelerator(), or take the device from the caller",
    home=(),
)
DEVICE_BRANCH = Rule(
    "device-branch",
    "one device's way through the code; the target takes the other one",
    "ask for the capability, or test that way on the target",
    None,
    home=(),
)
CUSTOM_OPERATOR = Rule(
    "custom-operator",
    "a kernel for the devices it registers",
    "register one for the target",
    None,
    home=(),
)
COMPILER = Rule(
    "compile-backend", "a compiler for another device", "the target's own backend", home=()
)
COMPILER_DEFAULT = Rule(
    "compile-backend",
    "PyTorch's default compiler, Inductor",
    "backend=..., taken from the device",
    None,
)
COMPILE_MODE = Rule(
    "compile-mode", "Inductor's CUDA graphs or its tuning", "leave the mode out", None
)
COMPILE_DYNAMIC = Rule(
    "compile-dynamic",
    "one artifact for many shapes; some backends refuse it and specialise by shape",
    "few shapes, by bucketing or padding",
    None,
)
VARIABLE = Rule("environment", "settings of one vendor's software", "guard it by device", None)
AMP_STRING = Rule("amp", "mixed precision of one device", "device_type=x.device.type", home=())
BACKEND_STRING = Rule(
    "collectives",
    "a communication backend of one vendor",
    "leave it out: the device chooses",
    home=(),
)
BRANCH = Rule(
    "data-dependent-branch",
    "reading a tensor's value into Python; a graph break when compiled",
    "torch.where, or keep the boundary eager",
    None,
)
MASK = Rule(
    "data-dependent",
    "a result whose size is known only after it ran",
    "torch.where with the mask, or a product with it",
    None,
)
