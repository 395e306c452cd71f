// Names alone: no stand-in computes with them.
typedef unsigned char __nv_fp8_e4m3, __nv_fp8_e5m2;
