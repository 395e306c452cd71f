#include "clock.h"
#include <pthread.h>
#include <time.h>

static const double LAUNCH = 6000;  // of the host, for one kernel or copy
// A server's host is slower than this one by this factor, in Python and in an optimizer on offloaded
// state. Two were measured: 1.4 and 2.5 (results/real.md).
static const double HOST = 1.5;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct stream standard[MOST_UNITS];
static int captures;  // that have not ended
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

// The host computed on its own since its last call.
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
  if (stream->graph) {
    now += host_worked();
    stream->captured += ns;
    stream->graph->ns = later(stream->graph->ns, stream->captured);
    stream->graph->nodes++;
    pthread_mutex_unlock(&guard);
    return;
  }
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

double stamp(void *handle, struct graph **graph) {
  struct stream *stream = stream_of(handle);
  *graph = stream->graph;
  return stream->graph ? stream->captured : later(stream->ready, now);
}

static void join(struct stream *stream, struct graph *graph) {
  stream->graph = graph;
  stream->captured = 0;
  stream->next = graph->first->next;
  graph->first->next = stream;
}

void follow(void *handle, double until, struct graph *graph) {
  struct stream *stream = stream_of(handle);
  pthread_mutex_lock(&guard);
  if (graph && graph->first && !stream->graph) join(stream, graph);
  if (stream->graph && stream->graph == graph)
    stream->captured = later(stream->captured, until);
  else if (!graph && !stream->graph)
    stream->ready = later(stream->ready, until);
  pthread_mutex_unlock(&guard);
}

void capture(void *handle) {
  static unsigned long long ids;
  struct stream *stream = stream_of(handle);
  struct graph *made = calloc(1, sizeof *made);
  pthread_mutex_lock(&guard);
  captures++;
  *made = (struct graph){.id = ++ids, .first = stream};
  stream->graph = made;
  stream->captured = 0;
  stream->next = NULL;
  pthread_mutex_unlock(&guard);
}

// A graph is kept: an event may know it.
struct graph *end_capture(void *handle) {
  struct stream *stream = stream_of(handle);
  struct graph *graph = stream->graph;
  if (!graph || graph->first != stream) return NULL;
  pthread_mutex_lock(&guard);
  for (struct stream *each = stream; each; each = each->next) each->graph = NULL;
  graph->first = NULL;
  captures--;
  pthread_mutex_unlock(&guard);
  return graph;
}

void host_waits(double until) {
  pthread_mutex_lock(&guard);
  now = later(now + host_worked(), until);
  pthread_mutex_unlock(&guard);
}

int host_waits_on(void *stream) {
  struct graph *graph;
  double until = stamp(stream, &graph);
  if (graph) return -1;
  host_waits(until);
  return 0;
}

int host_waits_for(int unit) {
  if (captures) return -1;
  host_waits(latest[unit]);
  return 0;
}
