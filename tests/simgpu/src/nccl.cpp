// libnccl.so.2: ranks meet. A collective ends on all ranks a duration after the last of them began it; the data of small
// ones are combined for real. Ranks are processes or threads; each communicator has a file in shared memory.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "sim.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {
using sim::ns;
struct Id {
  char bytes[128];
};
enum Result { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
constexpr int kRanks = 64;
constexpr size_t kData = 16 << 20;  // bytes of a rank's message; no memory until they are written

// What the ranks of a communicator share. A slot has two sides: a rank that has met the others in round n+1 knows that
// all have left round n, so the side of round n is free in round n+2.
struct Room {
  std::atomic<int> refused;
  struct Seat {
    std::atomic<int64_t> round;
    ns start[2];
  } seats[kRanks];
  struct Mail {
    std::atomic<int64_t> sent, taken;
    ns start;
  } mails[kRanks][kRanks];
};
struct Comm {
  int ranks, rank, device;
  int64_t round = 0, splits = 0;
  std::string name;
  Room* room;
  char* data;  // [side][rank][kData]
  char* of(int side, int of_rank) const { return data + ((size_t)side * ranks + of_rank) * kData; }
};

size_t width_of(int type) {  // ncclDataType_t
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? widths[type] : 4;
}
void* shared(const std::string& name, size_t size) {
  const std::string path = "/dev/shm/" + name;
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* memory = ftruncate(file, (off_t)size) ? MAP_FAILED
                                              : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}
int join(Comm** comm, int ranks, const std::string& name, int rank) {
  if (ranks > kRanks) return INVALID_ARGUMENT;
  auto* made = new Comm{ranks, rank, sim::current(), 0, 0, name, nullptr, nullptr};
  made->room = (Room*)shared(name, sizeof(Room));
  made->data = (char*)shared(name + ".data", 2 * ranks * kData);
  if (!made->room || !made->data) return SYSTEM_ERROR;
  *comm = made;
  return SUCCESS;
}

// SIMGPU_NCCL_HANG_AFTER collectives a rank on SIMGPU_FAIL_DEVICE comes to no further one.
bool hangs(const Comm& comm) {
  static const int64_t after = (int64_t)sim::knob("NCCL_HANG_AFTER", 0), on = (int64_t)sim::knob("FAIL_DEVICE", -1);
  return sim::answers_no_rank() || (after && comm.round > after && (on < 0 || on == sim::physical(comm.device)));
}
template <class Condition>
void wait_until(Condition condition) {
  for (int i = 0; !condition(); i++)
    if (i > 200) usleep(20);
}
// Data take the host's time: without real numbers only small messages are carried out.
bool is_carried_out(size_t bytes) {
  static const bool real = !sim::text_knob("COMPUTE", "").empty();
  return bytes <= (real ? kData : kData >> 4);
}
// Waits for all ranks; the time at which the last of them began.
ns meet(Comm& comm, ns start) {
  const int side = comm.round % 2;
  comm.room->seats[comm.rank].start[side] = start;
  comm.room->seats[comm.rank].round.store(comm.round + 1, std::memory_order_release);
  ns last = start;
  for (int other = 0; other < comm.ranks; other++) {
    auto& seat = comm.room->seats[other];
    wait_until([&] { return seat.round.load(std::memory_order_acquire) > comm.round; });
    last = std::max(last, seat.start[side]);
  }
  return last;
}

float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  float value = exponent == 0    ? fraction * 5.9604645e-8f
                : exponent == 31 ? (fraction ? __builtin_nanf("") : __builtin_inff())
                                 : __builtin_ldexpf((float)(fraction | 1024), (int)exponent - 25);
  return sign ? -value : value;
}
double value_at(const char* p, int type, size_t i) {
  switch (type) {
    case 0: return ((const int8_t*)p)[i];
    case 1: return ((const uint8_t*)p)[i];
    case 2: return ((const int32_t*)p)[i];
    case 3: return ((const uint32_t*)p)[i];
    case 4: return (double)((const int64_t*)p)[i];
    case 5: return (double)((const uint64_t*)p)[i];
    case 6: return half_to_float(((const uint16_t*)p)[i]);
    case 7: return ((const float*)p)[i];
    case 8: return ((const double*)p)[i];
    case 9: {
      const uint32_t bits = (uint32_t)((const uint16_t*)p)[i] << 16;
      float value;
      memcpy(&value, &bits, 4);
      return value;
    }
  }
  return 0;
}
void put_value(char* p, int type, size_t i, double value) {
  switch (type) {
    case 0: ((int8_t*)p)[i] = (int8_t)value; break;
    case 1: ((uint8_t*)p)[i] = (uint8_t)value; break;
    case 2: ((int32_t*)p)[i] = (int32_t)value; break;
    case 3: ((uint32_t*)p)[i] = (uint32_t)value; break;
    case 4: ((int64_t*)p)[i] = (int64_t)value; break;
    case 5: ((uint64_t*)p)[i] = (uint64_t)value; break;
    case 6: {
      const _Float16 half = (_Float16)value;
      memcpy(p + 2 * i, &half, 2);
      break;
    }
    case 7: ((float*)p)[i] = (float)value; break;
    case 8: ((double*)p)[i] = value; break;
    case 9: {
      const float single = (float)value;
      uint32_t bits;
      memcpy(&bits, &single, 4);
      ((uint16_t*)p)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
      break;
    }
  }
}
// ncclRedOp_t: sum, product, maximum, minimum, mean.
void reduce(const Comm& comm, int side, size_t offset, char* out, size_t count, int type, int op) {
  for (size_t i = 0; i < count; i++) {
    double total = value_at(comm.of(side, 0) + offset, type, i);
    for (int rank = 1; rank < comm.ranks; rank++) {
      const double value = value_at(comm.of(side, rank) + offset, type, i);
      total = op == 1 ? total * value : op == 2 ? std::max(total, value) : op == 3 ? std::min(total, value) : total + value;
    }
    put_value(out, type, i, op == 4 ? total / comm.ranks : total);
  }
}

