"""What a fresh rank finds: device files, the variables that select GPUs, and CUDA as torch counts it.

Runs under the judged interpreter by file path: Python >= 3.9, torch >= 2.2 or none, imports nothing
of ours. Reports two events, ``surroundings`` and ``cuda``, one JSON line each, to the descriptor
in NCCL_RUNBOOK_EVENT_FD, else to standard output. It makes no CUDA context: it disturbs nobody and takes
no memory. Errors of CUDA are reported as text, never raised.
"""

import contextlib
import ctypes
import dataclasses
import errno
import glob
import json
import os
import stat
import sys
import uuid
import warnings

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "LD_LIBRARY_PATH",
    "CUDA_MPS_PIPE_DIRECTORY",
)
DEVICE_FILES = (
    "/dev/nvidia[0-9]*",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/dxg",
    "/dev/nvidia-caps/*",
    "/dev/nvidia-caps-imex-channels/*",
)
BUS_ID_SIZE = 32


def emit(event):
    """Write one event as a JSON line, to the engine's descriptor or standard output."""
    with open(int(os.environ.get("NCCL_RUNBOOK_EVENT_FD", "1")), "w", closefd=False) as file:
        file.write(json.dumps(event) + "\n")


def read(path):
    """Text of a file without surrounding white space; empty if it cannot be read."""
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read().strip()
    return ""


def device_file(path):
    """Path, mode as ``ls`` shows it, and why opening for reading and writing failed (errno name; empty: it
    opened)."""
    mode, failed = "", "not tried"
    try:
        mode = stat.filemode(os.stat(path).st_mode)
        # MIG and IMEX capabilities are for the administrator, not opened here
        if not path.startswith("/dev/nvidia-caps"):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            failed = ""
    except OSError as error:
        failed = errno.errorcode.get(error.errno, str(error.errno))
    return {"path": path, "mode": mode, "error": failed}


def container_signs():
    """Signs that this is a container; empty on a plain host."""
    signs = [path for path in ("/.dockerenv", "/run/.containerenv", "/singularity") if os.path.exists(path)]
    return signs + [
        name
        for name in ("container", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "KUBERNETES_SERVICE_HOST")
        if os.environ.get(name)
    ]


def pci_gpus():
    """NVIDIA display devices on the PCI bus and the kernel driver bound to each. A container sees its host's
    bus here."""
    folders = [
        folder
        for folder in sorted(glob.glob("/sys/bus/pci/devices/*"))
        if read(folder + "/vendor") == "0x10de" and read(folder + "/class").startswith("0x03")  # displays
    ]
    return {
        os.path.basename(f): os.path.basename(os.path.realpath(f + "/driver"))
        if os.path.exists(f + "/driver")
        else ""
        for f in folders
    }


def surroundings():
    """What a rank sees before CUDA: device files, variables, signs of a container, WSL, GPUs on the PCI
    bus."""
    return {
        "files": [device_file(path) for pattern in DEVICE_FILES for path in sorted(glob.glob(pattern))],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "container": container_signs(),
        "is_wsl": os.path.exists("/dev/dxg") or "microsoft" in read("/proc/version").lower(),
        "pci_gpus": pci_gpus(),
    }


@dataclasses.dataclass(eq=False)
class Driver:
    """libcuda called directly: torch reports neither the error code nor, before 2.5, UUID and bus id.
    ``code``: of cuInit, -1 without the library; ``text``: why CUDA does not start, else empty."""

    library: object = None
    code: int = -1
    text: str = ""

    def __post_init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
            self.code = self.library.cuInit(0)
            self.text = self.words(self.code) if self.code else ""
        except OSError as error:
            self.text = str(error)

    def words(self, code):
        """The driver's name and meaning of an error code of cuInit."""
        name, meaning = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        self.library.cuGetErrorString(code, ctypes.byref(meaning))
        return f"cuInit: error {code} {(name.value or b'').decode()}: {(meaning.value or b'').decode()}"

    def count(self):
        """Number of devices that CUDA itself counts, or None: torch.cuda.device_count() may ask NVML instead
        (torch 2.11)."""
        number = ctypes.c_int()
        return (
            number.value
            if self.code == 0 and self.library.cuDeviceGetCount(ctypes.byref(number)) == 0
            else None
        )

    def identity(self, index):
        """UUID (no prefix) and PCI bus id of torch's device ``index``; empty if the driver does not report
        them."""
        device, raw, bus = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(BUS_ID_SIZE)
        if self.library is None or self.library.cuDeviceGet(ctypes.byref(device), index) != 0:
            return "", ""
        ask_uuid = getattr(self.library, "cuDeviceGetUuid_v2", self.library.cuDeviceGetUuid)
        identifier = str(uuid.UUID(bytes=bytes(raw))) if ask_uuid(raw, device) == 0 else ""
        known = self.library.cuDeviceGetPCIBusId(bus, BUS_ID_SIZE, device) == 0
        return identifier, bus.value.decode() if known else ""


def mapped_nccl(torch):
    """Version and path of the libnccl that importing torch mapped; a statically linked one has no path. Gaps
    as {"reason", "detail"}."""
    paths = [
        line.split(None, 5)[-1].strip()
        for line in read("/proc/self/maps").splitlines()
        if "libnccl.so" in line
    ]
    if not paths:
        nothing = {"reason": "absent", "detail": "importing torch mapped no libnccl"}
        return ".".join(
            map(str, torch.cuda.nccl.version())
        ) if torch.distributed.is_nccl_available() else nothing, nothing
    version = ctypes.c_int()
    if ctypes.CDLL(paths[0]).ncclGetVersion(ctypes.byref(version)) != 0:
        return {"reason": "failed", "detail": "ncclGetVersion"}, paths[0]
    # nccl.h, NCCL_VERSION: the code grew with 2.9
    major, rest = divmod(version.value, 10000 if version.value >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}", paths[0]


def add_gpus(torch, driver, gpus):
    """Append each GPU to ``gpus``; those before an error are kept. RuntimeError from CUDA."""
    counted = driver.count()
    for index in range(torch.cuda.device_count() if counted is None else counted):
        p = torch.cuda.get_device_properties(index)
        identifier, bus = driver.identity(index)
        gpus.append(
            {
                "cuda_index": index,
                "name": p.name,
                "uuid": identifier,
                "pci_bus_id": bus,
                "total_bytes": p.total_memory,
                "capability": f"{p.major}.{p.minor}",
            }
        )


def cuda(torch):
    """What torch and the CUDA driver report: versions, GPUs, peer access; errors as text, none are raised."""
    driver = Driver()
    nccl, nccl_path = mapped_nccl(torch)
    fields = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "hip": getattr(torch.version, "hip", None) or "",
        "nccl": nccl,
        "nccl_path": nccl_path,
        "gpus": [],
        "error": "",
        "error_code": driver.code,
        "peer_access": [],
    }
    try:
        torch.cuda.init()
        add_gpus(torch, driver, fields["gpus"])
        count = len(fields["gpus"])
        fields["peer_access"] = [
            [i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)] for i in range(count)
        ]
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # AssertionError: torch compiled without CUDA (torch 2.13)
        fields["error"] = "\n".join(filter(None, (str(error).split("\nCUDA kernel errors")[0], driver.text)))
    return fields


def main():
    """Emit ``surroundings``, then ``cuda``; without torch emits ``no_torch`` instead and exits with 3."""
    emit(dict(surroundings(), event="surroundings"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
    except ImportError as error:
        emit({"event": "no_torch", "error": str(error)})
        sys.exit(3)
    emit(dict(cuda(torch), event="cuda"))


if __name__ == "__main__":
    main()
