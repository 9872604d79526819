// The simulated device: its board, memory, time line, graphs and activity log.
// The stand-ins of libcudart, libcuda, libcublas(Lt), libcudnn, libnccl, libcupti and libnvidia-ml are thin layers over it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace sim {
using ns = int64_t;  // CLOCK_MONOTONIC nanoseconds, for the host and for the devices alike
constexpr int kDevices = 16;

// One lock for all that this process knows of its devices.
extern std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

// ---- world.cpp: clock, knobs, identity
ns now();
void sleep_until(ns t);
double knob(const char* name, double otherwise);  // the environment's SIMGPU_<name>
std::string text_knob(const char* name, const char* otherwise);
int devices();      // that CUDA_VISIBLE_DEVICES lets this process see
int physical(int device);  // its number on the board
size_t capacity();  // bytes of one device
const char* device_name();
void uuid_of(int device, unsigned char* bytes);  // 16 bytes
int pci_bus_of(int device);
int& current();     // the thread's device
int init();         // cuInit: 0, or 3 in a child that was forked after it
bool initialised();
void limit_resident();  // ends this process where it holds more than SIMGPU_RESIDENT_GB

// ---- world.cpp: errors (cudaError_t's numbers, which equal CUresult's for all codes used here)
int sticky();          // nonzero once the context is broken
void break_context(int code);
int fail(int code);    // remembers the thread's last error and returns it
int& last_error();

// ---- board.cpp: what all processes share, in a file (SIMGPU_BOARD); a test may write to it (tests/simgpu/board.py)
struct Board {
  static constexpr int kProcesses = 128, kBuckets = 1024;
  static constexpr ns kBucket = 10'000'000;
  struct Device {
    double sm_mhz;         // 0: 1980; a kernel takes 1980 / sm_mhz of its time
    double idle_w, busy_w; // 0: 90 and 650
    double limit_w;        // 0: 700
    double temperature;    // 0: 40
    uint64_t reasons;      // clock event reasons, as NVML has them
    int64_t foreign_bytes; // held by a process that is not simulated
    int64_t foreign_pid;
    int64_t busy_total;    // ns of all work that was launched
    int64_t bucket_start[kBuckets], bucket_busy[kBuckets];
  } devices[kDevices];
  struct Process {
    int64_t pid;
    int64_t used[kDevices];
  } processes[kProcesses];
};
Board* board();                               // null where no file can be had
Board::Process* my_process();
int64_t used_by_others(int device);           // bytes
void count_busy(int device, ns start, ns end);
ns busy_between(int device, ns start, ns end);  // as far as the buckets reach back
ns busy_until_now(int device);
double clock_of(int device);                  // MHz

// ---- memory.cpp
int alloc(void** p, size_t n);  // 0, or 2 when the capacity is exceeded
int release(void* p);
int alloc_host(void** p, size_t n);
int release_host(void* p);
void register_host(void* p, size_t n);
void unregister_host(void* p);
enum Where { UNKNOWN, DEVICE, PINNED };
Where where(const void* p, int* device = nullptr, void** base = nullptr, size_t* size = nullptr);
void info(size_t* free, size_t* total);
void make_context(int device);
bool charge(int device, int64_t bytes);  // physical memory without an address (virtual memory management)
void add_range(void* p, size_t n, int device);
void drop_range(void* p);
void* reserve(size_t n);                 // addresses without memory, which reads as zeros

// ---- timeline.cpp: streams and events
enum Kind { KERNEL, COPY, SET, HOST, EMPTY, EVENT_RECORD, EVENT_WAIT };
struct Event;
struct Stream;
struct Op {  // one piece of work, as launched or as captured
  Kind kind = EMPTY;
  const char* name = "";
  ns dur = 0;
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared = 0;
  void* dst = nullptr;
  const void* src = nullptr;
  size_t bytes = 0;
  int copy_kind = 0, value = 0;
  void (*fn)(void*) = nullptr;
  void* arg = nullptr;
  Event* event = nullptr;
};
struct Node {  // a piece of work in a graph; `end` is its time from the graph's start
  Op op;
  std::vector<Node*> deps;
  ns end = 0;
  uint64_t id = 0, stream = 0;
};
struct Graph {
  uint64_t id;
  std::vector<Node*> nodes;
  ns dur = 0;
  int refs = 1;
};
struct Capture {
  uint64_t id;
  int mode;
  Graph* graph;
  Stream* origin;
  long thread;
  std::vector<Stream*> streams;
  bool invalid = false;
};
struct Stream {
  int device = 0, priority = 0;
  unsigned flags = 0;
  uint64_t id = 0;
  bool legacy = false;
  ns ready = 0;              // when all that was enqueued will have ended
  std::vector<ns> pending;   // ends of launches that hold a slot of the queue
  size_t head = 0;
  Capture* capture = nullptr;
  std::vector<Node*> deps;
  bool blocking() const { return !(flags & 1); }
};
struct Event {
  unsigned flags = 0;
  bool recorded = false;
  ns t = 0;
  Capture* capture = nullptr;
  std::vector<Node*> deps;
  int device = 0;
};

