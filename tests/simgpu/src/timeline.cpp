// The time line: a stream keeps the time at which all that was enqueued will have ended, so no thread is needed. Events
// copy that time; the host sleeps until it.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <queue>
#include <set>
#include <thread>

#include "sim.h"

namespace sim {
long thread_id() {
  static thread_local long id = syscall(SYS_gettid);
  return id;
}

// ---- streams
static std::set<Stream*> streams;
static Stream* legacy_of(int device) {
  static Stream* legacies[kDevices];
  auto*& legacy = legacies[device];
  if (!legacy) {
    legacy = new Stream;
    legacy->device = device;
    legacy->legacy = true;
    legacy->id = 7;
    streams.insert(legacy);
    make_context(device);
  }
  return legacy;
}
Stream* stream(void* handle) {
  if ((uintptr_t)handle > 2) return (Stream*)handle;  // 0, 1, 2: the default stream by its names
  Lock lock(mutex);
  return legacy_of(current());
}
Stream* new_stream(unsigned flags, int priority) {
  static uint64_t next = 13;
  Lock lock(mutex);
  make_context(current());
  auto* made = new Stream;
  made->device = current();
  made->flags = flags;
  made->priority = priority;
  made->id = next++;
  streams.insert(made);
  return made;
}
void drop_stream(Stream* dropped) {
  Lock lock(mutex);
  streams.erase(dropped);  // the object stays: events may name it
}
ns start_on(Stream* stream, ns t) {
  ns at = std::max(t, stream->ready);
  if (stream->legacy) {
    for (const auto* other : streams)
      if (other->device == stream->device && other->blocking()) at = std::max(at, other->ready);
  } else if (stream->blocking()) {
    at = std::max(at, legacy_of(stream->device)->ready);
  }
  return at;
}
// The queue of launches is bounded, as the driver's is: the host waits for a free slot.
void wait_for_slot(Stream* stream) {
  static const size_t depth = (size_t)knob("QUEUE", 1024);
  for (;;) {
    ns until;
    {
      Lock lock(mutex);
      const ns t = now();
      auto& pending = stream->pending;
      while (stream->head < pending.size() && pending[stream->head] <= t) stream->head++;
      if (stream->head > 4096) {
        pending.erase(pending.begin(), pending.begin() + stream->head);
        stream->head = 0;
      }
      if (pending.size() - stream->head < depth) return;
      until = pending[stream->head];
    }
    sleep_until(until);
  }
}

// ---- host functions run on a thread of their own, at the device's time
struct Later {
  ns at;
  void (*fn)(void*);
  void* arg;
  bool operator<(const Later& other) const { return at > other.at; }
};
void call_later(ns at, void (*fn)(void*), void* arg) {
  static auto* queue = new std::priority_queue<Later>;
  static auto* guard = new std::mutex;
  static auto* changed = new std::condition_variable;
  static bool started = false;
  std::unique_lock<std::mutex> lock(*guard);
  queue->push({at, fn, arg});
  changed->notify_one();
  if (started) return;
  started = true;
  std::thread([] {
    std::unique_lock<std::mutex> lock(*guard);
    for (;;) {
      if (queue->empty()) {
        changed->wait(lock);
        continue;
      }
      const Later next = queue->top();
      if (next.at > now()) {
        changed->wait_for(lock, std::chrono::nanoseconds(next.at - now()));
        continue;
      }
      queue->pop();
      lock.unlock();
      next.fn(next.arg);
      lock.lock();
    }
  }).detach();
}

// ---- counts
static std::atomic<long long> kernels{0}, kernel_time{0};
void count_kernel(ns dur) {
  kernels++;
  kernel_time += dur;
}
extern "C" __attribute__((visibility("default"))) void simgpu_counts(long long* out) {  // for tests, by ctypes
  out[0] = kernels;
  out[1] = kernel_time;
}

// ---- work
static bool is_carried_out(size_t bytes) {
  static const size_t most = (size_t)(knob("COPY_MAX_MB", 4) * (1 << 20));
  return bytes <= most;
}
void fill(char* p, int value, size_t n) {
  constexpr uintptr_t page = 4096;
  if (value != 0 || n < 16 * page) {
    if (is_carried_out(n)) memset(p, value, n);
    return;
  }
  const uintptr_t first = ((uintptr_t)p + page - 1) / page * page, last = ((uintptr_t)p + n) / page * page;
  memset(p, 0, first - (uintptr_t)p);
  madvise((void*)first, last - first, MADV_DONTNEED);  // whole pages of zeros take no memory
  memset((void*)last, 0, (uintptr_t)p + n - last);
}
void perform(const Op& op) {
  if (op.kind == COPY && is_carried_out(op.bytes)) memmove(op.dst, op.src, op.bytes);
  if (op.kind == SET) fill((char*)op.dst, op.value, op.bytes);
}
static void enqueue(Stream* stream, const Op& op, ns start, ns end) {
  stream->ready = end;
  stream->pending.push_back(end);
  count_busy(physical(stream->device), start, end);
  if (op.kind == HOST) call_later(end, op.fn, op.arg);
  perform(op);
  trace(op, start, end, stream, 0, 0);
  note_work(op, start, end, stream);
  if (op.kind == KERNEL) count_kernel(end - start);
}
int launch_until(Stream* stream, const Op& op, ns (*end)(void*, ns), void* context) {
  if (int error = sticky()) return error;
  if (stream->capture) {
    Lock lock(mutex);
    if (stream->capture->invalid) return 901;
    add_node(stream, op);
    if (op.kind == KERNEL) strike(stream);
    return 0;
  }
  wait_for_slot(stream);
  static const ns latency = (ns)(knob("LAUNCH_US", 0) * 1e3);
  ns start;
  {
    Lock lock(mutex);
    start = start_on(stream, now() + latency);
  }
  const ns stop = end(context, start);  // may wait for other ranks, without the lock
  Lock lock(mutex);
  enqueue(stream, op, start, stop);
  if (op.kind == KERNEL) strike(stream);
  return 0;
}
int launch(Stream* stream, const Op& op) {
  struct Fixed {
    const Op& op;
    int device;
  } fixed{op, stream->device};
  return launch_until(
      stream, op,
      [](void* context, ns start) {
        const auto& fixed = *(Fixed*)context;
        return start + (fixed.op.kind == KERNEL ? at_clock(fixed.device, fixed.op.dur) : fixed.op.dur);
      },
      &fixed);
}
int copy(void* dst, const void* src, size_t n, Stream* stream, bool sync) {
  static const double pcie = knob("PCIE_GBS", 25), hbm = knob("HBM_GBS", 1500), fixed_us = knob("COPY_US", 5);
  static const char* const names[] = {"", "Memcpy HtoD", "Memcpy DtoH", "", "", "", "", "", "Memcpy DtoD", "Memcpy HtoH"};
  const Where to = where(dst), from = where(src);
  Op op;
  op.kind = COPY;
  op.dst = dst;
  op.src = src;
  op.bytes = n;
  op.dur = (ns)(fixed_us * 1e3 + n / (to == DEVICE && from == DEVICE ? hbm : pcie));
  op.copy_kind = to == DEVICE ? (from == DEVICE ? 8 : 1) : (from == DEVICE ? 2 : 9);  // CUPTI's numbers
  op.name = names[op.copy_kind];
  const bool waits = sync || to == UNKNOWN || (from == UNKNOWN && n > 65536);  // pageable memory of the host
  if (stream->capture && sync && to == UNKNOWN) return 900;
  if (int error = launch(stream, op)) return error;
  return waits && !stream->capture ? sync_stream(stream) : 0;
}
int set(void* dst, int value, size_t width, size_t n, Stream* stream) {
  static const double hbm = knob("HBM_GBS", 1500);
  Op op;
  op.kind = SET;
  op.name = "Memset (Device)";
  op.dst = dst;
  op.value = value;
  op.bytes = n * width;
  op.dur = (ns)(2e3 + op.bytes / hbm);
  return launch(stream, op);
}

// ---- waiting
int sync_stream(Stream* stream) {
  if (int error = sticky()) return error;
  if (stream->capture) {
    stream->capture->invalid = true;
    return 900;
  }
  ns until;
  {
    Lock lock(mutex);
    until = stream->legacy ? start_on(stream, 0) : stream->ready;
  }
  wait_until(until, "stream");
  return sticky();
}
int sync_device() {
  if (int error = sticky()) return error;
  ns until = 0;
  {
    Lock lock(mutex);
    for (const auto* stream : streams)
      if (stream->device == current()) until = std::max(until, stream->ready);
  }
  wait_until(until, "device");
  return sticky();
}
bool idle(Stream* stream) {
  Lock lock(mutex);
  return stream->ready <= now();
}

// ---- events
int record(Event* event, Stream* stream, bool external) {
  if (int error = sticky()) return error;
  Lock lock(mutex);
  event->device = stream->device;
  event->recorded = true;
  if (!stream->capture) {
    event->capture = nullptr;
    event->t = start_on(stream, now());
    note_event();
    stream->ready = std::max(stream->ready, event->t);
    return 0;
  }
  if (stream->capture->invalid) return 901;
  if (external) {
    Op op;
    op.kind = EVENT_RECORD;
    op.event = event;
    add_node(stream, op);
    return 0;
  }
  event->capture = stream->capture;
  event->deps = stream->deps;
  return 0;
}
int wait_event(Stream* stream, Event* event, bool external) {
  if (int error = sticky()) return error;
  Lock lock(mutex);
  if (external && stream->capture) {
    Op op;
    op.kind = EVENT_WAIT;
    op.event = event;
    add_node(stream, op);
    return 0;
  }
  if (event->capture) {
    if (!stream->capture) {
      stream->capture = event->capture;
      stream->deps.clear();
      stream->capture->streams.push_back(stream);
    }
    for (auto* node : event->deps)
      if (std::find(stream->deps.begin(), stream->deps.end(), node) == stream->deps.end()) stream->deps.push_back(node);
    return 0;
  }
  if (stream->capture) {  // an event that was recorded outside of the capture
    stream->capture->invalid = true;
    return 905;
  }
  if (event->recorded) stream->ready = std::max(stream->ready, event->t);
  return 0;
}
int sync_event(Event* event) {
  if (int error = sticky()) return error;
  if (event->capture) {
    event->capture->invalid = true;
    return 900;
  }
  if (event->recorded) wait_until(event->t, "event");
  return sticky();
}
}  // namespace sim
