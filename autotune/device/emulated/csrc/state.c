#include "state.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

const uint64_t layout_sizes[3] = {sizeof(struct unit), sizeof(struct process), sizeof(struct state)};
struct state *shared;
__thread int current_device;
static struct process *row;  // of this process; stale in a forked child
static int visible[MOST_UNITS], visible_units = -1;

int open_state(void) {
  if (shared) return 0;
  const char *path = getenv("AUTOTUNE_EMULATED");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return -1;
  void *at = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return -1;
  shared = at;
  return 0;
}

int is_alive(int pid) {
  if (pid <= 0 || (kill(pid, 0) && errno == ESRCH)) return 0;
  char path[32], line[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  char *read = fgets(line, sizeof line, file);
  fclose(file);
  const char *name_end = read ? strrchr(line, ')') : NULL;
  return name_end && name_end[1] && name_end[2] != 'Z' && name_end[2] != 'X';
}

void lock_state(void) {
  int self = getpid();
  for (int tries = 1;; tries++) {
    if (__sync_bool_compare_and_swap(&shared->lock, 0, self)) return;
    int holder = shared->lock;
    if (tries % 1000 == 0 && holder && !is_alive(holder))
      __sync_bool_compare_and_swap(&shared->lock, holder, 0);
    sched_yield();
  }
}

void unlock_state(void) {
  __sync_synchronize();
  shared->lock = 0;
}

static void forget_the_dead(void) {
  for (int i = 0; i < MOST_PROCESSES; i++) {
    struct process *each = &shared->process[i];
    if (!each->pid || is_alive(each->pid)) continue;
    memset((void *)each->used, 0, sizeof each->used);
    each->busy = 0;
    each->pid = 0;
  }
}

// Call with the lock held.
static struct process *my_row(void) {
  int self = getpid();
  if (row && row->pid == self) return row;
  forget_the_dead();
  for (int i = 0; i < MOST_PROCESSES; i++) {
    if (shared->process[i].pid) continue;
    row = &shared->process[i];
    memset((void *)row->used, 0, sizeof row->used);
    row->busy = 0;
    row->pid = self;
    return row;
  }
  fprintf(stderr, "emulated GPUs: more than %d processes\n", MOST_PROCESSES);
  abort();
}

struct process *mine(void) {
  lock_state();
  struct process *it = my_row();
  unlock_state();
  return it;
}

static uint64_t sum(int unit) {
  uint64_t bytes = 0;
  for (int i = 0; i < MOST_PROCESSES; i++)
    if (shared->process[i].pid) bytes += shared->process[i].used[unit];
  return bytes;
}

uint64_t held(int unit) {
  lock_state();
  forget_the_dead();
  uint64_t bytes = sum(unit);
  unlock_state();
  return bytes;
}

uint64_t usable(int unit) { return shared->unit[unit].total - shared->unit[unit].reserved; }

int charge(int unit, uint64_t bytes) {
  lock_state();
  struct process *self = my_row();
  int fits = sum(unit) + bytes <= usable(unit);
  if (!fits) {
    forget_the_dead();
    fits = sum(unit) + bytes <= usable(unit);
  }
  if (fits) self->used[unit] += bytes;
  unlock_state();
  return fits ? 0 : -1;
}

void refund(int unit, uint64_t bytes) {
  lock_state();
  my_row()->used[unit] -= bytes;
  unlock_state();
}

void need_context(int unit) {
  if (row && row->pid == getpid() && row->used[unit]) return;
  lock_state();
  struct process *self = my_row();
  if (!self->used[unit]) self->used[unit] = shared->unit[unit].context;
  unlock_state();
}

// The unit that one entry of CUDA_VISIBLE_DEVICES names, or -1.
static int named(const char *entry) {
  char *end;
  long gpu = strtol(entry, &end, 10);
  int number = end != entry, found = -1;
  for (int i = 0; i < shared->units; i++) {
    if (number && shared->unit[i].gpu == gpu) return i;
    if (number || strncmp(shared->unit[i].uuid, entry, strlen(entry))) continue;
    if (found >= 0) return -1;  // a prefix of two
    found = i;
  }
  return found;
}

static void read_visible(void) {
  const char *variable = getenv("CUDA_VISIBLE_DEVICES");
  visible_units = 0;
  if (!variable) {
    for (int i = 0; i < shared->units; i++) visible[visible_units++] = i;
    return;
  }
  char *text = strdup(variable), *rest = text, *entry;
  while ((entry = strsep(&rest, ","))) {
    int unit = *entry ? named(entry) : -1;
    if (unit < 0) break;  // CUDA ends the list there
    for (int i = 0; i < visible_units; i++)
      if (visible[i] == unit) { // named twice: CUDA shows none
        visible_units = 0;
        free(text);
        return;
      }
    visible[visible_units++] = unit;
  }
  free(text);
}

int visible_count(void) {
  if (open_state()) return 0;
  if (visible_units < 0) read_visible();
  return visible_units;
}

int visible_unit(int device) { return visible[device]; }

int current_unit(void) { return visible_unit(current_device); }

void say_missing(const char *function) {
  static char said[64][64];
  static int count;
  for (int i = 0; i < count; i++)
    if (!strncmp(said[i], function, 63)) return;
  if (count < 64) strncpy(said[count++], function, 63);
  fprintf(stderr, "emulated GPUs: %s has no stand-in\n", function);
}
