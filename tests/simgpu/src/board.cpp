// The board: a file in shared memory by which processes, NVML and tests know of one another.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "sim.h"

namespace sim {
static Board* open_board() {
  const std::string path = text_knob("BOARD", ("/dev/shm/simgpu." + std::to_string(getuid())).c_str());
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  struct stat status;
  if (fstat(file, &status) || (status.st_size < (off_t)sizeof(Board) && ftruncate(file, sizeof(Board)))) {
    close(file);
    return nullptr;
  }
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : (Board*)memory;
}
Board* board() {
  static Board* const shared = open_board();
  return shared;
}

static bool lives(int64_t pid) { return pid && !kill((pid_t)pid, 0); }

Board::Process* my_process() {
  static Board::Process* mine = nullptr;
  if (!board() || (mine && mine->pid == getpid())) return board() ? mine : nullptr;
  mine = nullptr;
  for (auto& process : board()->processes) {
    int64_t pid = process.pid;
    if (lives(pid) || !__sync_bool_compare_and_swap(&process.pid, pid, (int64_t)getpid())) continue;
    memset(process.used, 0, sizeof process.used);
    return mine = &process;
  }
  return nullptr;
}

int64_t used_by_others(int device) {
  if (!board()) return 0;
  const int number = physical(device);
  int64_t bytes = board()->devices[number].foreign_bytes;
  for (const auto& process : board()->processes)
    if (process.pid != getpid() && process.used[number] && lives(process.pid)) bytes += process.used[number];
  return bytes;
}

void count_busy(int device, ns start, ns end) {
  if (!board() || end <= start) return;
  auto& counted = board()->devices[device];
  end = std::min(end, start + (Board::kBuckets - 1) * Board::kBucket);  // further ahead no reading looks
  __sync_fetch_and_add(&counted.busy_total, end - start);
  for (ns t = start; t < end;) {
    const ns bucket = t / Board::kBucket * Board::kBucket, next = std::min(bucket + Board::kBucket, end);
    const int slot = (int)(t / Board::kBucket % Board::kBuckets);
    if (counted.bucket_start[slot] != bucket) {
      counted.bucket_start[slot] = bucket;
      counted.bucket_busy[slot] = 0;
    }
    __sync_fetch_and_add(&counted.bucket_busy[slot], next - t);
    t = next;
  }
}

ns busy_between(int device, ns start, ns end) {
  if (!board()) return 0;
  const auto& counted = board()->devices[device];
  ns busy = 0;
  for (ns bucket = start / Board::kBucket * Board::kBucket; bucket < end; bucket += Board::kBucket) {
    const int slot = (int)(bucket / Board::kBucket % Board::kBuckets);
    if (counted.bucket_start[slot] == bucket) busy += std::min((ns)counted.bucket_busy[slot], Board::kBucket);
  }
  return busy;
}

ns busy_until_now(int device) {
  if (!board()) return 0;
  const ns t = now();
  return board()->devices[device].busy_total - busy_between(device, t, t + (Board::kBuckets - 1) * Board::kBucket);
}

double clock_of(int device) {
  const double mhz = board() ? board()->devices[device].sm_mhz : 0;
  return mhz > 0 ? mhz : 1980;
}
}  // namespace sim
