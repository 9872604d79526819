// Memory of the devices: addresses of the host that read as zeros until something is written, and a count of bytes.
#include <sys/mman.h>

#include <atomic>
#include <map>

#include "sim.h"

namespace sim {
struct Range {
  size_t size;
  int device;
  Where where;
  int64_t charged;
};
static std::map<uintptr_t, Range> ranges;
struct Use {
  int64_t bytes = 0;
  bool context = false;
};
static Use uses[kDevices];
constexpr size_t kPage = 4096, kGranule = 2 << 20;
static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void count(int device, int64_t bytes) {
  uses[device].bytes += bytes;
  if (auto* mine = my_process()) mine->used[physical(device)] = uses[device].bytes;
}
void make_context(int device) {
  Lock lock(mutex);
  if (uses[device].context) return;
  uses[device].context = true;
  count(device, (int64_t)(knob("CONTEXT_MB", 480) * (1 << 20)));
}
bool charge(int device, int64_t bytes) {
  Lock lock(mutex);
  make_context(device);
  if (bytes > 0 && uses[device].bytes + used_by_others(device) + bytes > (int64_t)capacity()) return false;
  count(device, bytes);
  return true;
}
void info(size_t* free, size_t* total) {
  Lock lock(mutex);
  make_context(current());
  const int64_t left = (int64_t)capacity() - uses[current()].bytes - used_by_others(current());
  *total = capacity();
  *free = left > 0 ? (size_t)left : 0;
}

void* reserve(size_t n) {
  // Addresses ascend, and none is used twice: an allocator that takes the lowest of equal blocks takes the oldest.
  static std::atomic<uintptr_t> next{(uintptr_t)1 << 44};
  void* const hint = (void*)next.fetch_add(up(n, kGranule) + kGranule);
  void* p = mmap(hint, up(n, kPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, up(n, kPage), MADV_NOHUGEPAGE);
  return p;
}
void add_range(void* p, size_t n, int device) {
  Lock lock(mutex);
  ranges[(uintptr_t)p] = {n, device, DEVICE, 0};
}
void drop_range(void* p) {
  Lock lock(mutex);
  ranges.erase((uintptr_t)p);
}
int alloc(void** p, size_t n) {
  *p = nullptr;
  const int device = current();
  Lock lock(mutex);
  if (n == 0) {
    make_context(device);
    return 0;
  }
  const int64_t bytes = (int64_t)up(n, kGranule);
  if (n > capacity() || !charge(device, bytes)) return 2;
  void* memory = reserve(n);
  if (!memory) {
    charge(device, -bytes);
    return 2;
  }
  ranges[(uintptr_t)memory] = {n, device, DEVICE, bytes};
  *p = memory;
  return 0;
}
static int unmap(void* p, Where kind) {
  Lock lock(mutex);
  const auto found = ranges.find((uintptr_t)p);
  if (found == ranges.end() || found->second.where != kind) return 1;
  if (kind == DEVICE) count(found->second.device, -found->second.charged);
  munmap(p, up(found->second.size, kPage));
  ranges.erase(found);
  return 0;
}
int release(void* p) {
  make_context(current());
  if (!p) return 0;
  sync_device();  // cudaFree waits for the device
  return unmap(p, DEVICE);
}
int alloc_host(void** p, size_t n) {
  *p = nullptr;
  if (!n) return 0;
  void* memory = reserve(n);
  if (!memory) return 2;
  Lock lock(mutex);
  ranges[(uintptr_t)memory] = {n, current(), PINNED, 0};
  *p = memory;
  return 0;
}
int release_host(void* p) { return p ? unmap(p, PINNED) : 0; }
void register_host(void* p, size_t n) {
  Lock lock(mutex);
  ranges[(uintptr_t)p] = {n, current(), PINNED, 0};
}
void unregister_host(void* p) { drop_range(p); }
Where where(const void* p, int* device, void** base, size_t* size) {
  Lock lock(mutex);
  auto found = ranges.upper_bound((uintptr_t)p);
  if (found == ranges.begin()) return UNKNOWN;
  --found;
  if ((uintptr_t)p >= found->first + found->second.size) return UNKNOWN;
  if (device) *device = found->second.device;
  if (base) *base = (void*)found->first;
  if (size) *size = found->second.size;
  return found->second.where;
}
}  // namespace sim
