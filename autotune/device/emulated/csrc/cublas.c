// libcublas: handles, and products of matrices, which take time. Everything else does nothing.
#include "clock.h"
#include <dlfcn.h>

enum { NOT_INITIALIZED = 1, HANDLE = 8 << 20 };  // a full card has no room for a handle

struct handle {
  void *stream;
  int math;
};

int cublasCreate_v2(void **handle) {
  typedef int ask(size_t *, size_t *);
  ask *memory = (ask *)dlsym(RTLD_DEFAULT, "cudaMemGetInfo");
  size_t left, total;
  if (memory && !memory(&left, &total) && left < HANDLE) return NOT_INITIALIZED;
  *handle = calloc(1, 4096);  // torch takes it for a handle of cublasLt, too
  return 0;
}

int cublasDestroy_v2(struct handle *handle) {
  free(handle);
  return 0;
}

int cublasSetStream_v2(struct handle *handle, void *stream) {
  handle->stream = stream;
  return 0;
}

int cublasSetMathMode(struct handle *handle, int mode) {
  handle->math = mode;
  return 0;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
  *mode = handle->math;
  return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }

int cublasGetVersion_v2(void *handle, int *version) {
  *version = CUBLAS_VERSION;
  return 0;
}

static enum type single(struct handle *handle) { return (handle->math & 15) == 3 ? TF32 : FP32; }

int cublasSgemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k) {
  run_product(handle->stream, m, n, k, 1, single(handle));
  return 0;
}

int cublasDgemm_v2(struct handle *handle, int ta, int tb, int m, int n, int k) {
  run_product(handle->stream, m, n, k, 1, FP64);
  return 0;
}

int cublasSgemmStridedBatched(struct handle *handle, int ta, int tb, int m, int n, int k, void *alpha,
                              void *a, int lda, long long sa, void *b, int ldb, long long sb,
                              void *beta, void *c, int ldc, long long sc, int batch) {
  run_product(handle->stream, m, n, k, batch, single(handle));
  return 0;
}

int cublasGemmEx(struct handle *handle, int ta, int tb, int m, int n, int k, void *alpha, void *a,
                 int type) {
  run_product(handle->stream, m, n, k, 1, type_of(type, single(handle)));
  return 0;
}

int cublasGemmStridedBatchedEx(struct handle *handle, int ta, int tb, int m, int n, int k, void *alpha,
                               void *a, int type, int lda, long long sa, void *b, int btype, int ldb,
                               long long sb, void *beta, void *c, int ctype, int ldc, long long sc,
                               int batch) {
  run_product(handle->stream, m, n, k, batch, type_of(type, single(handle)));
  return 0;
}
