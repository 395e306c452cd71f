// The time of the cards: when each stream finishes its work, in nanoseconds.
//
// Work of a stream begins when the host has started it and the stream's earlier work is done. The
// host's own time runs with its calls and waits, also for a place in a stream's full queue. Work of
// two streams overlaps as if each had the card for itself.
#ifndef CLOCK_H
#define CLOCK_H
#include "state.h"

// Places of a stream's queue: of launches, events, and waits for events. About 1000 were measured:
// forums.developer.nvidia.com/t/68937.
enum { QUEUE = 1024 };

struct graph {
  unsigned long long id;
  size_t nodes;
  double ns;  // its duration, from its first work's start
  struct stream *first;
};

struct stream {
  int unit, priority, blocking;  // blocking: waits for the legacy default stream, and it for this
  double ready;
  double *queue;  // when each place gets free: work and events of one that has not begun
  unsigned long queued;
  int collective;       // runs, and no event has its end
  struct graph *graph;  // captures its work; NULL if it runs
  double captured;      // end of captured work, from the graph's start
  struct stream *next;  // among those in the same graph
};

PUBLIC struct stream *stream_of(void *handle);  // of CUDA's default streams, too
PUBLIC struct stream *new_stream(unsigned flags, int priority);

// Work that takes the card `ns`. `name` is for the file in AUTOTUNE_EMULATED_TRACE.
PUBLIC void enqueue(void *stream, double ns, const char *name);

struct event {
  int unit, recorded;
  double ns;                       // all earlier work is done
  struct graph *graph;             // where a captured stream recorded it, from whose start `ns` is
  struct event *earlier, *later;   // among ends of collectives that nobody waits for, or has seen
};

PUBLIC void record(struct event *event, void *stream);
PUBLIC void forget(struct event *event);
PUBLIC void follow(void *stream, struct event *event);  // later work waits
PUBLIC int is_done(struct event *event);                // as this thread sees it
// Work of this stream, and of those that wait for it, is captured from now on.
PUBLIC void capture(void *stream);
PUBLIC struct graph *end_capture(void *stream);  // NULL if the stream did not begin it
PUBLIC void host_waits(double until);
// For one stream, or all of a card. -1, and no wait, while work is captured.
PUBLIC int host_waits_on(void *stream);
PUBLIC int host_waits_for(int unit);
PUBLIC void host_copied(void);                    // the host's time since its last call was no work

// The cost of work, by its kind (costs.c).
enum type { FP32, TF32, HALF, FP8, FP64 };
PUBLIC enum type type_of(int cuda_type, enum type single);  // of a cudaDataType
PUBLIC void run_product(void *stream, long m, long n, long k, long batch, enum type type);
PUBLIC void run_copy(void *stream, void *to, const void *from, uint64_t size, int waits);
PUBLIC void run_fill(void *stream, uint64_t size);
// `bytes` go over each rank's link, as NCCL's tests count the bandwidth of the bus.
PUBLIC void run_collective(void *stream, int ranks, double bytes, const char *name);

// A kernel of the runtime by its host function, as nvcc registers it; or a kernel of a module.
PUBLIC void register_kernel(const void *host, const char *name, const void *binaries);
PUBLIC const void *binaries_of(const void *host);
PUBLIC void run_registered(const void *host, const unsigned *grid, const unsigned *block,
                           void **arguments, void *stream);
enum { MOST_PARAMETERS = 64 };
struct kernel {
  char *name;
  int parameters, thread_bytes;
  unsigned char size[MOST_PARAMETERS];  // of each parameter
};
PUBLIC size_t image_size(const void *image);
PUBLIC struct kernel *kernel_of_image(const void *image, const char *name);
PUBLIC double module_bytes(const struct kernel *kernel, double threads, void **arguments);
PUBLIC void run_kernel(const struct kernel *kernel, double threads, void **arguments, void *stream);
#endif
