// libcublasLt: descriptors, and one algorithm for each product. Everything else does nothing.
#include <stddef.h>
#include <string.h>

static int make(void **descriptor) {
  static size_t made = 0x100000;
  *descriptor = (void *)(made += 64);
  return 0;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
int cublasLtCreate(void **handle) { return make(handle); }
int cublasLtMatmulDescCreate(void **out, int compute, int scale) { return make(out); }
int cublasLtMatmulPreferenceCreate(void **out) { return make(out); }

int cublasLtMatrixLayoutCreate(void **out, int type, unsigned long rows, unsigned long columns, long step) {
  return make(out);
}

// cublasLtMatmulHeuristicResult_t: 64 bytes of algorithm, the workspace's size, state, waves.
struct heuristic {
  char algorithm[64];
  size_t workspace;
  int state;
  float waves;
  int rest[4];
};

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int wanted, struct heuristic *out, int *got) {
  memset(out, 0, sizeof *out);
  *got = 1;
  return 0;
}
