// Durations: by a kernel's name (SIMGPU_TABLE), by a product's operations, by a copy's bytes; at the device's clock.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sim.h"

namespace sim {
static ns from_us(double us) { return (ns)(us * 1e3); }

// "part of a name=microseconds,...": the first part that a kernel's name has is its duration.
static const std::vector<std::pair<std::string, double>>& table() {
  static const auto entries = [] {
    std::vector<std::pair<std::string, double>> list;
    const std::string text = text_knob("TABLE", "");
    for (size_t start = 0; start < text.size();) {
      const size_t end = std::min(text.find(',', start), text.size());
      const std::string entry = text.substr(start, end - start);
      const size_t equals = entry.rfind('=');
      if (equals != std::string::npos) list.push_back({entry.substr(0, equals), std::atof(&entry[equals + 1])});
      start = end + 1;
    }
    return list;
  }();
  return entries;
}
ns named_ns(const char* name, ns otherwise) {
  for (const auto& [part, us] : table())
    if (strstr(name, part.c_str())) return from_us(us);
  return otherwise;
}
ns kernel_ns(Func* func) {
  static const ns usual = from_us(knob("KERNEL_US", 20));
  if (func->dur < 0) func->dur = named_ns(func->name.c_str(), usual);
  return func->dur;
}
ns at_clock(int device, ns dur) {
  const double mhz = clock_of(physical(device));
  return mhz == 1980 ? dur : (ns)(dur * (1980 / mhz));
}

// cudaDataType: 0 and 1 are fp32 and fp64, 28 and 29 fp8; -1 is fp32 in TF32.
static double tflops(int type) {
  static const double low = knob("TFLOPS", 400), fp32 = knob("TFLOPS_FP32", 50), tf32 = knob("TFLOPS_TF32", 200);
  if (type == 0 || type == 1) return fp32;
  if (type == -1) return tf32;
  return type == 28 || type == 29 ? 2 * low : low;
}
int gemm(Stream* stream, const char* name, double m, double n, double k, double batch, int type) {
  static const double fixed_us = knob("GEMM_US", 5);
  Op op;
  op.kind = KERNEL;
  op.name = name;
  op.dur = named_ns(name, (ns)(fixed_us * 1e3 + 2 * m * n * k * batch / tflops(type) * 1e-3));
  op.grid[0] = (uint32_t)std::max(1.0, m * n / 16384);
  op.grid[2] = (uint32_t)batch;
  op.block[0] = 128;
  return launch(stream, op);
}
}  // namespace sim
