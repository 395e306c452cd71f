// Shared by all processes of one emulation: the cards, and the memory of each process on them.
//
// The file behind it is made by `emulation.py`; `layout.py` has the same layout.
// Its path is in the environment variable AUTOTUNE_EMULATED. Sizes are bytes.
#ifndef STATE_H
#define STATE_H
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

enum { MOST_UNITS = 64, MOST_PROCESSES = 512 };

// One device for CUDA: a GPU, or an instance of a GPU in MIG mode.
struct unit {
  char name[96];
  char uuid[64];
  uint64_t total;     // NVML's total, with the driver's own part
  uint64_t reserved;  // the driver's own part
  uint64_t context;   // of one process, with the first call that needs the device
  uint64_t nccl;      // of one communicator, on each of its ranks
  // Rates of large work: FLOP/s of products and attention; bytes/s of the card's memory, between
  // cards of a machine, to the host, and between machines.
  double half_rate, fp32_rate, attention_rate, attention_backward_rate;
  double memory_rate, link_rate, host_rate, net_rate;
  int32_t gpu;        // position of its GPU among the GPUs
  int32_t mig;        // 1 for an instance
  int32_t unified;    // 1 if it shares the host's memory
  int32_t major, minor, sms;
  int32_t shared_per_block, shared_per_sm, threads_per_sm;
  // NVML's answers to some functions: 0, or the error code.
  int32_t opening, memory, memory_v2, processes, utilization, energy;
  int32_t throttle;   // NVML's bits of reasons for low clocks
};

struct process {
  volatile int32_t pid;  // 0: nobody
  volatile int32_t busy;  // percent of the time in which its kernels run, for NVML
  volatile uint64_t used[MOST_UNITS];
};

struct state {
  volatile int32_t lock;  // pid of the holder
  int32_t units;
  int32_t cuda;  // of the driver: 13000 is 13.0
  int32_t opening;  // what nvmlInit answers
  int32_t machine;  // units of one machine; communicators of more ranks span several
  char driver[32];
  struct unit unit[MOST_UNITS];
  struct process process[MOST_PROCESSES];
};

PUBLIC extern const uint64_t layout_sizes[3];  // of the three structures, for a test
PUBLIC extern struct state *shared;  // NULL before open_state, or without an emulation

PUBLIC int open_state(void);      // 0, or -1 if AUTOTUNE_EMULATED names no state
PUBLIC int is_alive(int pid);     // a zombie holds nothing, so it is not
PUBLIC void lock_state(void);     // a holder that died does not keep it
PUBLIC void unlock_state(void);
PUBLIC uint64_t held(int unit);   // by all live processes
PUBLIC uint64_t usable(int unit); // the most of all processes together
PUBLIC struct process *mine(void); // the calling process's row

// Adds to this process's memory on a unit. 0, or -1 if the unit has not so much left.
PUBLIC int charge(int unit, uint64_t bytes);
PUBLIC void refund(int unit, uint64_t bytes);
PUBLIC void need_context(int unit);

// The units that CUDA_VISIBLE_DEVICES leaves: CUDA's device number to unit.
PUBLIC int visible_count(void);
PUBLIC int visible_unit(int device);

// The current device of this thread, by CUDA's number.
PUBLIC extern __thread int current_device;
PUBLIC int current_unit(void);

// Prints once that a function without a stand-in is called.
PUBLIC void say_missing(const char *function);
#endif