// ---- a call, or what a group collects until its end
thread_local int group_depth = 0;
thread_local std::vector<std::function<int()>> group;
int now_or_in_group(std::function<int()> call) {
  if (group_depth == 0) return call();
  group.push_back(std::move(call));
  return SUCCESS;
}

struct Collective {
  Comm* comm;
  double traffic;         // bytes over the slowest link
  const void* send;
  size_t send_bytes;
  std::function<void(int side)> receive;
};
ns end_of(void* context, ns start) {
  static const double gbs = sim::knob("NCCL_GBS", 200), fixed_us = sim::knob("NCCL_US", 20);
  auto& call = *(Collective*)context;
  Comm& comm = *call.comm;
  const ns dur = (ns)(fixed_us * 1e3 + (comm.ranks > 1 ? call.traffic / gbs : 0));
  if (hangs(comm)) wait_until([] { return sim::sticky() != 0; });
  const int side = comm.round % 2;
  const bool carried = is_carried_out(call.send_bytes);
  if (carried && call.send) memcpy(comm.of(side, comm.rank), call.send, call.send_bytes);
  const ns last = meet(comm, start);
  if (carried) call.receive(side);
  comm.round++;
  return last + sim::named_ns("nccl", dur);
}
int run(const char* name, Collective call, void* stream) {
  sim::Op op;
  op.kind = sim::KERNEL;
  op.name = name;
  op.grid[0] = 24;
  op.block[0] = 544;
  sim::Call api("cuLaunchKernelEx", 652, true);  // CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx
  return sim::launch_until(sim::stream(stream), op, end_of, &call) ? CUDA_ERROR : SUCCESS;
}
// A message between two ranks: the sender goes on, the receiver waits for it.
int pass(Comm* comm, int peer, bool sends, const void* from, void* to, size_t bytes, void* stream) {
  struct Message {
    Comm* comm;
    int peer;
    bool sends;
    const void* from;
    void* to;
    size_t bytes;
  } message{comm, peer, sends, from, to, bytes};
  sim::Op op;
  op.kind = sim::KERNEL;
  op.name = "ncclDevKernel_SendRecv";
  sim::Call api("cuLaunchKernelEx", 652, true);
  const int error = sim::launch_until(
      sim::stream(stream), op,
      [](void* context, ns start) {
        auto& m = *(Message*)context;
        auto& mail = m.sends ? m.comm->room->mails[m.comm->rank][m.peer] : m.comm->room->mails[m.peer][m.comm->rank];
        char* data = (char*)shared(m.comm->name + ".mail." + std::to_string(m.sends ? m.comm->rank : m.peer) + "." +
                                   std::to_string(m.sends ? m.peer : m.comm->rank), kData);
        const ns dur = (ns)(sim::knob("NCCL_US", 20) * 1e3 + m.bytes / sim::knob("NCCL_GBS", 200));
        const bool carried = data && is_carried_out(m.bytes);
        if (m.sends) {
          wait_until([&] { return mail.taken.load() == mail.sent.load(); });
          if (carried) memcpy(data, m.from, m.bytes);
          mail.start = start;
          mail.sent++;
        } else {
          wait_until([&] { return mail.sent.load() > mail.taken.load(); });
          if (carried) memcpy(m.to, data, m.bytes);
          start = std::max(start, mail.start);
          mail.taken++;
        }
        if (data) munmap(data, kData);
        return start + sim::named_ns("nccl", dur);
      },
      &message);
  return error ? CUDA_ERROR : SUCCESS;
}
}  // namespace

