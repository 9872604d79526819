// libcuda.so.1: the driver calls of libtorch's lazy table, of libcaffe2_nvrtc, and of triton.
#include <cuda.h>
#include <cupti_driver_cbid.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "sim.h"
#undef cuDeviceTotalMem
#define API extern "C" __attribute__((visibility("default")))
#define R(x) static_cast<CUresult>(x)
#define ALIVE \
  if (int e_ = sim::sticky()) return R(e_)
extern "C" int simgpu_attribute(int* v, int a, int d);
struct Ctx {
  int dev;
};
static Ctx ctxs[16];
static thread_local CUcontext now_ctx = nullptr;
static CUcontext ctx_of(int d) {
  ctxs[d].dev = d;
  return (CUcontext)&ctxs[d];
}

API CUresult cuInit(unsigned) {
  if (!sim::devices()) return R(100);
  return R(sim::init());
}
#define INITED \
  if (!sim::initialised()) return R(3)
API CUresult cuDriverGetVersion(int* v) {
  *v = (int)sim::knob("DRIVER", 13000);
  return R(0);
}
API CUresult cuDeviceGetCount(int* n) {
  INITED;
  if (int e = sim::init()) return R(e);
  *n = sim::devices();
  return R(0);
}
API CUresult cuDeviceGet(CUdevice* d, int i) {
  INITED;
  if (i < 0 || i >= sim::devices()) return R(101);
  *d = i;
  return R(0);
}
API CUresult cuDeviceGetName(char* s, int n, CUdevice) {
  snprintf(s, n, "%s", sim::device_name());
  return R(0);
}
API CUresult cuDeviceTotalMem_v2(size_t* n, CUdevice) {
  *n = sim::capacity();
  return R(0);
}
API CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) { return R(simgpu_attribute(v, a, d)); }
API CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) {
  sim::uuid_of(d, (unsigned char*)u->bytes);
  return R(0);
}
API CUresult cuDeviceGetPCIBusId(char* s, int n, CUdevice d) {
  snprintf(s, n, "0000:%02X:00.0", sim::pci_bus_of(d));
  return R(0);
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) {
  *c = ctx_of(d);
  return R(0);
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return R(0); }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return R(0);
}
API CUresult cuCtxGetCurrent(CUcontext* c) {
  *c = ctx_of(sim::current());
  return R(0);
}
API CUresult cuCtxSetCurrent(CUcontext c) {
  if (c) sim::current() = ((Ctx*)c)->dev;
  now_ctx = c;
  return R(0);
}
API CUresult cuCtxPushCurrent_v2(CUcontext c) { return cuCtxSetCurrent(c); }
API CUresult cuCtxPopCurrent_v2(CUcontext* c) {
  if (c) *c = ctx_of(sim::current());
  return R(0);
}
API CUresult cuCtxGetDevice(CUdevice* d) {
  *d = sim::current();
  return R(0);
}
API CUresult cuCtxSynchronize() { return R(sim::sync_device()); }
API CUresult cuCtxGetLimit(size_t* v, CUlimit) {
  *v = 1 << 20;
  return R(0);
}
API CUresult cuCtxSetLimit(CUlimit, size_t) { return R(0); }
API CUresult cuGetErrorString(CUresult e, const char** s) {
  static void* h = dlopen(CUDA_VERSION >= 13000 ? "libcudart.so.13" : "libcudart.so.12", RTLD_NOW);
  auto f = h ? (const char* (*)(int))dlsym(h, "cudaGetErrorString") : nullptr;
  *s = f ? f(e) : "error";
  return R(0);
}
API CUresult cuGetErrorName(CUresult e, const char** s) {
  static thread_local char b[32];
  snprintf(b, sizeof b, "CUDA_ERROR_%d", (int)e);
  *s = b;
  return R(0);
}

