// The cost of work on a card, in nanoseconds, from shapes and names. `rates.py` has the rates of
// large work, with their sources.
#include "clock.h"
#include "memory.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>

static const double START = 2000;   // of any kernel: from the end of the one before it to its work
static const double COPY = 2500;    // of a copy between host and card
static const double TILE = 600;     // of a block of a product that is not multiplying
static const double RANK = 2500;    // of a collective, for each rank
static const double PAGEABLE = 2.5; // times as slow as pinned memory
// Elements of a multiprocessor in a nanosecond, if a kernel computes each one's place: among
// strides, among joined tensors, and if it converts each array by a type of its own.
static const double CHUNKS = 1.18;  // a list's chunks are slower than one array by so much
static const double PLACES = 2.5, JOINED = 1.9, CONVERTED = 1.3;
// Rows of keys at which attention reaches half its rate.
static const double SHORT = 100, SHORT_CAUSAL = 500;
// Other attention's rates, as shares of FlashAttention-2's. cuDNN's is that on Hopper.
static const double EFFICIENT_HALF = 0.6, EFFICIENT_FP32 = 0.25, CUDNN = 1.5;

static const struct unit *unit_of(void *stream) { return &shared->unit[stream_of(stream)->unit]; }
static double more(double a, double b) { return a > b ? a : b; }
static int is_card(struct block block) { return block.kind != FREE && block.kind != PINNED; }
static double up(double a, double b) { return (double)(long)((a + b - 1) / b); }

// Bytes through the card's memory. Data that fit its cache stay there half the time.
static double moved(const struct unit *unit, double bytes) { return bytes / unit->memory_rate * 1e9; }

void run_copy(void *stream, void *to, const void *from, uint64_t size, int waits) {
  const struct unit *unit = unit_of(stream);
  struct block target = block_of(to), source = block_of(from);
  int on_card = is_card(target), from_card = is_card(source);
  double ns;
  if (on_card && from_card)
    ns = target.unit == source.unit ? moved(unit, 2.0 * size) : size / unit->link_rate * 1e9;
  else {
    int pageable = (on_card ? source : target).kind == FREE;
    ns = COPY + size / unit->host_rate * 1e9 * (pageable ? PAGEABLE : 1);
    waits |= pageable && !on_card;
  }
  enqueue(stream, START + ns, "copy");
  if (waits) host_waits_on(stream);
  copy(to, from, size);
  host_copied();
}

void run_fill(void *stream, uint64_t size) {
  enqueue(stream, START + moved(unit_of(stream), size), "fill");
}

// ------------------------------------------------------------------------------------ products

enum type type_of(int type, enum type single) {
  switch (type) {
    case 0: return single;  // CUDA_R_32F
    case 1: return FP64;
    case 28: case 29: return FP8;  // CUDA_R_8F_E4M3, CUDA_R_8F_E5M2
    default: return HALF;
  }
}

static double rate_of(const struct unit *unit, enum type type) {
  switch (type) {
    case FP32: return unit->fp32_rate;
    case TF32: return unit->half_rate / 2;
    case FP8: return unit->half_rate * 2;
    case FP64: return unit->fp32_rate / 2;
    default: return unit->half_rate;
  }
}

// The best of a library's tiles, by a tile's speed and the waves of all tiles on the multiprocessors.
// With few tiles, k is split into parts that are added afterwards.
void run_product(void *stream, long m, long n, long k, long batch, enum type type) {
  enum { OTHERS = 8 };  // than Hopper's and Blackwell's own, which stand behind them
  static const struct { int m, n; double speed; } tiles[] = {
    {256, 128, 1}, {128, 256, 1}, {128, 128, 0.93}, {128, 64, 0.8}, {64, 128, 0.8}, {64, 64, 0.62},
    {32, 64, 0.4}, {64, 32, 0.4},
    {192, 192, 1}, {320, 128, 1}, {192, 128, 1}, {128, 192, 1}, {160, 128, 0.97}, {128, 160, 0.97}};
  const struct unit *unit = unit_of(stream);
  double size = type == FP64 ? 8 : type <= TF32 ? 4 : type == FP8 ? 1 : 2;
  double each = rate_of(unit, type) / unit->sms / 1e9, best = 1e30;
  int known = unit->major == 9 || unit->major == 10 ? sizeof tiles / sizeof *tiles : OTHERS;
  for (int i = 0; i < known; i++)
    for (int parts = 1; parts <= 32 && parts * 256 <= k + 255; parts++) {
      double count = up(m, tiles[i].m) * up(n, tiles[i].n) * batch * parts;
      double tile = 2.0 * tiles[i].m * tiles[i].n * k / parts / each / tiles[i].speed + TILE;
      // Waves of a grid that is many times the card overlap.
      double waves = count < 4 * unit->sms ? up(count, unit->sms) : count / unit->sms + 0.4;
      double ns = waves * tile + (parts > 1 ? moved(unit, 8.0 * m * n * batch * parts) : 0);
      if (ns < best) best = ns;
    }
  double bytes = moved(unit, size * batch * ((double)m * k + (double)k * n + (double)m * n));
  double both = best > bytes ? best + 0.25 * bytes * bytes / best : bytes + 0.25 * best * best / bytes;
  enqueue(stream, START + both, "product");
}

