"""NVIDIA GPUs by their data sheets: memory, compute capability and peak rates, for figures without the GPU.

Sources: memory, bandwidth and rates from NVIDIA's data sheet of each product (RTX 4090: "NVIDIA Ada GPU Architecture";
Orin: "Jetson AGX Orin Series Technical Brief"; Thor: the Jetson T5000 data sheet; GB10: the DGX Spark page); compute
capabilities from developer.nvidia.com/cuda-gpus. A data sheet's GB is taken as 10^9 bytes, which is never more than the
driver reports. Rates are dense: where a sheet gives them with 2:4 sparsity, half of that. fp16 is the tensor cores'
rate with fp32 accumulation, and bf16 has the same; fp32 is the ordinary cores' rate, without TF32.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastv_trt.errors import InputError

GB = 10**9
RTX_COMPUTE = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
"""What TensorRT-RTX compiles for, on any machine; the others need full TensorRT on the GPU itself."""


@dataclass(frozen=True)
class GpuSheet:
    """One product.

    Attributes:
        memory_bytes: all of it; what a process gets is less.
        compute: compute capability, as "8.6".
        bandwidth: of the memory, bytes/s.
        fp16_flops: FLOP/s in fp16 and bf16, dense.
        fp32_flops: FLOP/s in fp32.
        shared: whether the memory is also the host's.
        note: where a rate is not on the sheet itself.
    """

    name: str
    memory_bytes: int
    compute: str
    bandwidth: float
    fp16_flops: float
    fp32_flops: float
    shared: bool = False
    note: str = ""

    @property
    def backend(self) -> str:
        return "tensorrt-rtx" if self.compute in RTX_COMPUTE else "tensorrt"

    def flops(self, dtype: str) -> float:
        """Peak FLOP/s of "fp32", "fp16" or "bf16"."""
        return self.fp32_flops if dtype == "fp32" else self.fp16_flops


GPUS = (
    GpuSheet("L4", 24 * GB, "8.9", 300e9, 121e12, 30.3e12),
    GpuSheet("RTX 4090", 24 * GB, "8.9", 1008e9, 165.2e12, 82.6e12),
    GpuSheet("A40", 48 * GB, "8.6", 696e9, 149.7e12, 37.4e12),
    GpuSheet("L40S", 48 * GB, "8.9", 864e9, 362.05e12, 91.6e12),
    GpuSheet("H100 SXM", 80 * GB, "9.0", 3350e9, 989.4e12, 67e12),
    GpuSheet("H200", 141 * GB, "9.0", 4800e9, 989.4e12, 67e12),
    GpuSheet(
        "Jetson AGX Orin 64GB",
        64 * GB,
        "8.7",
        204.8e9,
        42.5e12,
        5.3e12,
        shared=True,
        note="fp16 is a quarter of the GPU's 170 sparse INT8 TOPS",
    ),
    GpuSheet(
        "Jetson T5000 (Thor)",
        128 * GB,
        "11.0",
        273e9,
        258.5e12,
        8.06e12,
        shared=True,
        note="fp16 is half of the sheet's 517 dense FP8 TFLOPS",
    ),
    GpuSheet(
        "GB10 (DGX Spark)",
        128 * GB,
        "12.1",
        273e9,
        125e12,
        31e12,
        shared=True,
        note="fp16 is an eighth of the sheet's 1 sparse FP4 PFLOPS; fp32 from its 6144 cores",
    ),
)


def named(text: str) -> GpuSheet:
    """The product whose name contains `text`, whatever its case; an exact name wins.

    Raises:
        InputError: none, or several.
    """
    found = [gpu for gpu in GPUS if text.lower() in gpu.name.lower()]
    exact = [gpu for gpu in found if gpu.name.lower() == text.lower()]
    if len(exact or found) != 1:
        known = ", ".join(gpu.name for gpu in GPUS)
        raise InputError(f"expected the name of one GPU of {known}, found {text!r}")
    return (exact or found)[0]
