/* A stand-in for libnvidia-ml.so.1: 4 GPUs shaped like the H200 host of 2026-11-20 (driver 580.159.04), faults chosen by FAKE_NVML.
   Build: gcc -shared -fPIC -o libnvidia-ml.so.1 fake_nvml.c; use: LD_LIBRARY_PATH=<its folder> FAKE_NVML=<scenario>[,<scenario>]... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, LOST = 15, MISMATCH = 18, UNKNOWN = 999 };
typedef struct { int index; int mig; } device;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, dev, pciDeviceId, pciSubSystemId; char busId[32]; } pci;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct { unsigned version; uint8_t uuid[16]; unsigned status; uint32_t clique; unsigned state; uint32_t health; } fabric_v2;
static device gpus[4] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}}, slice = {0, 1};
static const unsigned long long MIB = 1ull << 20;

static int is(const char *scenario) {
    const char *all = getenv("FAKE_NVML");
    const char *at = all ? strstr(all, scenario) : NULL;
    return at != NULL && (at == all || at[-1] == ',') && (at[strlen(scenario)] == 0 || at[strlen(scenario)] == ',');
}
static int number(const char *name) { const char *v = getenv(name); return v ? atoi(v) : 0; }
static int all_unsupported(void) { return is("unsupported") ? NOT_SUPPORTED : OK; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case LOST: return "GPU is lost";
    case MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
int nvmlInitWithFlags(unsigned flags) { return is("mismatch") ? MISMATCH : is("init-unknown") ? UNKNOWN : OK; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { snprintf(out, n, "580.159.04"); return OK; }
int nvmlSystemGetNVMLVersion(char *out, unsigned n) { snprintf(out, n, "13.580.159.04"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = is("none") ? 0 : 4; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
    if (is("hang") && i == 2) for (;;) sleep(1);
    if (is("crash") && i == 1) abort();
    if (is("handle-unknown") && i == 0) return UNKNOWN;
    if (is("lost") && i == 1) return LOST;
    if (is("denied") && i == 3) return NO_PERMISSION;
    *d = &gpus[i];
    return OK;
}
int nvmlDeviceGetName(device *d, char *out, unsigned n) {
    snprintf(out, n, d->mig ? "NVIDIA H200 MIG 1g.18gb" : is("geforce") ? "NVIDIA GeForce RTX 4090" : "NVIDIA H200");
    return OK;
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned n) {
    snprintf(out, n, "%s-%08x-0000-4000-8000-000000000000", d->mig ? "MIG" : "GPU", 0xef50b440 + d->index);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(device *d, pci *p) {
    memset(p, 0, sizeof *p);
    snprintf(p->busId, sizeof p->busId, "00000000:00:%02X.0", is("same-bus-id") ? 6 : 6 + d->index);
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *m) {
    m->total = 143771 * MIB; m->reserved = 616 * MIB;
    m->used = (is("busy") && d->index == 2) || (is("unlisted") && d->index == 1) ? 40213 * MIB : 0;
    m->free = m->total - m->reserved - m->used;
    return OK;
}
int nvmlDeviceGetComputeMode(device *d, unsigned *mode) { *mode = is("exclusive") ? 3 : is("prohibited") && d->index == 1 ? 2 : 0; return OK; }
int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *next) { *now = *next = is("mig") && d->index == 0; return all_unsupported(); }
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *n) { *n = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned i, void **out) { *out = &slice; return i == 0 ? OK : NOT_FOUND; }
int nvmlDeviceGetVirtualizationMode(device *d, unsigned *mode) { *mode = 1; return all_unsupported(); }
int nvmlDeviceGetTotalEccErrors(device *d, unsigned type, unsigned counter, unsigned long long *n) {
    *n = is("ecc") && d->index == 3 ? 2 : 0;
    return all_unsupported();
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failure) {
    *c = 0; *failure = 0;
    *u = *pending = is("remap-pending") && d->index == 1;
    return all_unsupported();
}
int nvmlDeviceGetRetiredPages(device *d, unsigned cause, unsigned *n, unsigned long long *pages) { return NOT_SUPPORTED; }
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *bits) {
    *bits = is("thermal") && d->index == 0 ? 0x48 : 1;
    return all_unsupported();
}
int nvmlDeviceGetCurrPcieLinkGeneration(device *d, unsigned *v) { *v = is("idle-link") ? 1 : 5; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *v) { *v = 5; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(device *d, unsigned *v) { *v = is("idle-link") ? 8 : 16; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *v) { *v = 16; return OK; }
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *up) {
    if (is("geforce") || is("unsupported") || link >= 18) return NOT_SUPPORTED;
    *up = !(is("link-down") && d->index == 1 && link == 7);
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *kind) { *kind = 2; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, pci *p) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(device *d, fabric_v2 *f) {
    f->status = 0;
    f->state = is("fabric-waits") ? 2 : is("geforce") ? 0 : 3;
    return all_unsupported();
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *both) { both[0] = is("busy") && d->index == 2 ? 97 : 0; both[1] = 0; return OK; }
int nvmlDeviceGetTemperature(device *d, unsigned sensor, unsigned *c) { *c = 36; return OK; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { *mw = 79336; return all_unsupported(); }
static int list(int pid, unsigned mib, unsigned *n, process *out) {
    unsigned room = *n;
    *n = pid ? 1 : 0;
    if (!pid) return OK;
    if (!out || room < 1) return SMALL;
    out[0].pid = pid; out[0].used = mib * MIB; out[0].gi = out[0].ci = 0xffffffff;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process *out) {
    if (is("unsupported")) return NOT_SUPPORTED;
    return list(is("busy") && d->index == 2 ? number("FAKE_NVML_PID") : 0, 40213, n, out);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process *out) {
    return list(is("desktop") && d->index == 0 ? number("FAKE_NVML_PID") : 0, 310, n, out);
}
int nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *level) { *level = 30; return OK; }
int nvmlDeviceGetP2PStatus(device *a, device *b, unsigned way, unsigned *status) {
    *status = is("geforce") ? 1 : 0;
    return OK;
}
