// libcublasLt: descriptors, and one algorithm for each product, which takes time. Everything else
// does nothing.
#include "clock.h"

// An operation, a layout or a preference.
struct descriptor {
  int type, compute, transposed, batch;
  uint64_t rows, columns;
};

static int make(struct descriptor **out, struct descriptor it) {
  *out = malloc(sizeof it);
  **out = it;
  return 0;
}

static int end(void *descriptor) {
  free(descriptor);
  return 0;
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
int cublasLtCreate(void **handle) { return make((struct descriptor **)handle, (struct descriptor){0}); }
int cublasLtDestroy(void *handle) { return end(handle); }

int cublasLtMatmulDescCreate(struct descriptor **out, int compute, int scale) {
  return make(out, (struct descriptor){.compute = compute});
}

int cublasLtMatmulDescDestroy(void *it) { return end(it); }

int cublasLtMatmulDescSetAttribute(struct descriptor *it, int attribute, const void *value, size_t size) {
  if (attribute == 3) it->transposed = *(int *)value;  // CUBLASLT_MATMUL_DESC_TRANSA
  return 0;
}

int cublasLtMatmulPreferenceCreate(struct descriptor **out) { return make(out, (struct descriptor){0}); }
int cublasLtMatmulPreferenceDestroy(void *it) { return end(it); }

int cublasLtMatrixLayoutCreate(struct descriptor **out, int type, uint64_t rows, uint64_t columns,
                               int64_t step) {
  return make(out, (struct descriptor){.type = type, .batch = 1, .rows = rows, .columns = columns});
}

int cublasLtMatrixLayoutDestroy(void *it) { return end(it); }

int cublasLtMatrixLayoutSetAttribute(struct descriptor *it, int attribute, const void *value, size_t size) {
  if (attribute == 5) it->batch = *(int *)value;  // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
  return 0;
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

int cublasLtMatmul(void *handle, struct descriptor *operation, void *alpha, void *a,
                   struct descriptor *a_layout, void *b, void *b_layout, void *beta, void *c,
                   void *c_layout, void *d, struct descriptor *d_layout, void *algorithm,
                   void *workspace, size_t size, void *stream) {
  uint64_t k = operation->transposed ? a_layout->rows : a_layout->columns;
  enum type single = operation->compute == 77 ? TF32 : FP32;  // CUBLAS_COMPUTE_32F_FAST_TF32
  run_product(stream, d_layout->rows, d_layout->columns, k, d_layout->batch, type_of(a_layout->type, single));
  return 0;
}