// ---- modules: any image is taken; the function's name is all that counts
API CUresult cuModuleLoadData(CUmodule* m, const void*) {
  ALIVE;
  *m = (CUmodule) new std::map<std::string, sim::Func*>;
  return R(0);
}
API CUresult cuModuleLoadDataEx(CUmodule* m, const void* p, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(m, p);
}
API CUresult cuModuleLoad(CUmodule* m, const char*) { return cuModuleLoadData(m, nullptr); }
API CUresult cuModuleUnload(CUmodule) { return R(0); }
API CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* n) {
  auto& t = *(std::map<std::string, sim::Func*>*)m;
  auto*& x = t[n];
  if (!x) {
    x = new sim::Func;
    x->name = n;
  }
  *f = (CUfunction)x;
  return R(0);
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr* p, size_t* n, CUmodule, const char*) {
  if (p) *p = 0;
  if (n) *n = 0;
  return R(500);
}
API CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
  switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *v = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *v = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *v = ((sim::Func*)f)->max_shared; break;
    default: *v = 0;
  }
  return R(0);
}
API CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) ((sim::Func*)f)->max_shared = v;
  return R(0);
}
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return R(0); }
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction, int block, size_t) {
  *n = std::max(1, std::min(32, block > 0 ? 2048 / block : 32));
  return R(0);
}
API CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) {
  *n = 16;
  return R(0);
}
static int run(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sm,
               CUstream s) {
  auto* k = (sim::Func*)f;
  sim::Op op;
  op.kind = sim::KERNEL;
  op.name = k->name.c_str();
  op.dur = sim::kernel_ns(k);
  op.grid[0] = gx;
  op.grid[1] = gy;
  op.grid[2] = gz;
  op.block[0] = bx;
  op.block[1] = by;
  op.block[2] = bz;
  op.shared = sm;
  return sim::launch(sim::stream(s), op);
}
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned sm, CUstream s, void**, void**) {
  sim::Call c("cuLaunchKernel", CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, true);
  ALIVE;
  return R(run(f, gx, gy, gz, bx, by, bz, sm, s));
}
API CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                       unsigned bz, unsigned sm, CUstream s, void**) {
  ALIVE;
  return R(run(f, gx, gy, gz, bx, by, bz, sm, s));
}
API CUresult cuLaunchKernelEx(const CUlaunchConfig* g, CUfunction f, void**, void**) {
  sim::Call c("cuLaunchKernelEx", CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, true);
  ALIVE;
  return R(run(f, g->gridDimX, g->gridDimY, g->gridDimZ, g->blockDimX, g->blockDimY, g->blockDimZ, g->sharedMemBytes,
               g->hStream));
}
API CUresult cuTensorMapEncodeTiled(CUtensorMap* m, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                    const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  memset(m, 0, sizeof *m);
  return R(0);
}

// ---- memory
API CUresult cuMemGetInfo_v2(size_t* f, size_t* t) {
  sim::info(f, t);
  return R(0);
}
API CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  void* q;
  int e = sim::alloc(&q, n);
  *p = (CUdeviceptr)q;
  return R(e);
}
API CUresult cuMemFree_v2(CUdeviceptr p) { return R(sim::release((void*)p)); }
API CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) {
  return R(sim::set((void*)p, (int)v, 4, n, sim::stream(s)));
}
API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  return R(sim::set((void*)p, v, 1, n, sim::stream(s)));
}
API CUresult cuMemcpyAsync(CUdeviceptr d, CUdeviceptr a, size_t n, CUstream s) {
  return R(sim::copy((void*)d, (void*)a, n, sim::stream(s), false));
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void* a, size_t n) {
  return R(sim::copy((void*)d, a, n, sim::stream(nullptr), true));
}
API CUresult cuMemcpyDtoH_v2(void* d, CUdeviceptr a, size_t n) {
  return R(sim::copy(d, (void*)a, n, sim::stream(nullptr), true));
}
API CUresult cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
  int d = 0;
  void* base = nullptr;
  size_t n = 0;
  auto w = sim::where((void*)p, &d, &base, &n);
  if (w == sim::UNKNOWN) return R(1);
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)v = ctx_of(d); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned*)v = w == sim::DEVICE ? 2 : 1; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)v = p; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)v = d; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr*)v = (CUdeviceptr)base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t*)v = n; break;
    default: *(int*)v = 0;
  }
  return R(0);
}
// virtual memory management, for expandable segments: the addresses are real at once, only the count of bytes follows
// the handles
struct Phys {
  size_t n;
  int dev;
  int refs;
};
static std::mutex mu;
static std::map<CUdeviceptr, std::pair<size_t, Phys*>> maps;
API CUresult cuMemGetAllocationGranularity(size_t* n, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *n = 2 << 20;
  return R(0);
}
API CUresult cuMemAddressReserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr, unsigned long long) {
  void* q = sim::reserve(n);
  if (!q) return R(2);
  *p = (CUdeviceptr)q;
  return R(0);
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  munmap((void*)p, n);
  return R(0);
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* prop,
                         unsigned long long) {
  if (!sim::charge(prop->location.id, (int64_t)n)) return R(2);
  *h = (CUmemGenericAllocationHandle) new Phys{n, prop->location.id, 1};
  return R(0);
}
static void drop(Phys* p) {
  if (--p->refs == 0) {
    sim::charge(p->dev, -(int64_t)p->n);
    delete p;
  }
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  std::lock_guard<std::mutex> l(mu);
  drop((Phys*)h);
  return R(0);
}
API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t, CUmemGenericAllocationHandle h, unsigned long long) {
  std::lock_guard<std::mutex> l(mu);
  auto* x = (Phys*)h;
  x->refs++;
  maps[p] = {n, x};
  sim::add_range((void*)p, n, x->dev);
  return R(0);
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  std::lock_guard<std::mutex> l(mu);
  for (auto i = maps.lower_bound(p); i != maps.end() && i->first < p + n;) {
    sim::drop_range((void*)i->first);
    madvise((void*)i->first, i->second.first, MADV_DONTNEED);
    drop(i->second.second);
    i = maps.erase(i);
  }
  return R(0);
}
API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return R(0); }
API CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                          unsigned long long) {
  return R(801);
}
API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) {
  return R(801);
}
API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* h, void* a) {
  std::lock_guard<std::mutex> l(mu);
  auto i = maps.find((CUdeviceptr)a);
  if (i == maps.end()) return R(1);
  i->second.second->refs++;
  *h = (CUmemGenericAllocationHandle)i->second.second;
  return R(0);
}
API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* p, CUmemGenericAllocationHandle h) {
  memset(p, 0, sizeof *p);
  p->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p->location.id = ((Phys*)h)->dev;
  return R(0);
}

