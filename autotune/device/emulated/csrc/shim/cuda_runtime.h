// The part of it that is C.
#include <cuda_runtime_api.h>
