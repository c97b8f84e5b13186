/* A stand-in for libcuda.so.1 for ranks/view.py: cuInit gives FAKE_CUDA_CODE (0: success, 2 GPUs). Build: gcc -shared -fPIC. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags) { const char *code = getenv("FAKE_CUDA_CODE"); return code ? atoi(code) : 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "CUDA_ERROR_UNKNOWN"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 802 ? "system not yet initialized" : "unknown error"; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index < 2 ? 0 : 101; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, 0, 16); uuid[0] = 0xef; uuid[15] = device; return 0; }
int cuDeviceGetPCIBusId(char *out, int size, int device) { snprintf(out, size, "0000:00:%02x.0", 6 + device); return 0; }
