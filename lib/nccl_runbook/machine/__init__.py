"""GPUs, links and users of this machine, as NVML and the kernel report them; shared by several subjects."""
