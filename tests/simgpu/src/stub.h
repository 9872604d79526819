/* Generated stubs say success; SIMGPU_LOG=1 names each once on stderr when it is first called. */
#include <stdio.h>
#include <stdlib.h>
static void simgpu_said(const char* n, int* once) {
  if (!*once) {
    *once = 1;
    if (getenv("SIMGPU_LOG")) fprintf(stderr, "simgpu stub: %s\n", n);
  }
}
static long simgpu_dummy[64];
#define STUB(n)             \
  long n(void) {            \
    static int once;        \
    simgpu_said(#n, &once); \
    return 0;               \
  }
#define CREATE(n)             \
  long n(void** a) {          \
    static int once;          \
    simgpu_said(#n, &once);   \
    if (a) *a = simgpu_dummy; \
    return 0;                 \
  }
#define CREATE1(n)            \
  long n(long x, void** a) {  \
    static int once;          \
    simgpu_said(#n, &once);   \
    if (a) *a = simgpu_dummy; \
    return 0;                 \
  }
#define CREATE_INT(n)       \
  long n(int* a) {          \
    static int once;        \
    simgpu_said(#n, &once); \
    if (a) *a = 1;          \
    return 0;               \
  }
#define TEXT(n)             \
  const char* n(void) {     \
    static int once;        \
    simgpu_said(#n, &once); \
    return "simulated";     \
  }
