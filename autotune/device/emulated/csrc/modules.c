// Kernels of modules, such as Triton's: parameters and memory by their images.
#include "clock.h"
#include "memory.h"
#include <elf.h>

size_t image_size(const void *image) {
  const Elf64_Ehdr *head = image;
  if (memcmp(image, ELFMAG, SELFMAG)) return strlen(image) + 1;
  return head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
}

static const Elf64_Shdr *section(const char *image, const char *prefix, const char *name) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *all = (const Elf64_Shdr *)(image + head->e_shoff);
  const char *names = image + all[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++) {
    const char *its = names + all[i].sh_name;
    size_t length = strlen(prefix);
    if (!strncmp(its, prefix, length) && !strcmp(its + length, name)) return &all[i];
  }
  return NULL;
}

// Parameters stand in .nv.info as EIATTR_KPARAM_INFO: index, ordinal, offset, and flags with the size.
static void read_parameters(struct kernel *kernel, const unsigned char *at, const unsigned char *end) {
  while (at + 4 <= end) {
    int size = at[0] == 4 ? *(uint16_t *)(at + 2) : 0;
    if (at[0] == 4 && at[1] == 0x17 && size == 12) {
      int ordinal = *(uint16_t *)(at + 8), bytes = *(uint32_t *)(at + 12) >> 18;
      if (ordinal < MOST_PARAMETERS) kernel->size[ordinal] = bytes;
      if (ordinal >= kernel->parameters) kernel->parameters = ordinal + 1;
    }
    at += 4 + size;
  }
}

// Bytes that a thread loads and stores where nothing loops: LDG and STG name their width.
static void read_code(struct kernel *kernel, const uint64_t *at, const uint64_t *end) {
  static const char width[] = {1, 1, 2, 2, 4, 8, 16, 0};
  for (const uint64_t *each = at; each + 2 <= end; each += 2) {
    int operation = each[0] & 0xfff;
    if (operation == 0x981 || operation == 0x986) kernel->thread_bytes += width[each[1] >> 9 & 7];
  }
}

struct kernel *kernel_of_image(const void *image, const char *name) {
  struct kernel *kernel = calloc(1, sizeof *kernel);
  kernel->name = strdup(name);
  if (!image || memcmp(image, ELFMAG, SELFMAG)) return kernel;
  const Elf64_Shdr *info = section(image, ".nv.info.", name), *code = section(image, ".text.", name);
  const char *start = image;
  if (info) read_parameters(kernel, start + info->sh_offset, start + info->sh_offset + info->sh_size);
  if (code) read_code(kernel, (void *)(start + code->sh_offset), (void *)(start + code->sh_offset + code->sh_size));
  return kernel;
}

// Inductor's kernels get tensors, then the numbers of elements along their axes, then no further
// tensor. A tensor in the allocator's small segments is not a full one.
double module_bytes(const struct kernel *kernel, double threads, void **arguments) {
  double elements = 1;
  int tensors = 0, full = 0;
  if (strncmp(kernel->name, "triton_", 7)) return threads * (kernel->thread_bytes ? kernel->thread_bytes : 16);
  for (int i = 0; i < kernel->parameters; i++) {
    if (kernel->size[i] == 4) elements *= *(int *)arguments[i];
    if (kernel->size[i] != 8) continue;
    struct block block = block_of(*(void **)arguments[i]);
    tensors += block.kind != FREE;
    full += block.size > PAGE;
  }
  if (strncmp(kernel->name, "triton_red", 10) && kernel->thread_bytes && tensors)
    return threads * kernel->thread_bytes * (full ? full : 1) / tensors;
  return elements * 2 * (full ? full : 1);
}
