#include "memory.h"
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

// Addresses of cards are never backed by memory until a small copy touches them.
static const uint64_t ADDRESSES = 1ull << 44;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static uint64_t base;
static struct block *blocks;  // sorted by start; the gaps between them are free
static int count, capacity;

static uint64_t rounded(uint64_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

// Position of the first block that starts after `address`.
static int after(uint64_t address) {
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (blocks[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static struct block *at(uint64_t start) {
  int i = after(start) - 1;
  return i >= 0 && blocks[i].start == start ? &blocks[i] : NULL;
}

static void insert(struct block block) {
  if (count == capacity) {
    capacity = capacity ? 2 * capacity : 256;
    blocks = realloc(blocks, capacity * sizeof *blocks);
  }
  int i = after(block.start);
  memmove(&blocks[i + 1], &blocks[i], (count++ - i) * sizeof *blocks);
  blocks[i] = block;
}

static void erase(struct block *block) {
  memmove(block, block + 1, (&blocks[--count] - block) * sizeof *block);
}

static int on_card(uint64_t address) { return base && address - base < ADDRESSES; }

// The first gap of at least `size` bytes, with a page of distance; 0 if there is none.
static uint64_t gap(uint64_t size) {
  if (!base) {
    void *start = mmap(NULL, ADDRESSES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      fprintf(stderr, "emulated GPUs: 16 TiB of addresses are not to be had (ulimit -v?)\n");
      return 0;
    }
    base = ((uint64_t)start + PAGE - 1) / PAGE * PAGE;
  }
  uint64_t from = base;
  for (int i = 0; i < count; i++) {
    if (!on_card(blocks[i].start)) continue;
    if (blocks[i].start >= from + size + PAGE) break;
    from = blocks[i].start + blocks[i].size + PAGE;
  }
  return from + size <= base + ADDRESSES - PAGE ? from : 0;
}

static void *place(uint64_t size, int unit, enum kind kind) {
  pthread_mutex_lock(&guard);
  uint64_t start = gap(size);
  if (start) insert((struct block){start, size, unit, kind});
  pthread_mutex_unlock(&guard);
  return (void *)start;
}

void *take(uint64_t size, int unit) {
  size = rounded(size);
  need_context(unit);
  if (charge(unit, size)) return NULL;
  void *start = place(size, unit, DEVICE);
  if (!start) refund(unit, size);
  return start;
}

void *reserve(uint64_t size) { return place(rounded(size), -1, RESERVED); }

void give_back(void *start) {
  pthread_mutex_lock(&guard);
  struct block *found = at((uint64_t)start);
  struct block block = found ? *found : (struct block){0};
  if (found) erase(found);
  pthread_mutex_unlock(&guard);
  if (block.kind == FREE) return;
  if (block.kind != PINNED) forget_values(start, block.size);
  if (block.kind == DEVICE) refund(block.unit, block.size);
}

void forget_values(void *start, uint64_t size) { madvise(start, size, MADV_DONTNEED); }

void set_unit(void *start, int unit) {
  pthread_mutex_lock(&guard);
  int i = after((uint64_t)start) - 1;
  if (i >= 0) blocks[i].unit = unit;
  pthread_mutex_unlock(&guard);
}

void *pin(uint64_t size) {
  void *start = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (start) note_pinned(start, size);
  return start;
}

void note_pinned(void *start, uint64_t size) {
  pthread_mutex_lock(&guard);
  insert((struct block){(uint64_t)start, size, -1, PINNED});
  pthread_mutex_unlock(&guard);
}

int forget_pinned(void *start) {
  pthread_mutex_lock(&guard);
  struct block *found = at((uint64_t)start);
  int known = found && found->kind == PINNED;
  if (known) erase(found);
  pthread_mutex_unlock(&guard);
  return known ? 0 : -1;
}

struct block block_of(const void *address) {
  uint64_t here = (uint64_t)address;
  struct block found = {0};
  pthread_mutex_lock(&guard);
  int i = after(here) - 1;
  if (i >= 0 && here - blocks[i].start < blocks[i].size) found = blocks[i];
  pthread_mutex_unlock(&guard);
  return found;
}

// Whole pages of a process's own memory go back to the kernel: new ones are zeros and take no memory.
// Only such pages can be freed lazily.
static void zero(void *to, uint64_t size) {
  uint64_t page = sysconf(_SC_PAGESIZE), end = (uint64_t)to + size;
  uint64_t first = ((uint64_t)to + page - 1) / page * page, last = end / page * page;
  if (first >= last || madvise((void *)first, last - first, MADV_FREE) ||
      madvise((void *)first, last - first, MADV_DONTNEED)) {
    memset(to, 0, size);
    return;
  }
  memset(to, 0, first - (uint64_t)to);
  memset((void *)last, 0, end - last);
}

void copy(void *to, const void *from, uint64_t size) {
  int to_card = on_card((uint64_t)to), from_card = on_card((uint64_t)from);
  if (size <= REAL_COPY || (!to_card && !from_card)) memmove(to, from, size);
  else if (!to_card) zero(to, size);  // results are zeros
}

void fill(void *start, int value, uint64_t size) {
  if (size <= REAL_COPY || !on_card((uint64_t)start)) memset(start, value, size);
}
