// libnvidia-ml: NVML of emulated cards. The state lists functions without an answer.
// With -DBEFORE_R510 the functions that drivers before R510 lack are left out.
#include "state.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

typedef uintptr_t handle;  // 1 + a unit, or GPU + a GPU's position

static const handle GPU = 0x10000;
static int starts;

static int gpus(void) { return shared->units ? shared->unit[shared->units - 1].gpu + 1 : 0; }

static int gpu_of(handle device) {
  return device >= GPU ? (int)(device - GPU) : shared->unit[device - 1].gpu;
}

static int belongs(int unit, handle device) {
  return device >= GPU ? shared->unit[unit].gpu == (int)(device - GPU) : unit == (int)device - 1;
}

static const struct unit *first(handle device) {
  int unit = 0;
  while (!belongs(unit, device)) unit++;
  return &shared->unit[unit];
}

static int text(char *out, unsigned size, const char *value) {
  if (strlen(value) >= size) return TOO_SMALL;
  strcpy(out, value);
  return OK;
}

static void *for_good(void *nothing) {
  for (;;) pause();
}

int nvmlInit_v2(void) {
  if (open_state()) return 9;  // the driver is not loaded
  if (shared->opening) return shared->opening;
  static int helped;
  if (!helped) {  // drivers of 2025 start a thread that outlives nvmlShutdown
    pthread_t helper;
    helped = pthread_create(&helper, 0, for_good, 0) == 0;
  }
  starts++;
  return OK;
}

int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlInit(void) { return nvmlInit_v2(); }

int nvmlShutdown(void) {
  if (!starts) return UNINITIALIZED;
  starts--;
  return OK;
}

