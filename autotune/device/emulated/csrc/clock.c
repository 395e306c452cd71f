#include "clock.h"
#include <pthread.h>
#include <time.h>

static const double LAUNCH = 6000;  // of the host, for one kernel or copy
// Times as slow is a server's host as this one, at its own work: Python's, and an optimizer's on
// offloaded state. Two that were measured: 1.4 and 2.5 (results/real.md).
static const double HOST = 1.5;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct stream standard[MOST_UNITS];
static double now, latest[MOST_UNITS], blocking[MOST_UNITS];  // of the host, and of each card

struct stream *stream_of(void *handle) {
  if ((uintptr_t)handle > 2) return handle;
  int unit = current_unit();
  standard[unit].unit = unit;
  return &standard[unit];
}

struct stream *new_stream(unsigned flags, int priority) {
  struct stream *made = calloc(1, sizeof *made);
  *made = (struct stream){current_unit(), priority, !(flags & 1), 0};
  return made;
}

static double later(double a, double b) { return a > b ? a : b; }

// The host computed on its own, since it last asked for anything.
static double host_worked(void) {
  static __thread double before;
  struct timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  double all = used.tv_sec * 1e9 + used.tv_nsec, since = before ? all - before : 0;
  before = all;
  return HOST * since;
}

void host_copied(void) { host_worked(); }

static void trace(const struct stream *stream, double start, double ns, const char *name) {
  static FILE *file;
  static int asked;
  if (!asked++ && getenv("AUTOTUNE_EMULATED_TRACE")) file = fopen(getenv("AUTOTUNE_EMULATED_TRACE"), "a");
  if (file) fprintf(file, "%d %p %.0f %.0f %s\n", getpid(), (void *)stream, start, ns, name);
}

void enqueue(void *handle, double ns, const char *name) {
  struct stream *stream = stream_of(handle);
  int legacy = stream == &standard[stream->unit];
  pthread_mutex_lock(&guard);
  now += LAUNCH + host_worked();
  double start = later(stream->ready, now);
  if (legacy) start = later(start, blocking[stream->unit]);
  if (stream->blocking) start = later(start, standard[stream->unit].ready);
  stream->ready = start + ns;
  latest[stream->unit] = later(latest[stream->unit], stream->ready);
  if (stream->blocking) blocking[stream->unit] = later(blocking[stream->unit], stream->ready);
  trace(stream, start, ns, name);
  pthread_mutex_unlock(&guard);
}

double stamp(void *handle) { return later(stream_of(handle)->ready, now); }

void follow(void *handle, double until) {
  struct stream *stream = stream_of(handle);
  pthread_mutex_lock(&guard);
  stream->ready = later(stream->ready, until);
  pthread_mutex_unlock(&guard);
}

void host_waits(double until) {
  pthread_mutex_lock(&guard);
  now = later(now + host_worked(), until);
  pthread_mutex_unlock(&guard);
}

void host_waits_for(int unit) { host_waits(latest[unit]); }
