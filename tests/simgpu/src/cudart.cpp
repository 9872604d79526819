// libcudart: the runtime calls that libtorch makes. Anything else that it names is a generated stub.
#define CUDARTAPI_CDECL
#include <cuda_runtime_api.h>
#include <cupti_runtime_cbid.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim.h"

#define API extern "C" __attribute__((visibility("default")))
#define CBID(n) CUPTI_RUNTIME_TRACE_CBID_##n
#define E(x) static_cast<cudaError_t>(sim::fail(x))
#define ALIVE \
  if (int e_ = sim::sticky()) return E(e_)
#define SAFE \
  if (int e_ = sim::unsafe()) return E(e_)
#define CALL(n, v) sim::Call call_(#n, CBID(n##_##v))
using sim::Event;
using sim::Func;
using sim::Graph;

static std::mutex mu;
static std::unordered_map<const void*, Func*>& funcs() {
  static auto* m = new std::unordered_map<const void*, Func*>;
  return *m;
}
struct Var {
  void* device;
  size_t size;
  std::string name;
};
static std::unordered_map<const void*, Var>& vars() {
  static auto* m = new std::unordered_map<const void*, Var>;
  return *m;
}
static Func* func(const void* host) {
  std::lock_guard<std::mutex> l(mu);
  auto i = funcs().find(host);
  if (i != funcs().end()) return i->second;
  auto* f = new Func;
  Dl_info d;
  f->name = dladdr(host, &d) && d.dli_sname ? d.dli_sname : "unknown_kernel";
  return funcs()[host] = f;
}

// ---- registration of kernels, by static initialisers of libtorch_cuda
static void* fat_handles[2];
API void** __cudaRegisterFatBinary(void*) { return fat_handles; }
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 1; }
API void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                                int*) {
  std::lock_guard<std::mutex> l(mu);
  auto*& f = funcs()[host];
  if (!f) {
    f = new Func;
    }
  f->name = name;
}
API void __cudaRegisterVar(void**, char* host, char*, const char* name, int, size_t size, int, int) {
  std::lock_guard<std::mutex> l(mu);
  vars()[host] = {nullptr, size, name};
}
API void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
struct Config {
  dim3 g, b;
  size_t sm;
  cudaStream_t s;
};
static thread_local std::vector<Config> configs;
API unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t sm, cudaStream_t s) {
  configs.push_back({g, b, sm, s});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* sm, void* s) {
  if (configs.empty()) return E(9);
  auto c = configs.back();
  configs.pop_back();
  *g = c.g;
  *b = c.b;
  *sm = c.sm;
  *(cudaStream_t*)s = c.s;
  return cudaSuccess;
}
static int run(Func* f, dim3 g, dim3 b, size_t sm, cudaStream_t s) {
  if ((size_t)b.x * b.y * b.z > 1024 || !g.x || !g.y || !g.z || !b.x) return 9;
  sim::Op op;
  op.kind = sim::KERNEL;
  op.name = f->name.c_str();
  op.dur = sim::kernel_ns(f);
  op.grid[0] = g.x;
  op.grid[1] = g.y;
  op.grid[2] = g.z;
  op.block[0] = b.x;
  op.block[1] = b.y;
  op.block[2] = b.z;
  op.shared = sm;
  return sim::launch(sim::stream(s), op);
}
API cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* host) {
  *k = (cudaKernel_t)func(host);
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void**, size_t sm, cudaStream_t s) {
  CALL(cudaLaunchKernel, v7000);
  return E(run((Func*)k, g, b, sm, s));
}
API cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void**, size_t sm, cudaStream_t s) {
  CALL(cudaLaunchKernel, v7000);
  return E(run(func(f), g, b, sm, s));
}
API cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 g, dim3 b, void**, size_t sm, cudaStream_t s) {
  CALL(cudaLaunchCooperativeKernel, v9000);
  return E(run(func(f), g, b, sm, s));
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void**) {
  CALL(cudaLaunchKernelExC, v11060);
  return E(run(func(f), c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream));
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void* f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = 90;
  a->binaryVersion = 90;
  a->maxDynamicSharedSizeBytes = func(f)->max_shared;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void* f, cudaFuncAttribute a, int v) {
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (v > 232448) return E(1);
    func(f)->max_shared = v;
  }
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int block, size_t sm) {
  int t = block > 0 ? 2048 / block : 32;
  int s = sm ? (int)(233472 / (sm + 1024)) : 32;
  *n = std::max(1, std::min(32, std::min(t, s)));
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void* f, int block, size_t sm,
                                                                       unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n, f, block, sm);
}
API cudaError_t cudaGetSymbolAddress(void** p, const void* s) {
  std::lock_guard<std::mutex> l(mu);
  auto i = vars().find(s);
  if (i == vars().end()) return E(13);
  if (!i->second.device) sim::alloc(&i->second.device, i->second.size);
  *p = i->second.device;
  return cudaSuccess;
}
API cudaError_t cudaMemcpyToSymbol(const void* s, const void* src, size_t n, size_t off, cudaMemcpyKind) {
  void* p;
  if (auto e = cudaGetSymbolAddress(&p, s)) return e;
  return E(sim::copy((char*)p + off, src, n, sim::stream(nullptr), true));
}

