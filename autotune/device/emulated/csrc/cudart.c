// libcudart: devices, memory, streams and events of emulated cards. Kernels do nothing.
#include "clock.h"
#include "memory.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>

static __thread cudaError_t last;

static cudaError_t result(cudaError_t error) {
  if (error) last = error;
  return error;
}

// ------------------------------------------------------------------------------------- devices

static cudaError_t devices(int *count) {
  *count = visible_count();
  if (!shared || !*count) return cudaErrorNoDevice;
  return shared->cuda / 1000 < CUDART_VERSION / 1000 ? cudaErrorInsufficientDriver : cudaSuccess;
}

static cudaError_t known(int device) {
  int count;
  cudaError_t error = devices(&count);
  if (error) return error;
  return device >= 0 && device < count ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceCount(int *count) {
  cudaError_t error = devices(count);
  if (error) *count = 0;
  return result(error);
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return result(known(current_device));
}

cudaError_t cudaSetDevice(int device) {
  cudaError_t error = known(device);
  if (error) return result(error);
  current_device = device;
  need_context(current_unit());
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = open_state() ? 0 : shared->cuda;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  cudaError_t error = known(device);
  if (error) return result(error);
  const struct unit *unit = &shared->unit[visible_unit(device)];
  memset(p, 0, sizeof *p);
  strncpy(p->name, unit->name, sizeof p->name - 1);
  p->uuid.bytes[0] = visible_unit(device);
  p->totalGlobalMem = usable(visible_unit(device));
  p->major = unit->major;
  p->minor = unit->minor;
  p->multiProcessorCount = unit->sms;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = unit->shared_per_block;
  p->sharedMemPerMultiprocessor = unit->shared_per_sm;
  p->reservedSharedMemPerBlock = 1 << 10;
  p->l2CacheSize = 50 << 20;
  p->maxThreadsPerMultiProcessor = unit->threads_per_sm;
  p->maxBlocksPerMultiProcessor = 16;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->pciBusID = 16 + unit->gpu;
  p->integrated = unit->unified;
  p->unifiedAddressing = p->concurrentKernels = p->managedMemory = p->canMapHostMemory = 1;
  p->asyncEngineCount = 3;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp p;
  cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = p.reservedSharedMemPerBlock; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrPciBusId: *value = p.pciBusID; break;
    case cudaDevAttrIntegrated: *value = p.integrated; break;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;  // kHz
    case cudaDevAttrGlobalMemoryBusWidth: *value = 1024; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  if (known(device)) return result(known(device));
  snprintf(text, size, "0000:%02x:00.0", 16 + shared->unit[visible_unit(device)].gpu);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = !known(device) && !known(peer) && device != peer;
  return cudaSuccess;
}

// -------------------------------------------------------------------------------------- memory

cudaError_t cudaMalloc(void **at, size_t size) {
  *at = NULL;
  if (known(current_device)) return result(known(current_device));
  if (!size) return cudaSuccess;
  *at = take(size, current_unit());
  return result(*at ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *at) {
  if (at) give_back(at);
  else if (!known(current_device)) need_context(current_unit());  // how programs start a context
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
  if (known(current_device)) return result(known(current_device));
  int unit = current_unit();
  need_context(unit);
  *total = usable(unit);
  uint64_t used = held(unit);
  *left = used < *total ? *total - used : 0;
  return cudaSuccess;
}

// Pools: one a card, for torch's allocator of this name.
static uint64_t pool_used[MOST_UNITS], pool_most[MOST_UNITS];

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  *pool = (cudaMemPool_t)(uintptr_t)(0x100 + visible_unit(device));
  return result(known(device));
}

cudaError_t cudaMallocAsync(void **at, size_t size, cudaStream_t stream) {
  cudaError_t error = cudaMalloc(at, size);
  if (error || !*at) return error;
  int unit = current_unit();
  uint64_t used = __sync_add_and_fetch(&pool_used[unit], block_of(*at).size);
  if (used > pool_most[unit]) pool_most[unit] = used;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *at, cudaStream_t stream) {
  struct block block = block_of(at);
  if (block.kind == DEVICE) __sync_sub_and_fetch(&pool_used[block.unit], block.size);
  return cudaFree(at);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  int unit = (int)(uintptr_t)pool - 0x100;
  int most = attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh;
  *(uint64_t *)value = most ? pool_most[unit] : pool_used[unit];
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  int unit = (int)(uintptr_t)pool - 0x100;
  if (attribute == cudaMemPoolAttrReservedMemHigh || attribute == cudaMemPoolAttrUsedMemHigh)
    pool_most[unit] = pool_used[unit];
  return cudaSuccess;
}

// Such memory takes none of a card: it can always leave.
cudaError_t cudaMallocManaged(void **at, size_t size, unsigned flags) {
  *at = reserve(size);
  return result(*at ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaHostAlloc(void **at, size_t size, unsigned flags) {
  *at = pin(size);
  return result(*at ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **at, size_t size) { return cudaHostAlloc(at, size, 0); }

cudaError_t cudaFreeHost(void *at) {
  if (at && forget_pinned(at)) return result(cudaErrorInvalidValue);
  free(at);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags) {
  if (block_of(at).kind == PINNED) return result(cudaErrorHostMemoryAlreadyRegistered);
  note_pinned(at, size);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at) {
  return result(forget_pinned(at) ? cudaErrorHostMemoryNotRegistered : cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at) {
  memset(attributes, 0, sizeof *attributes);
  struct block block = block_of(at);
  if (block.kind == DEVICE || block.kind == RESERVED) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)at;
    for (int device = visible_count() - 1; device >= 0; device--)
      if (visible_unit(device) == block.unit) attributes->device = device;
    return cudaSuccess;
  }
  attributes->type = block.kind == PINNED ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->hostPointer = (void *)at;
  attributes->devicePointer = block.kind == PINNED ? (void *)at : NULL;
  attributes->device = block.kind == PINNED ? current_device : -2;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  run_copy(NULL, to, from, size, 1);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  run_copy(stream, to, from, size, 0);
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t stream) {
  run_copy(stream, to, from, size, 0);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  run_fill(stream, 2 * width * height);
  if (width * height > REAL_COPY) return cudaSuccess;
  for (size_t row = 0; row < height; row++)
    copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void *at, int value, size_t size) {
  run_fill(NULL, size);
  fill(at, value, size);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream) {
  run_fill(stream, size);
  fill(at, value, size);
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **at, const void *symbol) { return cudaMalloc(at, 4096); }

// --------------------------------------------------------------------------- streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  if (known(current_device)) return result(known(current_device));
  need_context(current_unit());
  *stream = (cudaStream_t)new_stream(flags, priority);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  free(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = stream_of(stream)->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count) {
#endif
  struct graph *captured = stream_of(stream)->graph;
  if (id) *id = captured ? captured->id : 0;
  if (graph) *graph = (cudaGraph_t)captured;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data,
                                  unsigned flags) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data) {
  call(data);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  if (known(current_device)) return result(known(current_device));
  need_context(current_unit());
  struct event *made = calloc(1, sizeof *made);
  made->unit = current_unit();
  *event = (cudaEvent_t)made;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  forget((struct event *)event);
  free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  struct event *event = (struct event *)handle;
  if (event->unit != stream_of(stream)->unit) return result(cudaErrorInvalidResourceHandle);
  record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  host_waits(((struct event *)event)->ns);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return is_done((struct event *)event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  follow(stream, (struct event *)event);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(host_waits_on(stream) ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
  return result(host_waits_for(current_unit()) ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
  struct event *from = (struct event *)first, *to = (struct event *)second;
  if (!from->recorded || !to->recorded || from->unit != to->unit)
    return result(cudaErrorInvalidResourceHandle);
  *ms = (to->ns - from->ns) / 1e6;
  return cudaSuccess;
}

// -------------------------------------------------------------------------------------- graphs

// A graph takes as long as its longest chain of work, and the host one launch.

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  if (stream_of(stream)->graph || (uintptr_t)stream <= 2) return result(cudaErrorIllegalState);
  capture(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  *graph = (cudaGraph_t)end_capture(stream);
  return result(*graph ? cudaSuccess : cudaErrorStreamCaptureUnmatched);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  *count = ((struct graph *)graph)->nodes;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
  *made = (cudaGraphExec_t)graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(made, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  enqueue(stream, ((struct graph *)graph)->ns, "graph");
  return cudaSuccess;
}

// -------------------------------------------------------------------------------------- errors

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "error of an emulated GPU";
  }
}

const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return last; }

// ------------------------------------------------------------------------------------- kernels

// nvcc embeds a head, and one entry for each architecture, with its code or its PTX.
struct binaries { uint32_t magic; uint16_t version, head; uint64_t size; };
struct binary { uint16_t kind, version; uint32_t head; uint64_t size; uint32_t more[2]; uint16_t minor, major; uint32_t arch; };
enum { PTX = 1, CODE = 2 };

// The newest architecture of that kind that runs on a card; 0 if none does. CUB only has kernels for it.
static int newest(const struct binaries *all, int kind, int arch) {
  int found = 0;
  if (!all || all->magic != 0xba55ed50) return 0;
  const char *at = (const char *)all + all->head, *end = at + all->size;
  for (const struct binary *it; at < end; at += it->head + it->size) {
    it = (const struct binary *)at;
    int fits = kind == PTX || it->arch / 10 == arch / 10;
    if (it->kind == kind && fits && it->arch <= arch && it->arch > found) found = it->arch;
  }
  return found;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 64;
  const struct unit *unit = &shared->unit[current_unit()];
  int arch = 10 * unit->major + unit->minor, code = newest(binaries_of(function), CODE, arch);
  int ptx = code ? code : newest(binaries_of(function), PTX, arch);
  attributes->binaryVersion = code ? code : arch;
  attributes->ptxVersion = ptx ? ptx : arch;
  attributes->maxDynamicSharedSizeBytes = unit->shared_per_block;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t memory) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int threads, size_t memory,
                                                                   unsigned flags) {
  *blocks = 2;
  return cudaSuccess;
}

// nvcc's code for `kernel<<<grid, block, memory, stream>>>()` and its registration.
static __thread struct {
  dim3 grid, block;
  size_t memory;
  void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t memory, struct CUstream_st *stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.memory = memory;
  configuration.stream = stream;
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *memory, void *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *memory = configuration.memory;
  *(void **)stream = configuration.stream;
  return cudaSuccess;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *name,
                            int threads, void *thread, void *block, void *blocks, void *grid, int *warp) {
  register_kernel(function, name, *handle);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t memory, cudaStream_t stream) {
  run_registered(function, &grid.x, &block.x, arguments, stream);
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t memory, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, memory, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                        size_t memory, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, memory, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launch, const void *function, void **arguments) {
  return cudaLaunchKernel(function, launch->gridDim, launch->blockDim, arguments, 0, launch->stream);
}

void **__cudaRegisterFatBinary(void *wrapper) {
  void **handle = malloc(sizeof *handle);
  *handle = ((void **)wrapper)[1];
  return handle;
}

char __cudaInitModule(void **handle) { return 1; }

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

// -------------------------------------------------------------------------------------- driver

static int not_supported(void) { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

static cudaError_t driver_function(const char *name, void **function,
                                   enum cudaDriverEntryPointQueryResult *found) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *function = driver ? dlsym(driver, name) : NULL;
  if (!*function) *function = (void *)not_supported;
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
  return driver_function(name, function, found);
}

#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *found) {
  return driver_function(name, function, found);
}
#endif
