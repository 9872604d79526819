// The truth, for tests of times (SIMGPU_TRUTH, a file): a line for each piece of work, for each event and for each wait
// of the host for the device, in ns of CLOCK_MONOTONIC. It is written before the host sleeps, so it takes none of the time that a program measures.
//   work PID DEVICE STREAM LAUNCHED START END NAME
//   event PID RECORDED
//   wait PID BEGIN RETURN_OF_THE_WAIT_BEFORE FOR (device, stream or event)
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "sim.h"

namespace sim {
static std::string lines;
static thread_local ns returned = 0;
static int file() {
  static const int opened = [] {
    const std::string path = text_knob("TRUTH", "");
    return path.empty() ? -1 : open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }();
  return opened;
}
void note_work(const Op& op, ns start, ns end, const Stream* stream) {
  if (file() < 0 || (op.kind != KERNEL && op.kind != COPY && op.kind != SET)) return;
  char head[160];
  snprintf(head, sizeof head, "work %d %d %llu %lld %lld %lld ", getpid(), physical(stream->device),
           (unsigned long long)stream->id, (long long)now(), (long long)start, (long long)end);
  Lock lock(mutex);
  lines.append(head).append(op.name).append("\n");
}
void note_event() {
  if (file() < 0) return;
  char line[64];
  snprintf(line, sizeof line, "event %d %lld\n", getpid(), (long long)now());
  Lock lock(mutex);
  lines += line;
}
void wait_until(ns until, const char* what) {
  if (file() >= 0) {
    char line[128];
    snprintf(line, sizeof line, "wait %d %lld %lld %s\n", getpid(), (long long)now(), (long long)returned, what);
    Lock lock(mutex);
    lines += line;
    if (write(file(), lines.data(), lines.size()) < 0) perror("SIMGPU_TRUTH");
    lines.clear();
  }
  sleep_until(until);
  returned = now();
}
}  // namespace sim
