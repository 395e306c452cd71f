// libcublas: handles. Everything else succeeds and does nothing.
#include <stddef.h>

int cublasCreate_v2(void **handle) {
  static size_t made = 0x100;
  *handle = (void *)(made += 16);
  return 0;
}

int cublasGetMathMode(void *handle, int *mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0; }

int cublasGetVersion_v2(void *handle, int *version) {
  *version = CUBLAS_VERSION;
  return 0;
}
