// The activity log: calls of the API and work of the device, as CUPTI's client wants them.
#include "sim.h"

#include <atomic>

namespace sim {
bool tracing = false;
void (*on_call)() = nullptr;
constexpr int kExternalKinds = 16;
static std::vector<Activity> activities;
static std::atomic<uint32_t> next_correlation{1};
static thread_local uint32_t open_call = 0;
static thread_local std::vector<uint64_t> externals[kExternalKinds];

Call::Call(const char* name, uint32_t cbid, bool driver) : name(name), cbid(cbid), driver(driver) {
  if (!tracing) return;
  if (on_call) on_call();
  start = now();
  correlation = next_correlation++;
  outer = open_call;
  open_call = correlation;
  Lock lock(mutex);
  for (int kind = 0; kind < kExternalKinds; kind++) {
    if (externals[kind].empty()) continue;
    Activity activity{};
    activity.kind = EXTERNAL_CORRELATION;
    activity.correlation = correlation;
    activity.external_kind = kind;
    activity.external_id = externals[kind].back();
    activity.start = activity.end = start;
    activities.push_back(activity);
  }
}
Call::~Call() {
  if (!correlation) return;
  open_call = outer;
  Activity activity{};
  activity.kind = driver ? DRIVER_CALL : RUNTIME_CALL;
  activity.name = name;
  activity.cbid = cbid;
  activity.start = start;
  activity.end = now();
  activity.correlation = correlation;
  activity.thread = thread_id();
  Lock lock(mutex);
  activities.push_back(activity);
}
void trace(const Op& op, ns start, ns end, Stream* stream, uint64_t node, uint32_t graph) {
  if (!tracing || (op.kind != KERNEL && op.kind != COPY && op.kind != SET)) return;
  Activity activity{};
  activity.kind = op.kind;
  activity.name = op.name;
  activity.start = start;
  activity.end = end;
  activity.device = stream->device;
  activity.stream = stream->id;
  activity.correlation = open_call;
  activity.op = op;
  activity.graph_node = node;
  activity.graph = graph;
  Lock lock(mutex);
  activities.push_back(activity);
}
void push_external(int kind, uint64_t id) {
  if (kind >= 0 && kind < kExternalKinds) externals[kind].push_back(id);
}
int pop_external(int kind, uint64_t* id) {
  if (kind < 0 || kind >= kExternalKinds || externals[kind].empty()) return 1;
  if (id) *id = externals[kind].back();
  externals[kind].pop_back();
  return 0;
}
std::vector<Activity> take_activities() {
  Lock lock(mutex);
  std::vector<Activity> taken;
  taken.swap(activities);
  return taken;
}
}  // namespace sim
