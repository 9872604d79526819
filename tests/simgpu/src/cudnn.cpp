// libcudnn.so.9: the version, and a backend interface that finds one engine for every graph; an execution is one
// launch. By default its version is 0, so that torch's attention does without: some graphs want more of an engine.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sim.h"
#define API extern "C" __attribute__((visibility("default")))
// SDPA prefers it to flash from 91500 on where the compute capability is 9.0. Python reads cudnnGetProperty.
API size_t cudnnGetVersion() { return (size_t)sim::knob("CUDNN", 0); }
API size_t cudnnGetCudartVersion() { return 13000; }
API int cudnnGetProperty(int which, int* v) {
  *v = which == 0 ? 9 : which == 1 ? 19 : 0;
  return 0;
}
API const char* cudnnGetErrorString(int) { return "simulated"; }
API void cudnnGetLastErrorString(char* s, size_t n) {
  if (n) s[0] = 0;
}
struct Handle {
  void* stream;
};
API int cudnnCreate(Handle** h) {
  *h = new Handle{nullptr};
  return 0;
}
API int cudnnDestroy(Handle* h) {
  delete h;
  return 0;
}
API int cudnnSetStream(Handle* h, void* s) {
  h->stream = s;
  return 0;
}
API int cudnnGetStream(Handle* h, void** s) {
  *s = h->stream;
  return 0;
}
API int cudnnBackendCreateDescriptor(int, void** d) {
  *d = new long[8]();
  return 0;
}
API int cudnnBackendInitialize(void*) { return 0; }
API int cudnnBackendFinalize(void*) { return 0; }
API int cudnnBackendDestroyDescriptor(void*) { return 0; }
API int cudnnBackendSetAttribute(void*, int, int, int64_t, const void*) { return 0; }
API int cudnnBackendGetAttribute(void*, int attr, int type, int64_t want, int64_t* got, void* out) {
  if (got) *got = attr >= 1302 && attr <= 1306 ? 0 : 1;  // an engine has no knobs and no notes
  if (out && want > 0 && type == 3)
    *(int64_t*)out = 0;  // CUDNN_TYPE_INT64: sizes and indices; descriptors stay as the caller made them
  return 0;
}
static int go(Handle* h) {
  static double us = sim::knob("CUDNN_US", 20);
  sim::Op op;
  op.kind = sim::KERNEL;
  op.name = "cudnn_generated_fort_native_sdpa_sm90";
  op.dur = (sim::ns)(us * 1e3);
  op.block[0] = 128;
  return sim::launch(sim::stream(h->stream), op) ? 5000 : 0;
}
API int cudnnBackendExecute(Handle* h, void*, void*) { return go(h); }