// ---- devices
static bool bad(int d) { return d < 0 || d >= sim::devices(); }
API cudaError_t cudaGetDeviceCount(int* n) {
  *n = 0;
  if (int e = sim::init()) return E(e);
  *n = sim::devices();
  return *n ? cudaSuccess : E(100);
}
API cudaError_t cudaGetDevice(int* d) {
  if (int e = sim::init()) return E(e);
  if (!sim::devices()) return E(100);
  *d = sim::current();
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int d) {
  if (bad(d)) return E(101);
  sim::current() = d;
  return E(sim::sticky());
}
API cudaError_t cudaDriverGetVersion(int* v) {
  *v = (int)sim::knob("DRIVER", 13000);
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
  if (bad(d)) return E(101);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", sim::device_name());
  sim::uuid_of(d, (unsigned char*)p->uuid.bytes);
  p->totalGlobalMem = sim::capacity();
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->minor = 0;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = 132;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->pciBusID = sim::pci_bus_of(d);
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 52428800;
  p->maxThreadsPerMultiProcessor = 2048;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->managedMemory = 1;
  p->hostNativeAtomicSupported = 0;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = 232448;
  p->maxBlocksPerMultiProcessor = 32;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = 1;
  p->clusterLaunch = 1;
  p->unifiedFunctionPointers = 1;
  return cudaSuccess;
}
extern "C" int simgpu_attribute(int* v, int a,
                                int d);  // shared with libcuda: the numbers of the two enumerations agree
API cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
  if (bad(d)) return E(101);
  return E(simgpu_attribute(v, a, d));
}
API cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int d) {
  if (bad(d)) return E(101);
  snprintf(s, n, "0000:%02X:00.0", sim::pci_bus_of(d));
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* v, int a, int b) {
  *v = a != b;
  return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int* lo, int* hi) {
  if (lo) *lo = 0;
  if (hi) *hi = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceSynchronize() {
  CALL(cudaDeviceSynchronize, v3020);
  ALIVE;
  SAFE;
  return E(sim::sync_device());
}
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- errors
struct Text {
  int code;
  const char *name, *text;
};
static const Text texts[] = {
#include "errors.inc"
};
static const Text* text(int c) {
  for (auto& t : texts)
    if (t.code == c) return &t;
  return nullptr;
}
API const char* cudaGetErrorName(cudaError_t e) {
  auto* t = text(e);
  return t ? t->name : "unrecognized error code";
}
API const char* cudaGetErrorString(cudaError_t e) {
  auto* t = text(e);
  return t ? t->text : "unrecognized error code";
}
API cudaError_t cudaGetLastError() {
  int e = sim::last_error();
  sim::last_error() = 0;
  return (cudaError_t)(sim::sticky() ? sim::sticky() : e);
}
API cudaError_t cudaPeekAtLastError() {
  int e = sim::last_error();
  return (cudaError_t)(sim::sticky() ? sim::sticky() : e);
}

// ---- memory
API cudaError_t cudaMalloc(void** p, size_t n) {
  CALL(cudaMalloc, v3020);
  ALIVE;
  SAFE;
  return E(sim::alloc(p, n));
}
API cudaError_t cudaFree(void* p) {
  CALL(cudaFree, v3020);
  ALIVE;
  SAFE;
  return E(sim::release(p));
}
API cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) {
  ALIVE;
  return E(sim::alloc(p, n));
}
API cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  ALIVE;
  sim::sync_stream(sim::stream(s));
  return E(sim::release(p));
}
API cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  ALIVE;
  sim::info(f, t);
  return cudaSuccess;
}
API cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  CALL(cudaHostAlloc, v3020);
  ALIVE;
  SAFE;
  return E(sim::alloc_host(p, n));
}
API cudaError_t cudaMallocHost(void** p, size_t n) {
  ALIVE;
  return E(sim::alloc_host(p, n));
}
API cudaError_t cudaFreeHost(void* p) { return E(sim::release_host(p)); }
API cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
  sim::register_host(p, n);
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* p) {
  sim::unregister_host(p);
  return cudaSuccess;
}
API cudaError_t cudaHostGetDevicePointer(void** d, void* h, unsigned) {
  *d = h;
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
  CALL(cudaMemcpy, v3020);
  ALIVE;
  SAFE;
  return E(sim::copy(d, s, n, sim::stream(nullptr), true));
}
API cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t st) {
  CALL(cudaMemcpyAsync, v3020);
  ALIVE;
  return E(sim::copy(d, s, n, sim::stream(st), false));
}
API cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t st) {
  ALIVE;
  return E(sim::copy(d, s, n, sim::stream(st), false));
}
API cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, cudaMemcpyKind,
                                  cudaStream_t st) {
  ALIVE;
  for (size_t i = 0; i < h; i++) memcpy((char*)d + i * dp, (const char*)s + i * sp, w);
  return E(sim::copy(d, d, w * h, sim::stream(st), false));
}
API cudaError_t cudaMemset(void* p, int v, size_t n) {
  ALIVE;
  return E(sim::set(p, v, 1, n, sim::stream(nullptr)));
}
API cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) {
  CALL(cudaMemsetAsync, v3020);
  ALIVE;
  return E(sim::set(p, v, 1, n, sim::stream(s)));
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  int d = 0;
  auto w = sim::where(p, &d);
  if (w == sim::UNKNOWN) {
    a->type = cudaMemoryTypeUnregistered;
    a->device = -2;
    a->hostPointer = nullptr;
    return cudaSuccess;
  }
  a->type = w == sim::DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  a->device = d;
  a->devicePointer = (void*)p;
  a->hostPointer = w == sim::PINNED ? (void*)p : nullptr;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int d) {
  static char pools[16];
  *p = (cudaMemPool_t)&pools[d];
  return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return E(801); }
API cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return E(801); }
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return E(801); }
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return E(801); }

// ---- streams and events
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int p) {
  ALIVE;
  *s = (cudaStream_t)sim::new_stream(f, p);
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (s) sim::drop_stream(sim::stream(s));
  return cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = sim::stream(s)->priority;
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t s) {
  ALIVE;
  auto* t = sim::stream(s);
  if (t->capture) {
    t->capture->invalid = true;
    return E(900);
  }
  return sim::idle(t) ? cudaSuccess : cudaErrorNotReady;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  CALL(cudaStreamSynchronize, v3020);
  ALIVE;
  SAFE;
  return E(sim::sync_stream(sim::stream(s)));
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) {
  CALL(cudaStreamWaitEvent, v3020);
  ALIVE;
  return E(sim::wait_event(sim::stream(s), (Event*)e, f & 1));
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void* a) {
  ALIVE;
  sim::Op op;
  op.kind = sim::HOST;
  op.fn = fn;
  op.arg = a;
  return E(sim::launch(sim::stream(s), op));
}
struct Callback {
  cudaStreamCallback_t fn;
  cudaStream_t s;
  void* a;
};
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t fn, void* a, unsigned) {
  return cudaLaunchHostFunc(
      s,
      [](void* p) {
        auto* c = (Callback*)p;
        c->fn(c->s, cudaSuccess, c->a);
        delete c;
      },
      new Callback{fn, s, a});
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  ALIVE;
  auto* v = new Event;
  v->flags = f;
  v->device = sim::current();
  *e = (cudaEvent_t)v;
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete (Event*)e;
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) {
  CALL(cudaEventRecord, v3020);
  ALIVE;
  return E(sim::record((Event*)e, sim::stream(s), f & 1));
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  CALL(cudaEventRecord, v3020);
  ALIVE;
  return E(sim::record((Event*)e, sim::stream(s), false));
}
API cudaError_t cudaEventQuery(cudaEvent_t e) {
  CALL(cudaEventQuery, v3020);
  ALIVE;
  SAFE;
  auto* v = (Event*)e;
  if (v->capture) return E(907);
  return v->recorded && v->t > sim::now() ? cudaErrorNotReady : cudaSuccess;
}
API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  CALL(cudaEventSynchronize, v3020);
  ALIVE;
  SAFE;
  return E(sim::sync_event((Event*)e));
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  ALIVE;
  auto *x = (Event*)a, *y = (Event*)b;
  if (!x->recorded || !y->recorded || ((x->flags | y->flags) & 2)) return E(400);
  if (x->capture || y->capture) return E(907);
  if (x->t > sim::now() || y->t > sim::now()) return cudaErrorNotReady;
  *ms = (float)((y->t - x->t) * 1e-6);
  return cudaSuccess;
}