void run_collective(void *stream, int ranks, double bytes, const char *name) {
  const struct unit *unit = unit_of(stream);
  double rate = ranks > shared->machine ? unit->net_rate : unit->link_rate;
  enqueue(stream, ranks > 1 ? 4 * RANK + RANK * ranks + bytes / rate * 1e9 : START, name);
  stream_of(stream)->collective = 1;
}

void run_kernel(const struct kernel *kernel, double threads, void **arguments, void *stream) {
  double bytes = module_bytes(kernel, threads, arguments);
  enqueue(stream, START + moved(unit_of(stream), bytes), kernel->name);
}

// ------------------------------------------------------------- kernels of the runtime, by names

enum kernel_kind { UNKNOWN, ELEMENTS, JOIN, LISTS, REDUCTION, ROWS, WARP_ROWS, MATRIX, MANY, FLASH, EFFICIENT, ROW_BLOCKS };

struct registered {
  const void *host;
  const char *name;
  char known, kind, backward, causal, narrow;
  char arrays;           // of elements: how many there are, the result first; 0 if that is not known
  short head, rows;      // of attention: channels of a head, and of a block's rows of the grid's x
  short place;           // of the parameter that has the row's length
  float bytes;           // of an element in all its arrays, or of one
  float places;          // elements of a multiprocessor in a nanosecond at most; 0 where memory limits
  const void *binaries;  // that it is one of
};

static struct registered *table;
static size_t table_size, table_used;

static struct registered *entry(const void *host) {
  size_t i = ((uintptr_t)host >> 4) * 0x9e3779b97f4a7c15ull >> 20 & (table_size - 1);
  while (table[i].host && table[i].host != host) i = (i + 1) & (table_size - 1);
  return &table[i];
}

void register_kernel(const void *host, const char *name, const void *binaries) {
  if (2 * table_used >= table_size) {
    struct registered *before = table;
    size_t count = table_size;
    table_size = count ? 2 * count : 1 << 15;
    table = calloc(table_size, sizeof *table);
    for (size_t i = 0; i < count; i++)
      if (before[i].host) *entry(before[i].host) = before[i];
    free(before);
  }
  struct registered *it = entry(host);
  table_used += !it->host;
  *it = (struct registered){host, name, .binaries = binaries};
}

const void *binaries_of(const void *host) { return table_size ? entry(host)->binaries : NULL; }

static int number_after(const char *name, const char *text) {
  const char *at = strstr(name, text);
  return at ? atoi(at + strlen(text)) : 0;
}

// Template arguments in mangled names: Lb1E is true, Li64E is 64.
static int is_set(const char *at, int nth) {
  while (at && (at = strstr(at, "Lb")) && nth--) at += 2;
  return at && at[2] == '1';
}

static double element_bytes(const char *name) {
  double size = strstr(name, "Float8") ? 1 : strstr(name, "BFloat16") || strstr(name, "4Half") || strstr(name, "bfloat16_t") || strstr(name, "half_t") ? 2 : 4;
  if (strstr(name, "WithCast") || strstr(name, "16_copy_kernel")) return 3;  // one of 2 and one of 4
  return size;
}

