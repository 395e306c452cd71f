// libcuda: the driver's functions for torch's expandable segments, nvrtc and Triton.
#include "clock.h"
#include "memory.h"
#include <cuda.h>
#include <dlfcn.h>

static CUresult known(int device) {
  return device >= 0 && device < visible_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuInit(unsigned flags) { return visible_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

CUresult cuDriverGetVersion(int *version) {
  *version = open_state() ? 0 : shared->cuda;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = visible_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int number) {
  *device = number;
  return known(number);
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  if (known(device)) return known(device);
  snprintf(name, size, "%s", shared->unit[visible_unit(device)].name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  if (known(device)) return known(device);
  *bytes = usable(visible_unit(device));
  return CUDA_SUCCESS;
}

// The runtime's attributes have the driver's numbers. Those of the driver alone are 0: no fabric
// handles, no multicast, no compression.
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  typedef int ask(int *, int, int);
  ask *runtime = (ask *)dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute");
  if (known(device)) return known(device);
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  else if (!runtime || runtime(value, attribute, device)) *value = 0;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------ contexts

static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(0x1000 + 16 * device); }

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  if (known(device)) return known(device);
  if (flags) *flags = 0;
  *active = mine()->used[visible_unit(device)] > 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (known(device)) return known(device);
  need_context(visible_unit(device));
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext *context) {
  int any = visible_count() && mine()->used[current_unit()];
  *context = any ? context_of(current_device) : NULL;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context) current_device = ((uintptr_t)context - 0x1000) / 16;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent(CUcontext *context) { return context ? cuCtxGetCurrent(context) : CUDA_SUCCESS; }

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = current_device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) {
  host_waits_for(current_unit());
  return CUDA_SUCCESS;
}

// ------------------------------------------------------- virtual memory: expandable segments

struct handle {
  uint64_t size;
  int unit, references;  // as created, retained and mapped
};

CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  *size = PAGE;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags) {
  *at = (CUdeviceptr)reserve(size);
  return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
  give_back((void *)at);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  int unit = visible_unit(properties->location.id);
  need_context(unit);
  if (charge(unit, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  struct handle *made = malloc(sizeof *made);
  *made = (struct handle){size, unit, 1};
  *out = (CUmemGenericAllocationHandle)(uintptr_t)made;
  return CUDA_SUCCESS;
}

static void release(struct handle *handle) {
  if (__sync_sub_and_fetch(&handle->references, 1)) return;
  refund(handle->unit, handle->size);
  free(handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  release((struct handle *)(uintptr_t)handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  set_unit((void *)at, ((struct handle *)(uintptr_t)handle)->unit);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  forget_values((void *)at, size);
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count) {
  return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream) {
  run_fill(stream, 4 * count);
  if (4 * count <= REAL_COPY)
    for (size_t i = 0; i < count; i++) ((unsigned *)at)[i] = value;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
  struct block block = block_of((void *)at);
  if (base) *base = block.start;
  if (size) *size = block.size;
  return block.kind ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemGetInfo(size_t *left, size_t *total) {
  typedef int ask(size_t *, size_t *);
  ask *runtime = (ask *)dlsym(RTLD_DEFAULT, "cudaMemGetInfo");
  return runtime ? (CUresult)runtime(left, total) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at) {
  struct block block = block_of((void *)at);
  if (!block.kind) return CUDA_ERROR_INVALID_VALUE;
  for (int device = visible_count() - 1; device >= 0; device--) {
    if (visible_unit(device) != block.unit) continue;
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT) *(CUcontext *)value = context_of(device);
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)value = device;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)value = at;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
    *(unsigned *)value = block.kind == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------- modules and kernels: nothing runs

// A module is a copy of its image, an ELF file or a program's text.
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  size_t size = image_size(image);
  *module = (CUmodule)memcpy(malloc(size), image, size);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                            void **values) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  fseek(file, 0, SEEK_END);
  size_t size = ftell(file);
  char *image = calloc(1, size + 1);
  rewind(file);
  size_t got = fread(image, 1, size, file);
  fclose(file);
  *module = (CUmodule)image;
  return got == size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleUnload(CUmodule module) {
  free(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  *function = (CUfunction)kernel_of_image(module, name);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 64
                                                                : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t memory) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *launch) {
  *clusters = 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned memory, CUstream stream, void **arguments,
                        void **extra) {
  run_kernel((struct kernel *)function, (double)gx * gy * gz * bx * by * bz, arguments, stream);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *launch, CUfunction function, void **arguments,
                          void **extra) {
  return cuLaunchKernel(function, launch->gridDimX, launch->gridDimY, launch->gridDimZ,
                        launch->blockDimX, launch->blockDimY, launch->blockDimZ, 0, launch->hStream,
                        arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned memory,
                                   CUstream stream, void **arguments) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, memory, stream, arguments, NULL);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                                const cuuint64_t *sizes, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *elements,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

// nvrtc reads a table that NVIDIA does not document. The first number of each is its bytes.
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
  static const size_t empty = sizeof empty;
  *table = &empty;
  return CUDA_SUCCESS;
}

// -------------------------------------------------------------------------------------- errors

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY   ? "out of memory"
          : error == CUDA_ERROR_NOT_SUPPORTED ? "operation not supported"
          : error                             ? "error of an emulated GPU"
                                              : "no error";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (found) *found = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
