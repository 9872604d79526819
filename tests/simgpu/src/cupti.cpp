// libcupti: the activity interface, as kineto uses it.
#include <cuda.h>
#include <cupti.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <set>

#include "sim.h"
#define API extern "C" __attribute__((visibility("default")))
#if CUDA_VERSION >= 13000
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
#endif
static std::mutex mu;
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_TimestampCallbackFunc stamp;
static std::set<int> kinds,
    wanted;  // enabled now; enabled at some time since the last flush (kineto disables before it flushes)
// The client's clock (kineto gives the TSC) against ours: two points, one when tracing starts and one at the flush.
static sim::ns n0;
static uint64_t c0;
static uint64_t other() { return stamp ? stamp() : (uint64_t)sim::now(); }
static std::mutex buf_mu;
static uint8_t* held = nullptr;
static size_t held_cap = 0;
static void take_buffer() {
  std::lock_guard<std::mutex> l(buf_mu);
  size_t max = 0;
  if (!held && request) request(&held, &held_cap, &max);
}
static void switched() {
  sim::on_call = take_buffer;
  bool on = !kinds.empty();
  if (on && !sim::tracing) {
    n0 = sim::now();
    c0 = other();
  }
  sim::tracing = on;
}
API CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r,
                                               CUpti_BuffersCallbackCompleteFunc c) {
  request = r;
  complete = c;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc f) {
  stamp = f;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiGetTimestamp(uint64_t* t) {
  *t = other();
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) {
  std::lock_guard<std::mutex> l(mu);
  kinds.insert(k);
  wanted.insert(k);
  switched();
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityDisable(CUpti_ActivityKind k) {
  std::lock_guard<std::mutex> l(mu);
  kinds.erase(k);
  sim::tracing = !kinds.empty();
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
API CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t) { return CUPTI_SUCCESS; }
API CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t) { return CUPTI_SUCCESS; }
API CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t*, void*) { return CUPTI_SUCCESS; }
API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* n) {
  *n = 0;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t id) {
  sim::push_external(k, id);
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind k, uint64_t* id) {
  return sim::pop_external(k, id) ? CUPTI_ERROR_QUEUE_EMPTY : CUPTI_SUCCESS;
}
API CUptiResult cuptiGetVersion(uint32_t* v) {
  *v = CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiGetResultString(CUptiResult, const char** s) {
  *s = "simulated CUPTI error";
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiFinalize() { return CUPTI_SUCCESS; }
API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* h, CUpti_CallbackFunc, void*) {
  static int x;
  *h = (CUpti_SubscriberHandle)&x;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
API CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) {
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) { return CUPTI_SUCCESS; }

static size_t size_of(int kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
  }
  return 0;
}
static int kind_of(const sim::Activity& a) {
  switch (a.kind) {
    case sim::KERNEL: return CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    case sim::COPY: return CUPTI_ACTIVITY_KIND_MEMCPY;
    case sim::SET: return CUPTI_ACTIVITY_KIND_MEMSET;
    case 100: return CUPTI_ACTIVITY_KIND_RUNTIME;
    case 101: return CUPTI_ACTIVITY_KIND_DRIVER;
    case 102: return CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
  }
  return 0;
}
static double slope;
static uint64_t at(sim::ns t) { return (uint64_t)((double)c0 + (double)(t - n0) * slope + 0.5); }
static void fill(uint8_t* p, const sim::Activity& a, int kind) {
  memset(p, 0, size_of(kind));
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      auto* r = (KernelRecord*)p;
      r->kind = (CUpti_ActivityKind)kind;
      r->start = at(a.start);
      r->end = r->completed = at(a.end);
      r->registersPerThread = 32;
      r->deviceId = a.device;
      r->contextId = 1;
      r->streamId = (uint32_t)a.stream;
      r->correlationId = a.correlation;
      r->gridId = a.correlation;
      r->gridX = a.op.grid[0];
      r->gridY = a.op.grid[1];
      r->gridZ = a.op.grid[2];
      r->blockX = a.op.block[0];
      r->blockY = a.op.block[1];
      r->blockZ = a.op.block[2];
      r->dynamicSharedMemory = a.op.shared;
      r->name = a.name;
      r->graphNodeId = a.graph_node;
      r->graphId = a.graph;
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      auto* r = (CopyRecord*)p;
      r->kind = (CUpti_ActivityKind)kind;
      r->copyKind = a.op.copy_kind;
      r->srcKind = a.op.copy_kind == 1 ? 1 : 3;
      r->dstKind = a.op.copy_kind == 2 ? 1 : 3;
      r->bytes = a.op.bytes;
      r->start = at(a.start);
      r->end = at(a.end);
      r->deviceId = a.device;
      r->contextId = 1;
      r->streamId = (uint32_t)a.stream;
      r->correlationId = a.correlation;
      r->graphNodeId = a.graph_node;
      r->graphId = a.graph;
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      auto* r = (CUpti_ActivityMemset4*)p;
      r->kind = (CUpti_ActivityKind)kind;
      r->value = a.op.value;
      r->bytes = a.op.bytes;
      r->start = at(a.start);
      r->end = at(a.end);
      r->deviceId = a.device;
      r->contextId = 1;
      r->streamId = (uint32_t)a.stream;
      r->correlationId = a.correlation;
      r->memoryKind = 3;
      r->graphNodeId = a.graph_node;
      r->graphId = a.graph;
      break;
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: {
      auto* r = (CUpti_ActivityAPI*)p;
      r->kind = (CUpti_ActivityKind)kind;
      r->cbid = a.cbid;
      r->start = at(a.start);
      r->end = at(a.end);
      r->processId = getpid();
      r->threadId = (uint32_t)a.thread;
      r->correlationId = a.correlation;
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      auto* r = (CUpti_ActivityExternalCorrelation*)p;
      r->kind = (CUpti_ActivityKind)kind;
      r->externalKind = (CUpti_ExternalCorrelationKind)a.external_kind;
      r->externalId = a.external_id;
      r->correlationId = a.correlation;
      break;
    }
  }
}
API CUptiResult cuptiActivityFlushAll(uint32_t) {
  if (!request) return CUPTI_SUCCESS;
  auto all = sim::take_activities();
  sim::ns n1 = sim::now();
  uint64_t c1 = other();
  slope = n1 > n0 ? (double)(c1 - c0) / (double)(n1 - n0) : 1;
  uint8_t* buf;
  size_t cap, max = 0, used = 0;
  {
    std::lock_guard<std::mutex> l(buf_mu);
    buf = held;
    cap = held_cap;
    held = nullptr;
  }
  for (auto& a : all) {
    int kind = kind_of(a);
    size_t n = size_of(kind);
    if (!n || (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
                   ? !wanted.count(kind) && !wanted.count(CUPTI_ACTIVITY_KIND_KERNEL)
                   : !wanted.count(kind)))
      continue;
    if (buf && used + n > cap) {
      complete(nullptr, 0, buf, cap, used);
      buf = nullptr;
    }
    if (!buf) {
      request(&buf, &cap, &max);
      used = 0;
      if (!buf) return CUPTI_SUCCESS;
    }
    fill(buf + used, a, kind);
    used += n;
  }
  if (buf) complete(nullptr, 0, buf, cap, used);
  wanted = kinds;
  return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityGetNextRecord(uint8_t* buf, size_t valid, CUpti_Activity** r) {
  uint8_t* p = *r ? (uint8_t*)*r + size_of((*r)->kind) : buf;
  if (p >= buf + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *r = (CUpti_Activity*)p;
  return CUPTI_SUCCESS;
}
