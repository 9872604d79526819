// Faults: each happens once, at a launch of a kernel or of a graph.
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "sim.h"

namespace sim {
// What happens beside the codes of cudaError_t, which break the context so that later calls return them.
enum { NEVER_ENDS = -1, ANSWERS_NO_RANK = -2, DEVICE_LOST = -3, CAPTURE_FAILS = 901 };
struct Fault {
  long launch = 0;  // its number in this process, on its device, from 1; 0: no fault
  int code = 700;
  int device = -1;  // by its number on the board; -1: any
};
static bool is_for(const Fault& fault, int device) { return fault.device < 0 || fault.device == device; }

static std::string file_of_faults() {
  static const std::string path = text_knob("FAULTS", "");
  return path;
}
// SIMGPU_FAULTS names a file of faults, `launch code [device]` a line. Each process that works, not one that only tries a
// device, takes the first line that is for its device, and removes it.
constexpr long kWorks = 20;  // launches
static Fault take(int device) {
  Fault taken;
  FILE* file = std::fopen(file_of_faults().c_str(), "r+");
  if (!file) return taken;
  flock(fileno(file), LOCK_EX);
  std::string rest;
  char line[128];
  for (bool found = false; std::fgets(line, sizeof line, file);) {
    Fault fault;
    const bool is_one = std::sscanf(line, "%ld %d %d", &fault.launch, &fault.code, &fault.device) >= 1;
    if (found || !is_one || !is_for(fault, device)) {
      rest += line;
      continue;
    }
    found = true;
    taken = fault;
  }
  std::rewind(file);
  std::fputs(rest.c_str(), file);
  std::fflush(file);
  if (ftruncate(fileno(file), (off_t)rest.size())) taken.launch = 0;
  std::fclose(file);  // unlocks
  return taken;
}

// Without such a file SIMGPU_FAIL_AFTER kernels on SIMGPU_FAIL_DEVICE break each process with SIMGPU_FAIL_CODE.
static Fault& mine(int device) {
  static Fault fault = file_of_faults().empty()
                           ? Fault{(long)knob("FAIL_AFTER", 0), (int)knob("FAIL_CODE", 700), (int)knob("FAIL_DEVICE", -1)}
                           : take(device);
  return fault;
}
constexpr ns kNever = INT64_MAX / 4;
static std::atomic<bool> silent{false};
bool answers_no_rank() { return silent; }

static std::string mark_of(int device) { return file_of_faults() + ".lost." + std::to_string(device); }
bool is_lost(int device) { return !file_of_faults().empty() && !access(mark_of(device).c_str(), F_OK); }

void strike(Stream* stream) {
  static long counts[kDevices];
  const int device = physical(stream->device);
  Lock lock(mutex);
  const long launches = ++counts[device];
  if (!file_of_faults().empty() && launches < kWorks) return;
  Fault& fault = mine(device);
  if (!fault.launch || !is_for(fault, device) || launches < fault.launch) return;
  if ((fault.code == CAPTURE_FAILS) != (stream->capture != nullptr)) return;  // the next launch of its kind
  fault.launch = 0;
  switch (fault.code) {
    case CAPTURE_FAILS: stream->capture->invalid = true; return;
    case NEVER_ENDS: stream->ready = kNever; return;
    case ANSWERS_NO_RANK: silent = true; return;
    case DEVICE_LOST:
      if (FILE* mark = std::fopen(mark_of(device).c_str(), "w")) std::fclose(mark);
      return break_context(719);
    default: break_context(fault.code);
  }
}
}  // namespace sim