API int ncclGetVersion(int* version) {
  *version = 22809;
  return SUCCESS;
}
// Removes the files of ranks that were killed.
static void tidy() {
  DIR* folder = opendir("/dev/shm");
  for (dirent* file; folder && (file = readdir(folder));) {
    int pid;
    if (sscanf(file->d_name, "simgpu-nccl-%d-", &pid) == 1 && kill(pid, 0) && errno == ESRCH)
      unlinkat(dirfd(folder), file->d_name, 0);
  }
  if (folder) closedir(folder);
}
API int ncclGetUniqueId(Id* id) {
  tidy();
  static std::atomic<int> next{0};
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "simgpu-nccl-%d-%d-%lld", getpid(), next++, (long long)sim::now());
  return SUCCESS;
}
API const char* ncclGetErrorString(int error) {
  static const char* const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage", "remote process exited or there was a network error"};
  return error >= 0 && error < 7 ? texts[error] : "unknown result code";
}
API const char* ncclGetLastError(void*) { return ""; }
API int ncclCommInitRank(Comm** comm, int ranks, Id id, int rank) { return join(comm, ranks, id.bytes, rank); }
API int ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, void*) { return join(comm, ranks, id.bytes, rank); }
API int ncclCommInitRankScalable(Comm** comm, int ranks, int rank, int, Id* id, void*) {
  return join(comm, ranks, id->bytes, rank);
}
API int ncclCommSplit(Comm* parent, int color, int key, Comm** comm, void*) {
  // Each rank tells its colour and key to all others, as one collective.
  struct Wish {
    int color, key;
  } wish{color, key};
  const int side = parent->round % 2;
  memcpy(parent->of(side, parent->rank), &wish, sizeof wish);
  meet(*parent, 0);
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < parent->ranks; rank++) {
    const auto* other = (const Wish*)parent->of(side, rank);
    if (other->color == color) members.push_back({other->key, rank});
  }
  parent->round++;
  parent->splits++;
  *comm = nullptr;
  if (color < 0) return SUCCESS;
  std::sort(members.begin(), members.end());
  int rank = 0;
  while (members[rank].second != parent->rank) rank++;
  return join(comm, (int)members.size(), parent->name + "." + std::to_string(parent->splits) + "." + std::to_string(color), rank);
}
static void remove_files(const Comm& comm) {
  unlink(("/dev/shm/" + comm.name).c_str());
  unlink(("/dev/shm/" + comm.name + ".data").c_str());
}
API int ncclCommDestroy(Comm* comm) {
  remove_files(*comm);
  return SUCCESS;
}
API int ncclCommAbort(Comm* comm) {
  remove_files(*comm);
  return SUCCESS;
}
API int ncclCommFinalize(Comm*) { return SUCCESS; }
API int ncclCommGetAsyncError(Comm*, int* error) {
  *error = SUCCESS;
  return SUCCESS;
}
API int ncclCommCount(Comm* comm, int* count) {
  *count = comm->ranks;
  return SUCCESS;
}
API int ncclCommUserRank(Comm* comm, int* rank) {
  *rank = comm->rank;
  return SUCCESS;
}
API int ncclGroupStart() {
  group_depth++;
  return SUCCESS;
}
API int ncclGroupEnd() {
  if (--group_depth) return SUCCESS;
  std::vector<std::function<int()>> calls;
  calls.swap(group);
  int error = SUCCESS;
  for (auto& call : calls) error = error ? error : call();
  return error;
}