const char *nvmlErrorString(int error) {
  switch (error) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(out, size, shared->driver); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text(out, size, shared->driver); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = shared->cuda;
  return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

// ------------------------------------------------------------------------------------ handles

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = gpus();
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device) {
  if ((int)index >= gpus()) return INVALID;
  *device = GPU + index;
  return first(*device)->opening;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device) {
  for (int unit = 0; unit < shared->units; unit++) {
    if (strcmp(shared->unit[unit].uuid, uuid)) continue;
    *device = shared->unit[unit].mig ? (handle)unit + 1 : GPU + shared->unit[unit].gpu;
    return shared->unit[unit].opening;
  }
  for (int gpu = 0; gpu < gpus(); gpu++) {
    char whole[64];
    snprintf(whole, sizeof whole, "GPU-%08x-0000-0000-0000-000000000000", gpu);
    if (strcmp(whole, uuid)) continue;
    *device = GPU + gpu;
    return OK;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, handle *device) {
  unsigned domain, number;
  if (sscanf(bus, "%x:%x", &domain, &number) != 2) return INVALID;
  if ((int)number < 16 || (int)number - 16 >= gpus()) return NOT_FOUND;
  *device = GPU + number - 16;
  return OK;
}

int nvmlDeviceGetIndex(handle device, unsigned *index) {
  *index = gpu_of(device);
  return OK;
}

int nvmlDeviceGetMinorNumber(handle device, unsigned *number) { return nvmlDeviceGetIndex(device, number); }

int nvmlDeviceGetUUID(handle device, char *out, unsigned size) {
  if (device < GPU || !first(device)->mig) return text(out, size, first(device)->uuid);
  char whole[64];
  snprintf(whole, sizeof whole, "GPU-%08x-0000-0000-0000-000000000000", gpu_of(device));
  return text(out, size, whole);
}

int nvmlDeviceGetName(handle device, char *out, unsigned size) { return text(out, size, first(device)->name); }

int nvmlDeviceGetMigMode(handle device, unsigned *now, unsigned *pending) {
  *now = *pending = first(device)->mig;
  return *now || first(device)->major >= 8 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(handle device, unsigned *count) {
  *count = first(device)->mig ? 7 : 0;
  return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *instance) {
  for (int unit = 0; unit < shared->units; unit++) {
    if (!belongs(unit, device) || !shared->unit[unit].mig || index--) continue;
    *instance = unit + 1;
    return OK;
  }
  return NOT_FOUND;
}

// ------------------------------------------------------------------------- memory and processes

static void measure(handle device, uint64_t *total, uint64_t *reserved, uint64_t *used) {
  *total = *reserved = *used = 0;
  for (int unit = 0; unit < shared->units; unit++) {
    if (!belongs(unit, device)) continue;
    *total += shared->unit[unit].total;
    *reserved += shared->unit[unit].reserved;
    *used += held(unit);
  }
}

struct memory {
  uint64_t total, free, used;
};

struct memory_v2 {
  unsigned version;
  uint64_t total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo(handle device, struct memory *out) {
  if (first(device)->memory) return first(device)->memory;
  uint64_t reserved;
  measure(device, &out->total, &reserved, &out->used);
  out->used += reserved;
  out->free = out->total - out->used;
  return OK;
}

#ifndef BEFORE_R510
int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *out) {
  if (first(device)->memory) return first(device)->memory;
  if (first(device)->memory_v2) return first(device)->memory_v2;
  measure(device, &out->total, &out->reserved, &out->used);
  out->free = out->total - out->reserved - out->used;
  return OK;
}
#endif

struct running {  // of the first version
  unsigned pid;
  unsigned long long used;
};

struct running_v2 {
  struct running process;
  unsigned gpu_instance, compute_instance;
};

// Write rows of `size` bytes, which begin as those of the first version do.
static int list_processes(handle device, unsigned *count, void *out, size_t size) {
  if (first(device)->processes) return first(device)->processes;
  unsigned room = *count, found = 0;
  for (int unit = 0; unit < shared->units; unit++) {
    if (!belongs(unit, device)) continue;
    for (int i = 0; i < MOST_PROCESSES; i++) {
      struct process *each = &shared->process[i];
      if (!each->pid || !each->used[unit] || !is_alive(each->pid)) continue;
      if (found < room && out) {
        char *row = memset((char *)out + found * size, 0, size);
        *(struct running *)row = (struct running){each->pid, each->used[unit]};
      }
      found++;
    }
  }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}

#ifndef BEFORE_R510
int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct running_v2 *out) {
  return list_processes(device, count, out, sizeof *out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, unsigned *count, struct running_v2 *out) {
  *count = 0;
  return OK;
}
#endif

int nvmlDeviceGetComputeRunningProcesses(handle device, unsigned *count, struct running *out) {
  return list_processes(device, count, out, sizeof *out);
}

struct utilization {
  unsigned pid;
  unsigned long long time;  // in microseconds
  unsigned sm, memory, encoder, decoder;
};

int nvmlDeviceGetProcessUtilization(handle device, struct utilization *out, unsigned *count,
                                    unsigned long long since) {
  if (first(device)->utilization) return first(device)->utilization;
  unsigned room = *count, found = 0;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < MOST_PROCESSES; i++) {
    struct process *each = &shared->process[i];
    int here = 0;
    for (int unit = 0; unit < shared->units; unit++) here |= belongs(unit, device) && each->used[unit];
    if (!each->pid || !each->busy || !here || !is_alive(each->pid)) continue;
    if (found < room && out)
      out[found] = (struct utilization){each->pid, now.tv_sec * 1000000ull + now.tv_nsec / 1000, each->busy};
    found++;
  }
  *count = found;
  if (found > room || (found && !out)) return TOO_SMALL;
  return found ? OK : NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(handle device, unsigned *rates) {
  if (first(device)->utilization) return first(device)->utilization;
  rates[0] = rates[1] = 0;
  for (int i = 0; i < MOST_PROCESSES; i++)
    for (int unit = 0; unit < shared->units; unit++) {
      struct process *each = &shared->process[i];
      if (belongs(unit, device) && each->used[unit] && (unsigned)each->busy > rates[0] && is_alive(each->pid))
        rates[0] = each->busy;
    }
  return OK;
}

// ------------------------------------------------------------------------------------- sensors

int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
  *major = first(device)->major;
  *minor = first(device)->minor;
  return OK;
}

int nvmlDeviceGetEccMode(handle device, unsigned *now, unsigned *pending) {
  *now = *pending = 1;
  return OK;
}

int nvmlDeviceGetClockInfo(handle device, int type, unsigned *mhz) {
  *mhz = first(device)->throttle ? 1200 : 1800;
  return OK;
}

int nvmlDeviceGetMaxClockInfo(handle device, int type, unsigned *mhz) {
  *mhz = 1800;
  return OK;
}

int nvmlDeviceGetTemperature(handle device, int sensor, unsigned *degrees) {
  *degrees = first(device)->throttle & 0x60 ? 90 : 45;  // slower for heat
  return OK;
}

struct temperature {
  unsigned version, sensor;
  int degrees;
};

int nvmlDeviceGetTemperatureV(handle device, struct temperature *out) {
  return nvmlDeviceGetTemperature(device, 0, (unsigned *)&out->degrees);
}

int nvmlDeviceGetPowerUsage(handle device, unsigned *milliwatts) {
  *milliwatts = 300000;
  return first(device)->energy;
}

int nvmlDeviceGetTotalEnergyConsumption(handle device, unsigned long long *millijoules) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *millijoules = 300 * (now.tv_sec * 1000ull + now.tv_nsec / 1000000);
  return first(device)->energy;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(handle device, unsigned long long *reasons) {
  *reasons = first(device)->throttle;
  return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(handle device, unsigned long long *reasons) {
  return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

// ---------------------------------------------------- links: there are none, as torch asks for them

int nvmlDeviceGetNvLinkRemoteDeviceType(handle device, unsigned link, int *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, void *out) { return NOT_SUPPORTED; }
// No fabric between machines: state 0, behind version, cluster, status and clique. Torch 2.13 makes no
// expandable segment where there is no answer.
int nvmlDeviceGetGpuFabricInfoV(handle device, void *out) {
  memset((char *)out + sizeof(unsigned), 0, 16 + 2 * sizeof(unsigned) + 1);
  return OK;
}