static void classify(struct registered *it) {
  const char *name = it->name, *at;
  double size = element_bytes(name);
  it->known = 1;
  it->bytes = size;
  if ((at = strstr(name, "flash_fwd_kernel")) || (at = strstr(name, "flash_bwd_dq_dk_dv"))) {
    const char *traits = strstr(at, "kernel_traitsILi");
    it->kind = FLASH;
    it->backward = !strstr(name, "flash_fwd");
    it->head = number_after(at, "kernel_traitsILi");
    // Of a block: rows of queries forward, of keys backward.
    traits = traits ? strstr(traits + 16, "Li") : NULL;
    if (traits && it->backward) traits = strstr(traits + 2, "Li");
    it->rows = traits ? atoi(traits + 2) : 128;
    // After the traits' own flags: dropout, causal.
    at = traits ? strstr(traits, "EELb") : NULL;
    it->causal = is_set(at, 1);
  } else if (strstr(name, "fmha_cutlass")) {
    it->kind = EFFICIENT;
    it->backward = strstr(name, "fmha_cutlassB") != NULL;
  } else if (strstr(name, "multi_tensor_apply")) it->kind = LISTS;
  else if (strstr(name, "reduce_kernel")) it->kind = REDUCTION;
  else if (strstr(name, "elementwise_kernel")) {
    at = strstr(name, "ArrayIPcLi");
    int arrays = at ? atoi(at + 10) : number_after(name, "arrayIPcLm");
    if (!arrays) arrays = strstr(name, "UnaryFunctor") || strstr(name, "copy") ? 2 : strstr(name, "BinaryFunctor") || strstr(name, "CUDAFunctor") ? 3 : 2;
    it->kind = ELEMENTS;
    it->bytes = size * arrays;
    int vectors = strstr(name, "vectorized_elementwise") != NULL;
    if (vectors || strstr(name, "unrolled_elementwise")) it->arrays = arrays;
    if (!vectors) it->places = strstr(name, "gpu_kernel_implI") ? CONVERTED : PLACES;
  } else if (strstr(name, "CatArrayBatchedCopy")) {
    const char *dimensions = strstr(name, "jLi");
    it->kind = JOIN;
    it->narrow = dimensions != NULL;
    it->rows = dimensions ? atoi(dimensions + 3) : number_after(name, "lLi");
    size = number_after(name, "OpaqueTypeILj");
    it->bytes = 2 * (size ? size : 4);
    if (strstr(name, "_vectorized")) it->bytes = 2 * 16;  // its elements are vectors of 16 bytes
    else it->places = JOINED;
  } else if (strstr(name, "vectorized_layer_norm_kernel")) {
    it->kind = ROWS;
    it->bytes = 2.3 * size;
  } else if (strstr(name, "layer_norm_grad_input")) {
    it->kind = ROWS;
    it->place = 6;
    it->bytes = 3 * size;
  } else if (strstr(name, "GammaBetaBackward")) {
    it->kind = MATRIX;
    it->bytes = 3.5 * size;
  } else if (strstr(name, "distribution_elementwise_grid_stride")) {
    it->kind = MANY;
    it->bytes = size;
  } else if (strstr(name, "fused_dropout_kernel")) {
    it->kind = MANY;
    it->narrow = strstr(name, "jLi") != NULL;  // its index is an unsigned int
    it->place = 3;
    it->bytes = 2 * size + 1;
  } else if (strstr(name, "cunn_SoftMax")) {
    it->backward = strstr(name, "Backward") != NULL;
    it->kind = ROWS;
    it->place = 2 + it->backward;
    it->bytes = (3.2 + it->backward) * size;
  } else if (strstr(name, "softmax_warp_")) {
    it->backward = strstr(name, "backward") != NULL;
    it->kind = WARP_ROWS;
    it->place = 2 + it->backward;
    it->bytes = (2 + it->backward) * size;
  } else if (strstr(name, "flash_bwd_")) {
    it->kind = ROW_BLOCKS;
    it->head = number_after(name, "kernel_traitsILi");
  }
}

