"""01: do NVML, the device files and CUDA see the same healthy GPUs?"""
