// Loads libsimgpu_compute.so, which lies beside this library and needs torch's own libraries.
#include <dlfcn.h>

#include <cstdio>
#include <string>

namespace sim {
void start_compute() {
  if (!dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)) return;  // a process without torch
  Dl_info info;
  if (!dladdr((void*)&start_compute, &info)) return;
  const std::string here(info.dli_fname);
  void* library = dlopen((here.substr(0, here.rfind('/')) + "/libsimgpu_compute.so").c_str(), RTLD_NOW);
  auto start = library ? (void (*)())dlsym(library, "simgpu_compute") : nullptr;
  if (start)
    start();
  else
    std::fprintf(stderr, "simgpu: no real numbers: %s\n", dlerror());
}
}  // namespace sim