// Elements of all tensors of a launch of multi_tensor_apply: its first parameter lists them, by
// torch's MultiTensorApply.cuh in builds for CUDA 13 and for older ones. 0 if it is not that.
static double listed(const char *name, const char *list, unsigned blocks) {
  static const int most[2][2][5] = {{{770, 448, 336, 252, 210}, {672, 448, 336, 252, 210}},
                                    {{110, 64, 48, 36, 30}, {96, 64, 48, 36, 30}}};
  int depth = number_after(name, "MetadataILi"), scalars = 0, one = 0;
  const char *at = strstr(name, "TensorListScalarListMetadataI");
  if (at) {
    depth = number_after(at, "Li");
    one = at[29] == 'd' ? 8 : 4;
    scalars = 1;
  } else if (strstr(name, "FusedOptimizerTensorListMetadata")) one = 8;
  if (depth < 1 || depth > 5) return 0;
  // The smaller one first: behind it may be no memory.
  for (int small = 1; small >= (CUDART_VERSION < 13000); small--) {
    int tensors = most[small][scalars][depth - 1], places = small ? 320 : 2240;
    const int64_t *sizes = (const int64_t *)list + (size_t)depth * tensors;
    const char *of = (const char *)(sizes + tensors) + (size_t)one * tensors;
    const int32_t *chunk = (const int32_t *)(of + (small ? 1 : 2) * places);
    double all = 0;
    unsigned i = 0;
    for (; i < blocks && i < places; i++) {
      unsigned tensor = small ? ((unsigned char *)of)[i] : ((uint16_t *)of)[i];
      if (tensor >= tensors || sizes[tensor] <= 0 || chunk[i] < 0) break;
      int64_t left = sizes[tensor] - (int64_t)chunk[i] * 65536;
      if (left <= 0 || left > 1ll << 40) break;
      all += left < 65536 ? left : 65536;
    }
    if (i == blocks) return all;
  }
  return 0;
}

// Of an element: functors name how many tensors they take, read and write.
static double list_bytes(const char *name) {
  int depth = number_after(name, "MetadataILi");
  const char *at = strstr(name, "TensorListScalarListMetadataI");
  if (at) depth = number_after(at, "Li");
  double size = strstr(name, "CopyFunctor") && strstr(name, "16") ? 3 : element_bytes(name);
  if (strstr(name, "FusedOptimizer")) return size * (2 * depth - 1);
  // A functor's template: type, depth, how many it reads, where it writes.
  at = strstr(name, "Functor");
  at = at ? strstr(at, "Li") : NULL;
  at = at ? strstr(at + 2, "Li") : NULL;
  return size * ((at ? atoi(at + 2) : depth) + !strstr(name, "Norm"));
}

// Computed numbers are zero, whatever their memory held before. torch's tensors begin so.
static void forget_number(char *at) {
  if ((uintptr_t)at % 512 == 0 && is_card(block_of(at))) memset(at, 0, 8);
}

// Of isfinite(), which ends with a product of truth values: all numbers are finite.
static void forget_element(const char *name, char *const *arrays, int count) {
  for (int i = 1; i < count; i++)
    if (arrays[i] == arrays[0]) return;  // in place
  if (count) forget_number(arrays[0]);
  if (count && strstr(name, "MulFunctorIb") && is_card(block_of(arrays[0]))) *arrays[0] = 1;
}

// Elements of the joined tensor: its sizes are 32 or 64 bits wide.
static double joined(const struct registered *it, const void *sizes) {
  double all = 1;
  for (int i = 0; i < it->rows && i < 4; i++)
    all *= it->narrow ? (double)((const uint32_t *)sizes)[i] : (double)((const int64_t *)sizes)[i];
  return all;
}

// Bytes that a reduction reads: its parameter has its configuration somewhere, by Reduce.cuh.
static double reduced(const struct registered *it, const char *reduction, const unsigned *block) {
  for (int at = 0; at < 128; at += 4) {
    const int *config = (const int *)(reduction + at);
    int size = config[0];
    if (config[11] == block[0] && config[12] == block[1] && config[13] == block[0] * block[1] &&
        size > 0 && size <= 16 && config[1] > 0 && config[2] > 0) {
      // After it: OffsetCalculators for one array and two, what is read, where it is written.
      char *const *arrays = (char *const *)(((uintptr_t)(config + 16) + 404 + 504 + 7) & ~7ul);
      if (config[2] == 1 && is_card(block_of(arrays[0]))) {
        forget_number(arrays[1]);
        // Of all(): a mask leaves nothing out, and all numbers are finite.
        if (strstr(it->name, "and_kernel") && is_card(block_of(arrays[1]))) *arrays[1] = 1;
      }
      return (double)size * config[1] * config[2];
    }
  }
  return 0;
}

// Whether torch would use cuDNN instead of its own FlashAttention-2: on Hopper, unless a program
// forbids it.
static int is_for_cudnn(const struct unit *unit, const char *name) {
  static _Bool (*enabled)(void *);
  static void *(*context)(void);
  static int asked;
  if (unit->major != 9 || !strstr(name, "pytorch_flash")) return 0;
  if (!asked++) {
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (torch) {
      enabled = (_Bool (*)(void *))dlsym(torch, "_ZNK2at7Context19userEnabledCuDNNSDPEv");
      context = (void *(*)(void))dlsym(torch, "_ZN2at13globalContextEv");
    }
  }
  return !enabled || !context || enabled(context());
}