// ---- graphs
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode m) {
  ALIVE;
  return E(sim::begin_capture(sim::stream(s), m));
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  ALIVE;
  return E(sim::end_capture(sim::stream(s), (Graph**)g));
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* st) {
  auto* t = sim::stream(s);
  *st = !t->capture           ? cudaStreamCaptureStatusNone
        : t->capture->invalid ? cudaStreamCaptureStatusInvalidated
                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* st, unsigned long long* id,
                                         cudaGraph_t* g, const cudaGraphNode_t** deps, const cudaGraphEdgeData** edges,
                                         size_t* n) {
  if (edges) *edges = nullptr;
#else
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* st, unsigned long long* id,
                                         cudaGraph_t* g, const cudaGraphNode_t** deps, size_t* n) {
#endif
  auto* t = sim::stream(s);
  cudaStreamIsCapturing(s, st);
  if (!t->capture) return cudaSuccess;
  if (id) *id = t->capture->id;
  if (g) *g = (cudaGraph_t)t->capture->graph;
  if (deps) *deps = (const cudaGraphNode_t*)t->deps.data();
  if (n) *n = t->deps.size();
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
  *m = (cudaStreamCaptureMode)sim::exchange_mode(*m);
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* x, cudaGraph_t g, unsigned long long) {
  ((Graph*)g)->refs++;
  *x = (cudaGraphExec_t)g;
  return cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) {
  CALL(cudaGraphLaunch, v10000);
  ALIVE;
  return E(sim::launch_graph((Graph*)x, sim::stream(s)));
}
API cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  sim::drop_graph((Graph*)g);
  return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) {
  sim::drop_graph((Graph*)x);
  return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* out, size_t* n) {
  auto& v = ((Graph*)g)->nodes;
  if (out)
    for (size_t i = 0; i < *n && i < v.size(); i++) out[i] = (cudaGraphNode_t)v[i];
  *n = v.size();
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t k, cudaGraphNode_t* out, cudaGraphEdgeData*, size_t* n) {
#else
API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t k, cudaGraphNode_t* out, size_t* n) {
#endif
  auto& v = ((sim::Node*)k)->deps;
  if (out)
    for (size_t i = 0; i < *n && i < v.size(); i++) out[i] = (cudaGraphNode_t)v[i];
  *n = v.size();
  return cudaSuccess;
}
API cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

// ---- the driver's entry points
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** f, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* r) {
  static void* h = dlopen("libcuda.so.1", RTLD_NOW);
  *f = nullptr;
  if (h)
    for (const char* suffix : {"_v4", "_v3", "_v2", ""})
      if ((*f = dlsym(h, (std::string(name) + suffix).c_str()))) break;
  if (r) *r = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPoint(const char* n, void** f, unsigned long long fl,
                                        cudaDriverEntryPointQueryResult* r) {
  return cudaGetDriverEntryPointByVersion(n, f, 13000, fl, r);
}
