// Clock, knobs, identity and errors of the simulated devices.
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "sim.h"

namespace sim {
std::recursive_mutex mutex;

ns now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// Spins at the end, as CUDA does, so that no time of waking up is in what a program measures.
void sleep_until(ns t) {
  constexpr ns spun = 100'000;
  static thread_local bool precise = false;
  if (!precise) prctl(PR_SET_TIMERSLACK, 1000);
  precise = true;
  const ns until = t - spun;
  timespec at{until / 1'000'000'000ll, until % 1'000'000'000ll};
  while (now() < until) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
  while (now() < t) {
  }
}

std::string text_knob(const char* name, const char* otherwise) {
  const char* text = std::getenv((std::string("SIMGPU_") + name).c_str());
  return text && *text ? text : otherwise;
}

double knob(const char* name, double otherwise) {
  const std::string text = text_knob(name, "");
  return text.empty() ? otherwise : std::atof(text.c_str());
}

// The board's numbers of the devices that this process sees, as CUDA reads CUDA_VISIBLE_DEVICES: up to the first entry
// that names none.
static const std::vector<int>& visible() {
  static const std::vector<int> list = [] {
    std::vector<int> seen;
    const int have = std::min((int)knob("DEVICES", 1), kDevices);
    const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!listed) {
      for (int i = 0; i < have; i++) seen.push_back(i);
      return seen;
    }
    const std::string text(listed);
    for (size_t start = 0; start < text.size();) {
      const size_t end = std::min(text.find(',', start), text.size());
      const std::string entry = text.substr(start, end - start);
      start = end + 1;
      char* rest = nullptr;
      long index = entry.rfind("GPU-", 0) == 0 ? std::strtol(entry.substr(entry.size() - 2).c_str(), &rest, 16)
                                               : std::strtol(entry.c_str(), &rest, 10);
      if (!rest || *rest || index < 0 || index >= have) break;
      seen.push_back((int)index);
    }
    return seen;
  }();
  return list;
}
int devices() { return (int)visible().size(); }
int physical(int device) { return visible()[device]; }
size_t capacity() {
  static const size_t bytes = (size_t)(knob("MEMORY_GB", 79.65) * (1 << 30));
  return bytes;
}
const char* device_name() {
  static const std::string name = text_knob("NAME", "NVIDIA H100 80GB HBM3");
  return name.c_str();
}
void uuid_of(int device, unsigned char* bytes) {
  static const unsigned char id[16] = {0x5e, 0xed, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 1, 0};
  memcpy(bytes, id, sizeof id);
  bytes[15] = (unsigned char)physical(device);
}
int pci_bus_of(int device) { return 0x17 + 0x11 * physical(device); }
int& current() {
  static thread_local int device = 0;
  return device;
}

static std::atomic<int> owner{0};
static std::atomic<int> broken{0};
static void load_compute() {
  static std::once_flag once;
  std::call_once(once, [] {
    extern void start_compute();
    start_compute();
  });
}
// Zeros of the device that a program reads as sizes can ask for any amount of the host's memory.
void limit_resident() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::thread([] {
      const double most = knob("RESIDENT_GB", 6) * (1 << 30);
      for (;; usleep(50'000)) {
        long pages = 0;
        FILE* file = std::fopen("/proc/self/statm", "r");
        if (!file || std::fscanf(file, "%*s %ld", &pages) != 1) return;
        std::fclose(file);
        if ((double)pages * sysconf(_SC_PAGESIZE) < most) continue;
        std::fprintf(stderr, "simgpu: this process holds more than SIMGPU_RESIDENT_GB=%g\n", most / (1 << 30));
        _exit(137);
      }
    }).detach();
  });
}

int init() {
  if (!owner) {
    owner = getpid();
    limit_resident();
  }
  static thread_local int me = 0;
  if (!me || me != owner) me = getpid();
  if (me != owner) return 3;
  load_compute();
  return 0;
}
bool initialised() { return owner != 0; }
void break_context(int code) { broken = code; }
int sticky() {
  if (int error = init()) return error;
  return broken;
}
int& last_error() {
  static thread_local int error = 0;
  return error;
}
int fail(int code) {
  if (code) last_error() = code;
  return code;
}
}  // namespace sim