API int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, Comm* comm, void* stream) {
  const size_t bytes = n * width_of(type);
  return now_or_in_group([=] {
    return run("ncclDevKernel_AllReduce_Sum_f32_RING_LL",
               {comm, 2.0 * bytes * (comm->ranks - 1) / comm->ranks, from, bytes,
                [=](int side) { reduce(*comm, side, 0, (char*)to, n, type, op); }},
               stream);
  });
}
API int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, Comm* comm, void* stream) {
  const size_t bytes = n * width_of(type);
  return now_or_in_group([=] {
    return run("ncclDevKernel_Broadcast_RING_LL",
               {comm, (double)bytes, from, bytes, [=](int side) { memcpy(to, comm->of(side, root), bytes); }}, stream);
  });
}
API int ncclBcast(void* data, size_t n, int type, int root, Comm* comm, void* stream) {
  return ncclBroadcast(data, data, n, type, root, comm, stream);
}
API int ncclReduce(const void* from, void* to, size_t n, int type, int op, int root, Comm* comm, void* stream) {
  const size_t bytes = n * width_of(type);
  return now_or_in_group([=] {
    return run("ncclDevKernel_Reduce_Sum_f32_RING_LL", {comm, (double)bytes, from, bytes, [=](int side) {
                 if (comm->rank == root) reduce(*comm, side, 0, (char*)to, n, type, op);
               }}, stream);
  });
}
API int ncclAllGather(const void* from, void* to, size_t n, int type, Comm* comm, void* stream) {
  const size_t bytes = n * width_of(type);
  return now_or_in_group([=] {
    return run("ncclDevKernel_AllGather_RING_LL", {comm, (double)bytes * (comm->ranks - 1), from, bytes, [=](int side) {
                 for (int rank = 0; rank < comm->ranks; rank++) memcpy((char*)to + rank * bytes, comm->of(side, rank), bytes);
               }}, stream);
  });
}
API int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, Comm* comm, void* stream) {
  const size_t bytes = n * width_of(type);
  return now_or_in_group([=] {
    return run("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
               {comm, (double)bytes * (comm->ranks - 1), from, bytes * comm->ranks,
                [=](int side) { reduce(*comm, side, bytes * comm->rank, (char*)to, n, type, op); }},
               stream);
  });
}
API int ncclSend(const void* from, size_t n, int type, int peer, Comm* comm, void* stream) {
  return now_or_in_group([=] { return pass(comm, peer, true, from, nullptr, n * width_of(type), stream); });
}
API int ncclRecv(void* to, size_t n, int type, int peer, Comm* comm, void* stream) {
  return now_or_in_group([=] { return pass(comm, peer, false, nullptr, to, n * width_of(type), stream); });
}
API int ncclMemAlloc(void** p, size_t n) { return sim::alloc(p, n) ? CUDA_ERROR : SUCCESS; }
API int ncclMemFree(void* p) { return sim::release(p) ? CUDA_ERROR : SUCCESS; }
