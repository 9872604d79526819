// libcublas and libcublasLt: matrix products are launches of 2 m n k floating-point operations.
#include <cstdint>
#include <cstring>

#include "sim.h"
#define API extern "C" __attribute__((visibility("default")))
struct H {
  sim::Stream* s = nullptr;
  int math = 0, pointer = 0;
  sim::Stream* stream() { return s ? s : sim::stream(nullptr); }
};
// the call that CUPTI sees under a product is the launch of its kernel (cbid 211: cudaLaunchKernel)
static int product(sim::Stream* s, const char* name, double m, double n, double k, double b, int type) {
  sim::Call c("cudaLaunchKernel", 211);
  return sim::gemm(s, name, m, n, k, b, type);
}
static int st(int e) {
  sim::fail(e);
  return e ? 13 : 0;
}  // CUBLAS_STATUS_EXECUTION_FAILED
static int tf(H* h, int type, int compute = 0) {
  return type == 0 && ((h->math & 3) == 3 || compute == 77) ? -1 : type;
}

API int cublasCreate_v2(H** h) {
  if (sim::sticky()) return 1;
  *h = new H;
  return 0;
}
API int cublasDestroy_v2(H* h) {
  delete h;
  return 0;
}
API int cublasSetStream_v2(H* h, void* s) {
  h->s = sim::stream(s);
  return 0;
}
API int cublasGetStream_v2(H* h, void** s) {
  *s = h->s;
  return 0;
}
API int cublasSetWorkspace_v2(H*, void*, size_t) { return 0; }
API int cublasSetMathMode(H* h, int m) {
  h->math = m;
  return 0;
}
API int cublasGetMathMode(H* h, int* m) {
  *m = h->math;
  return 0;
}
API int cublasSetPointerMode_v2(H* h, int m) {
  h->pointer = m;
  return 0;
}
API int cublasGetPointerMode_v2(H* h, int* m) {
  *m = h->pointer;
  return 0;
}
API int cublasGetVersion_v2(H*, int* v) {
  *v = 130100;
  return 0;
}

#define GEMM(X, T)                                                                                                     \
  API int cublas##X##gemm_v2(H* h, int, int, int m, int n, int k, const void*, const void*, int, const void*, int,     \
                             const void*, void*, int) {                                                                \
    return st(product(h->stream(), "cublas" #X "gemm", m, n, k, 1, tf(h, T)));                                         \
  }                                                                                                                    \
  API int cublas##X##gemmBatched(H* h, int, int, int m, int n, int k, const void*, const void*, int, const void*, int, \
                                 const void*, void*, int, int b) {                                                     \
    return st(product(h->stream(), "cublas" #X "gemmBatched", m, n, k, b, tf(h, T)));                                  \
  }                                                                                                                    \
  API int cublas##X##gemmStridedBatched(H* h, int, int, int m, int n, int k, const void*, const void*, int, long long, \
                                        const void*, int, long long, const void*, void*, int, long long, int b) {      \
    return st(product(h->stream(), "cublas" #X "gemmStridedBatched", m, n, k, b, tf(h, T)));                           \
  }
GEMM(S, 0) GEMM(D, 1) GEMM(C, 0) GEMM(Z, 1) static const char* named(int type) {
  return type == 0    ? "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n"
         : type == 14 ? "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
         : type == 2  ? "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n"
                      : "sm90_xmma_gemm_e4m3";
}
API int cublasSgemmEx(H* h, int, int, int m, int n, int k, const void*, const void*, int ta, int, const void*, int, int,
                      const void*, void*, int, int) {
  return st(product(h->stream(), named(ta), m, n, k, 1, tf(h, ta)));
}
API int cublasGemmEx(H* h, int, int, int m, int n, int k, const void*, const void*, int ta, int, const void*, int, int,
                     const void*, void*, int, int, int c, int) {
  return st(product(h->stream(), named(ta), m, n, k, 1, tf(h, ta, c)));
}
API int cublasGemmStridedBatchedEx(H* h, int, int, int m, int n, int k, const void*, const void*, int ta, int,
                                   long long, const void*, int, int, long long, const void*, void*, int, int, long long,
                                   int b, int c, int) {
  return st(product(h->stream(), named(ta), m, n, k, b, tf(h, ta, c)));
}

struct Desc {
  int compute, scale, ta = 0, tb = 0;
};
struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  int batch = 1;
};
API size_t cublasLtGetVersion() { return 130100; }
API int cublasLtCreate(void** h) {
  *h = new H;
  return 0;
}
API int cublasLtDestroy(void*) { return 0; }
API int cublasLtMatmulDescCreate(Desc** d, int c, int s) {
  *d = new Desc{c, s};
  return 0;
}
API int cublasLtMatmulDescDestroy(Desc* d) {
  delete d;
  return 0;
}
API int cublasLtMatmulDescSetAttribute(Desc* d, int a, const void* v, size_t) {
  if (a == 3) d->ta = *(const int*)v;
  if (a == 4) d->tb = *(const int*)v;
  return 0;
}
API int cublasLtMatrixLayoutCreate(Layout** l, int t, uint64_t r, uint64_t c, int64_t ld) {
  *l = new Layout{t, r, c, ld};
  return 0;
}
API int cublasLtMatrixLayoutDestroy(Layout* l) {
  delete l;
  return 0;
}
API int cublasLtMatrixLayoutSetAttribute(Layout* l, int a, const void* v, size_t) {
  if (a == 5) l->batch = *(const int*)v;
  return 0;
}
API int cublasLtMatmulPreferenceCreate(void** p) {
  *p = new int;
  return 0;
}
API int cublasLtMatmulPreferenceDestroy(void* p) {
  delete (int*)p;
  return 0;
}
API int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
struct Result {
  uint64_t algo[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
API int cublasLtMatmulAlgoGetHeuristic(void*, Desc*, Layout*, Layout*, Layout*, Layout*, void*, int want, Result* r,
                                       int* got) {
  if (want > 0) {
    memset(r, 0, sizeof *r);
    r->waves = 1;
    *got = 1;
  } else *got = 0;
  return 0;
}
API int cublasLtMatmul(void*, Desc* d, const void*, const void*, Layout* a, const void*, Layout*, const void*,
                       const void*, Layout*, void*, Layout* o, const void*, void*, size_t, void* s) {
  return st(product(sim::stream(s), named(a->type), (double)o->rows, (double)o->cols,
                    (double)(d->ta ? a->rows : a->cols), o->batch, a->type == 0 && d->compute == 77 ? -1 : a->type));
}
