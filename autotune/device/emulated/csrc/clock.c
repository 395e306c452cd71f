#include "clock.h"
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double LAUNCH = 6000;  // of the host, for one kernel or copy
// A server's host is slower than this one by this factor, in Python and in an optimizer on offloaded
// state. Two were measured: 1.4 and 2.5 (results/real.md).
static const double HOST = 1.5;

static const double WATCHDOG = 1e8;  // between two looks of torch's, kWatchdogThreadSleepMillis
static const double POLL = 1e6;      // between two looks of a program that waits

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct stream standard[MOST_UNITS];
static int captures;  // that have not ended
static long launches;  // of all streams
static volatile long looks;  // of torch's watchdog of NCCL
static struct event ends = {.earlier = &ends, .later = &ends};
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

static double used(clockid_t of) {
  struct timespec time;
  clock_gettime(of, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

// The host computed on its own since its last call.
static double host_worked(void) {
  static __thread double before;
  double all = used(CLOCK_THREAD_CPUTIME_ID), since = before ? all - before : 0;
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

// Torch holds the tensors of a collective until its program waits for the end, or its watchdog has
// seen it. That looks while the host waits, which takes no time here.
static void wait_until(double until) {
  static double last;
  long seen = looks;
  now = later(now, until);
  double look = (long)(now / WATCHDOG) * WATCHDOG;
  if (look == last || !looks || ends.later == &ends || ends.later->ns > look) return;
  last = look;
  pthread_mutex_unlock(&guard);
  for (int i = 0; i < 300 && looks == seen; i++) usleep(1000);
  pthread_mutex_lock(&guard);
  if (looks == seen) looks = 0;
}

// The next place in a stream's queue, where the time belongs at which it gets free. The host waits
// for one.
static double *place_in(struct stream *stream) {
  if (!stream->queue) stream->queue = calloc(QUEUE, sizeof *stream->queue);
  double *place = &stream->queue[stream->queued++ % QUEUE];
  wait_until(*place);
  return place;
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
  launches++;
  now += LAUNCH + host_worked();
  double *place = place_in(stream);
  double start = later(stream->ready, now);
  if (legacy) start = later(start, blocking[stream->unit]);
  if (stream->blocking) start = later(start, standard[stream->unit].ready);
  *place = start;
  stream->ready = start + ns;
  latest[stream->unit] = later(latest[stream->unit], stream->ready);
  if (stream->blocking) blocking[stream->unit] = later(blocking[stream->unit], stream->ready);
  trace(stream, start, ns, name);
  pthread_mutex_unlock(&guard);
}

static double stamp(void *handle, struct graph **graph) {
  struct stream *stream = stream_of(handle);
  pthread_mutex_lock(&guard);
  *graph = stream->graph;
  double *place = stream->graph ? &stream->captured : place_in(stream);
  if (!stream->graph) *place = later(stream->ready, now);
  double until = *place;
  pthread_mutex_unlock(&guard);
  return until;
}

static void join(struct stream *stream, struct graph *graph) {
  stream->graph = graph;
  stream->captured = 0;
  stream->next = graph->first->next;
  graph->first->next = stream;
}

static void drop(struct event *event) {
  if (!event->later) return;
  event->earlier->later = event->later;
  event->later->earlier = event->earlier;
  event->later = NULL;
}

void forget(struct event *event) {
  pthread_mutex_lock(&guard);
  drop(event);
  pthread_mutex_unlock(&guard);
}

void record(struct event *event, void *handle) {
  struct stream *stream = stream_of(handle);
  event->ns = stamp(handle, &event->graph);
  event->recorded = !event->graph;
  pthread_mutex_lock(&guard);
  drop(event);
  if (stream->collective && event->recorded) {
    event->earlier = ends.earlier;
    event->later = &ends;
    event->earlier->later = ends.earlier = event;
  }
  stream->collective = 0;
  pthread_mutex_unlock(&guard);
}

void follow(void *handle, struct event *event) {
  struct stream *stream = stream_of(handle);
  double until = event->ns;
  struct graph *graph = event->graph;
  pthread_mutex_lock(&guard);
  drop(event);
  if (graph && graph->first && !stream->graph) join(stream, graph);
  if (stream->graph && stream->graph == graph)
    stream->captured = later(stream->captured, until);
  else if (!graph && !stream->graph) {
    *place_in(stream) = stream->ready;
    stream->ready = later(stream->ready, until);
  }
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
  now += host_worked();
  wait_until(until);
  pthread_mutex_unlock(&guard);
}

// A step takes longer here than on a card, so torch's watchdog looks by the card's clock, too. Where
// that stands still for some seconds, all is done.
int is_done(struct event *event) {
  static __thread double last = -1, process;
  static __thread long asked;
  static __thread time_t since;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  int watchdog = !strcmp(name, "pt_nccl_watchdg");
  pthread_mutex_lock(&guard);
  double by;
  if (watchdog) {
    double all = used(CLOCK_PROCESS_CPUTIME_ID);
    if (last != now) since = time(NULL), process = all;
    last = now;
    looks++;
    by = (long)((now + HOST * (all - process)) / WATCHDOG) * WATCHDOG;
    if (time(NULL) > since + 5) by = event->ns;
  } else {
    now += host_worked();
    if (event->ns > now && asked == launches) now += POLL;
    asked = launches;
    by = now;
  }
  if (event->ns <= by) drop(event);
  pthread_mutex_unlock(&guard);
  return event->ns <= by;
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