// ---- streams and events share the runtime's objects
API CUresult cuStreamCreate(CUstream* s, unsigned f) {
  *s = (CUstream)sim::new_stream(f, 0);
  return R(0);
}
API CUresult cuStreamDestroy_v2(CUstream s) {
  sim::drop_stream(sim::stream(s));
  return R(0);
}
API CUresult cuStreamSynchronize(CUstream s) { return R(sim::sync_stream(sim::stream(s))); }
API CUresult cuStreamQuery(CUstream s) { return R(sim::idle(sim::stream(s)) ? 0 : 600); }
API CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
  return R(sim::wait_event(sim::stream(s), (sim::Event*)e, false));
}
API CUresult cuStreamIsCapturing(CUstream s, CUstreamCaptureStatus* st) {
  *st = sim::stream(s)->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return R(0);
}
// The name without a version, by which a torch of CUDA 12 asks; headers turn it into the one below.
API CUresult write_value_32(CUstream, CUdeviceptr, cuuint32_t, unsigned) __asm__("cuStreamWriteValue32");
CUresult write_value_32(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned flags) {
  return cuStreamWriteValue32_v2(s, p, v, flags);
}
API CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr p, cuuint32_t v, unsigned) {
  sim::Op op;
  op.kind = sim::SET;
  op.dur = 1000;
  op.dst = (void*)p;
  op.value = (int)v;
  op.bytes = 4;
  op.name = "write value";
  return R(sim::launch(sim::stream(s), op));
}
API CUresult cuEventCreate(CUevent* e, unsigned f) {
  auto* v = new sim::Event;
  v->flags = f;
  *e = (CUevent)v;
  return R(0);
}
API CUresult cuEventDestroy_v2(CUevent e) {
  delete (sim::Event*)e;
  return R(0);
}
API CUresult cuEventRecord(CUevent e, CUstream s) { return R(sim::record((sim::Event*)e, sim::stream(s), false)); }
API CUresult cuEventSynchronize(CUevent e) { return R(sim::sync_event((sim::Event*)e)); }
API CUresult cuEventQuery(CUevent e) {
  auto* v = (sim::Event*)e;
  return R(v->recorded && v->t > sim::now() ? 600 : 0);
}
API CUresult cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) {
  *ms = (float)((((sim::Event*)b)->t - ((sim::Event*)a)->t) * 1e-6);
  return R(0);
}

API CUresult cuGetProcAddress_v2(const char* n, void** f, int, cuuint64_t, CUdriverProcAddressQueryResult* r) {
  static void* h = dlopen("libcuda.so.1", RTLD_NOW);
  *f = nullptr;
  for (const char* s : {"_v4", "_v3", "_v2", ""})
    if ((*f = dlsym(h, (std::string(n) + s).c_str()))) break;
  if (r) *r = *f ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return R(*f ? 0 : 500);
}