Stream* stream(void* handle);
Stream* new_stream(unsigned flags, int priority);
void drop_stream(Stream*);
int launch(Stream*, const Op&);  // kernels, copies, sets and host functions, also under capture
// A kernel that begins on its stream now and ends at the time that `end` makes of its beginning.
int launch_until(Stream*, const Op&, ns (*end)(void* context, ns start), void* context);
int copy(void* dst, const void* src, size_t n, Stream*, bool sync);
int set(void* dst, int value, size_t width, size_t n, Stream*);
int sync_stream(Stream*);
int sync_device();
bool idle(Stream*);
int record(Event*, Stream*, bool external);
int wait_event(Stream*, Event*, bool external);
int sync_event(Event*);

// ---- timeline.cpp: what graphs need of it
ns start_on(Stream*, ns t);
void wait_for_slot(Stream*);
void perform(const Op&);  // the data of copies and sets, at once
void fill(char*, int value, size_t n);
void call_later(ns at, void (*fn)(void*), void* arg);
void count_kernel(ns dur);
long thread_id();

// ---- truth.cpp
void note_work(const Op&, ns start, ns end, const Stream*);
void note_event();
void wait_until(ns t, const char* what);  // the host waits for a device, stream or event

// ---- faults.cpp
void strike(Stream*);     // after each launch of a kernel or a graph: lets a fault that is due happen
bool answers_no_rank();   // this process comes to no further collective
bool is_lost(int device);  // by its number on the board; NVML's answer

// ---- durations.cpp
struct Func {
  std::string name;
  ns dur = -1;
  int max_shared = 49152;
};
ns kernel_ns(Func*);                  // at the full clock
ns named_ns(const char* name, ns otherwise);  // SIMGPU_TABLE, by part of a kernel's name
ns at_clock(int device, ns dur);      // at the device's clock
int gemm(Stream*, const char* name, double m, double n, double k, double batch, int type);  // type: cudaDataType, -1: TF32

// ---- graphs.cpp
Node* add_node(Stream*, const Op&);
int begin_capture(Stream*, int mode);
int end_capture(Stream*, Graph**);
int launch_graph(Graph*, Stream*);
void drop_graph(Graph*);
int exchange_mode(int mode);
int unsafe();  // 0, or 900 when the call is not allowed while a capture is on

// ---- activity.cpp: what CUPTI reports
enum ActivityKind { RUNTIME_CALL = 100, DRIVER_CALL, EXTERNAL_CORRELATION };  // beside the kinds of Op
struct Activity {
  int kind;
  const char* name;
  ns start, end;
  int device;
  uint64_t stream;
  uint32_t correlation, cbid;
  long thread;
  Op op;
  uint64_t graph_node = 0;
  uint32_t graph = 0;
  int external_kind = 0;
  uint64_t external_id = 0;
};
extern bool tracing;
extern void (*on_call)();  // CUPTI asks its client for a buffer as soon as there is something to put into it
struct Call {              // a call of the API, while it lasts
  const char* name;
  uint32_t cbid;
  bool driver;
  ns start = 0;
  uint32_t correlation = 0, outer = 0;
  Call(const char* name, uint32_t cbid, bool driver = false);
  ~Call();
};
void trace(const Op&, ns start, ns end, Stream*, uint64_t node, uint32_t graph);
void push_external(int kind, uint64_t id);
int pop_external(int kind, uint64_t* id);
std::vector<Activity> take_activities();
}  // namespace sim