static void run_attention(struct registered *it, const unsigned *grid, void **arguments, void *stream) {
  const struct unit *unit = unit_of(stream);
  const int *field = arguments[0];
  double queries = 0, keys = 0, head = it->head, size = it->bytes;
  int causal = it->causal, heads = grid[1] * grid[2];
  for (int i = 16; i < 160 && !queries; i++) {
    const int *at = field + i;
    if (it->kind == FLASH) {  // batch, queries, keys, new keys, channels of a head
      int rows = at[1 + it->backward];
      if (at[0] != grid[1] || at[4] <= 0 || at[4] > it->head || up(rows, it->rows) != grid[0]) continue;
      queries = at[1];
      keys = at[2];
      head = at[4];
    } else {  // channels of a head and of its values, queries, keys, another number, kind of mask
      if (at[0] < 8 || at[0] > 512 || at[0] % 4 || at[1] != at[0] || at[2] <= 0 || at[3] <= 0 || at[2] > 1 << 22 || at[3] > 1 << 22) continue;
      head = at[0];
      queries = at[2];
      keys = at[3];
      causal = *(const unsigned char *)(at + 5) != 0;
    }
  }
  if (!queries) queries = keys = (double)grid[0] * (it->rows ? it->rows : 64);
  double flops = 4 * heads * queries * keys * head * (causal ? 0.5 : 1) * (it->backward ? 2.5 : 1);
  double rate = it->backward ? unit->attention_backward_rate : unit->attention_rate;
  if (is_for_cudnn(unit, it->name)) rate *= CUDNN;
  if (it->kind == EFFICIENT) rate *= size > 2 ? EFFICIENT_FP32 : EFFICIENT_HALF;
  // Short rows are slower, the more so if blocks of a causal mask differ.
  rate *= keys / (keys + (causal ? SHORT_CAUSAL : SHORT));
  double filled = grid[0] * (double)heads / unit->sms;
  if (filled < 1) rate *= filled;
  double bytes = size * heads * head * (queries + keys) * (it->backward ? 4 : 2);
  enqueue(stream, START + more(flops / rate * 1e9, moved(unit, bytes)), it->name);
}

void run_registered(const void *host, const unsigned *grid, const unsigned *block, void **arguments,
                    void *stream) {
  static struct registered nobody = {"", "unknown", 1};
  struct registered *it = table ? entry(host) : &nobody;
  if (!it->host) it = &nobody;
  if (!it->known) classify(it);
  double blocks = (double)grid[0] * grid[1] * grid[2], threads = (double)block[0] * block[1] * block[2];
  double bytes = 0;
  switch (it->kind) {
    case FLASH:
    case EFFICIENT: run_attention(it, grid, arguments, stream); return;
    case ELEMENTS:
      bytes = it->bytes * *(int *)arguments[0];
      if (*(int *)arguments[0] == 1) forget_element(it->name, arguments[2], it->arrays);
      break;
    case JOIN: bytes = it->bytes * joined(it, arguments[2]); break;
    case LISTS: bytes = CHUNKS * list_bytes(it->name) * listed(it->name, arguments[0], grid[0]); break;
    case REDUCTION: bytes = reduced(it, arguments[0], block); break;
    case ROWS: bytes = it->bytes * blocks * *(int *)arguments[it->place]; break;
    case MATRIX: bytes = it->bytes * *(int64_t *)arguments[0] * *(int64_t *)arguments[1]; break;
    case MANY: bytes = it->bytes * (it->narrow ? *(uint32_t *)arguments[it->place] : *(int64_t *)arguments[it->place]); break;
    case WARP_ROWS: bytes = it->bytes * *(int *)arguments[it->place] * (double)*(int *)arguments[it->place + 2]; break;
    case ROW_BLOCKS: bytes = blocks * 128 * it->head * 6; break;
  }
  // Elsewhere each thread moves so much.
  if (bytes <= 0) bytes = blocks * threads * 32;
  const struct unit *unit = unit_of(stream);
  double placed = it->places ? bytes / it->bytes / it->places / unit->sms : 0;
  enqueue(stream, START + more(moved(unit, bytes), placed), it->name);
}
