"""The machine's own NVML with one call broken: nvmlDeviceGetHandleByIndex answers 999, Unknown Error; every other one is passed on."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROKEN = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2")
HEAD = """#include <dlfcn.h>
#include <stdlib.h>
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return 999; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return 999; }
"""
# a jump keeps registers and stack as the caller left them, whatever the arguments are
PASS_ON = """static void *to_{0} __attribute__((used)); __attribute__((naked)) void {0}(void) {{ __asm__("jmp *to_{0}(%rip)"); }}
"""
OPEN = """__attribute__((constructor)) static void open_it(void) {{
    void *real = dlopen("{0}", RTLD_NOW | RTLD_LOCAL);
    if (!real) abort();
{1}}}
"""


def real_nvml() -> str | None:
    """The path of the NVML that a process of this machine loads, None where there is none. x86-64 only."""
    line = (
        "import ctypes; ctypes.CDLL('libnvidia-ml.so.1'); print(*[l.split()[-1] for l in open('/proc/self/maps') if 'libnvidia-ml' in"
        " l][:1])"
    )
    said = subprocess.run(["python3", "-c", line], capture_output=True, text=True).stdout.strip()
    return said or None


def in_front(folder: Path) -> str:
    """LD_LIBRARY_PATH with ``folder`` first, which gets the broken NVML. Skips the test without an NVML, gcc or nm.

    NCCL also calls functions that tests/fake_nvml.py does not have: processes that run NCCL need this library.
    """
    real = real_nvml()
    if real is None or not (shutil.which("gcc") and shutil.which("nm")):
        pytest.skip("no NVML to stand in front of, or no gcc or nm")
    build(real, folder)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]))


def build(real: str, folder: Path) -> None:
    """Compile a libnvidia-ml.so.1 into ``folder`` that forwards to the library file ``real``."""
    listed = subprocess.run(["nm", "-D", "--defined-only", real], capture_output=True, text=True, check=True).stdout
    names = sorted(set(re.findall(r" T (nvml\w+)", re.sub(r"@\S+", "", listed))) - set(BROKEN))
    links = "".join(f'    to_{name} = dlsym(real, "{name}");\n' for name in names)
    (folder / "shim.c").write_text(HEAD + "".join(map(PASS_ON.format, names)) + OPEN.format(real, links))
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "shim.c"), "-ldl"], check=True)
