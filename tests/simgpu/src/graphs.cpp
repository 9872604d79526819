// CUDA graphs: what a capture collects, and its launch, which takes the critical path of its nodes.
#include <algorithm>
#include <set>

#include "sim.h"

namespace sim {
static std::vector<Capture*> captures;
static thread_local int thread_mode = 0;  // 0 global, 1 thread-local, 2 relaxed

int exchange_mode(int mode) {
  const int before = thread_mode;
  thread_mode = mode;
  return before;
}
int unsafe() {
  if (int error = sticky()) return error;
  if (thread_mode == 2) return 0;
  Lock lock(mutex);
  for (auto* capture : captures) {
    const bool mine = capture->thread == thread_id();
    if (mine ? capture->mode == 2 : thread_mode != 0 || capture->mode != 0) continue;
    capture->invalid = true;
    return 900;
  }
  return 0;
}

Node* add_node(Stream* stream, const Op& op) {
  static uint64_t next = 1;
  auto* node = new Node;
  node->op = op;
  node->deps = stream->deps;
  node->stream = stream->id;
  node->id = next++;
  for (const auto* dep : node->deps) node->end = std::max(node->end, dep->end);
  node->end += op.dur;
  stream->capture->graph->nodes.push_back(node);
  stream->deps = {node};
  return node;
}
int begin_capture(Stream* stream, int mode) {
  static uint64_t next = 1;
  Lock lock(mutex);
  if (stream->legacy) return 900;
  if (stream->capture) return 1;
  auto* graph = new Graph{next, {}, 0, 1};
  stream->capture = new Capture{next++, mode, graph, stream, thread_id(), {stream}};
  stream->deps.clear();
  captures.push_back(stream->capture);
  return 0;
}
static bool all_joined(const Capture& capture) {  // every branch must lead to the origin
  std::set<Node*> joined;
  std::vector<Node*> todo = capture.origin->deps;
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    if (joined.insert(node).second) todo.insert(todo.end(), node->deps.begin(), node->deps.end());
  }
  for (const auto* stream : capture.streams)
    for (auto* node : stream->deps)
      if (!joined.count(node)) return false;
  return true;
}
int end_capture(Stream* stream, Graph** graph) {
  Lock lock(mutex);
  Capture* capture = stream->capture;
  *graph = nullptr;
  if (!capture) return 1;
  if (capture->origin != stream) return 903;
  const int error = capture->invalid ? 901 : all_joined(*capture) ? 0 : 904;
  for (auto* member : capture->streams) {
    member->capture = nullptr;
    member->deps.clear();
  }
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  if (error) return error;
  for (const auto* node : capture->graph->nodes) capture->graph->dur = std::max(capture->graph->dur, node->end);
  *graph = capture->graph;
  return 0;
}
int launch_graph(Graph* graph, Stream* stream) {
  if (int error = sticky()) return error;
  if (stream->capture) {
    Op op;
    op.kind = KERNEL;
    op.name = "child graph";
    op.dur = graph->dur;
    return launch(stream, op);
  }
  wait_for_slot(stream);
  static const ns fixed = (ns)(knob("GRAPH_US", 0) * 1e3);
  Lock lock(mutex);
  const int device = stream->device;
  const ns start = start_on(stream, now()) + fixed;
  stream->ready = start + at_clock(device, graph->dur);
  stream->pending.push_back(stream->ready);
  count_busy(physical(device), start, stream->ready);
  for (const auto* node : graph->nodes) {
    const ns end = start + at_clock(device, node->end), begin = end - at_clock(device, node->op.dur);
    perform(node->op);
    if (node->op.kind == HOST) call_later(end, node->op.fn, node->op.arg);
    if (node->op.kind == KERNEL) count_kernel(end - begin);
    if (node->op.kind == EVENT_RECORD) {
      node->op.event->recorded = true;
      node->op.event->capture = nullptr;
      node->op.event->t = end;
    }
    trace(node->op, begin, end, stream, node->id, (uint32_t)graph->id);
    note_work(node->op, begin, end, stream);
  }
  strike(stream);
  return 0;
}
void drop_graph(Graph* graph) {
  Lock lock(mutex);
  if (--graph->refs) return;
  for (auto* node : graph->nodes) delete node;
  delete graph;
}
}  // namespace sim
