// Names alone: no stand-in computes with them.
typedef unsigned short __nv_bfloat16;
