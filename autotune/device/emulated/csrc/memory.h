// One process's addresses on emulated cards: allocations, and copies.
#ifndef MEMORY_H
#define MEMORY_H
#include "state.h"

// Only smaller copies are made: others would touch memory that is only counted.
enum { REAL_COPY = 1 << 16, PAGE = 2 << 20 };

enum kind { FREE, DEVICE, RESERVED, PINNED };

struct block {
  uint64_t start, size;
  int unit;  // CUDA's memory: which card; pinned memory: -1
  enum kind kind;
};

// Memory of a card, charged in pages of 2 MiB. NULL if it does not fit.
PUBLIC void *take(uint64_t size, int unit);
// Addresses alone, as for expandable segments. NULL if there are none left.
PUBLIC void *reserve(uint64_t size);
PUBLIC void give_back(void *start);
PUBLIC void set_unit(void *start, int unit);  // of reserved addresses

PUBLIC void forget_values(void *start, uint64_t size);

PUBLIC void *pin(uint64_t size);
PUBLIC void note_pinned(void *start, uint64_t size);
PUBLIC int forget_pinned(void *start);  // -1 if it is none

// The block that an address lies in; its kind is FREE if none.
PUBLIC struct block block_of(const void *address);
PUBLIC void copy(void *to, const void *from, uint64_t size);
PUBLIC void fill(void *at, int value, uint64_t size);
#endif
