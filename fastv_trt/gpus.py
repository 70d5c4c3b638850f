"""NVIDIA GPUs by their data sheets: memory and compute capability, for plans that are made without the GPU.

Sources: memory from NVIDIA's data sheet of each product; compute capabilities from developer.nvidia.com/cuda-gpus.
A data sheet's GB is taken as 10^9 bytes, which is never more than the driver reports.
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
RTX_COMPUTE = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
"""What TensorRT-RTX compiles for, on any machine; the others need full TensorRT on the GPU itself."""


@dataclass(frozen=True)
class GpuSheet:
    """One product.

    Attributes:
        memory_bytes: all of it; what a process gets is less.
        compute: compute capability, as "8.6".
        shared: whether the memory is also the host's.
    """

    name: str
    memory_bytes: int
    compute: str
    shared: bool = False

    @property
    def backend(self) -> str:
        return "tensorrt-rtx" if self.compute in RTX_COMPUTE else "tensorrt"


GPUS = (
    GpuSheet("L4", 24 * GB, "8.9"),
    GpuSheet("RTX 4090", 24 * GB, "8.9"),
    GpuSheet("A40", 48 * GB, "8.6"),
    GpuSheet("L40S", 48 * GB, "8.9"),
    GpuSheet("H100 SXM", 80 * GB, "9.0"),
    GpuSheet("H200", 141 * GB, "9.0"),
    GpuSheet("Jetson AGX Orin 64GB", 64 * GB, "8.7", shared=True),
    GpuSheet("Jetson T5000 (Thor)", 128 * GB, "11.0", shared=True),
    GpuSheet("GB10 (DGX Spark)", 128 * GB, "12.1", shared=True),
)
