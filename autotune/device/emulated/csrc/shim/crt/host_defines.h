// The words that the wheel's headers use and its package leaves out, for a C compiler.
#ifndef HOST_DEFINES_H
#define HOST_DEFINES_H
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __location__(a)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __no_sanitize_memory__
#define __forceinline__ inline
#define __noinline__
#define __thread__ __thread
#define CUDARTAPI
#define CUDARTAPI_CDECL
#endif
