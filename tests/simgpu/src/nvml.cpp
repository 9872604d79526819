// libnvidia-ml.so.1: NVML for the devices of the board. Utilisation and energy come from their busy time, clocks, power
// limit, temperature and clock event reasons from what a test wrote there. What NVML offers beyond this is left out: a
// caller finds no such function, as with an old driver. SIMGPU_NVML_FAIL="function=code,..." lets calls fail.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {
enum Return { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, VERSION = 25 };
struct Handle {
  int number;
} handles[sim::kDevices];
int opened = 0;
int count() { return std::min((int)sim::knob("DEVICES", 1), sim::kDevices); }
using ull = unsigned long long;

int check(const char* function, const Handle* handle) {
  static const std::string faults = sim::text_knob("NVML_FAIL", "");
  const std::string wanted = std::string(function) + "=";
  const size_t at = faults.find(wanted);
  if (at != std::string::npos) return std::atoi(&faults[at + wanted.size()]);
  if (!opened) return UNINITIALIZED;
  if (handle && (handle < handles || handle >= handles + count())) return INVALID;
  return handle && sim::is_lost(handle->number) ? LOST : OK;
}
#define CHECK(handle) \
  if (int error = check(__func__, handle)) return error
const sim::Board::Device& board_of(const Handle* handle) {
  static const sim::Board::Device none{};
  return sim::board() ? sim::board()->devices[handle->number] : none;
}
double or_else(double value, double otherwise) { return value > 0 ? value : otherwise; }

constexpr sim::ns kWindow = 1'000'000'000 / 6;  // of utilisation
double busy_share(const Handle* handle, sim::ns window = kWindow) {
  const sim::ns t = sim::now() / sim::Board::kBucket * sim::Board::kBucket;
  return std::min(1.0, (double)sim::busy_between(handle->number, t - window, t) / window);
}
double idle_watts(const Handle* handle) { return or_else(board_of(handle).idle_w, 90); }
double busy_watts(const Handle* handle) { return or_else(board_of(handle).busy_w, 650); }
double watts(const Handle* handle) {
  return idle_watts(handle) + (busy_watts(handle) - idle_watts(handle)) * busy_share(handle);
}
// Millijoules since the machine was started.
ull energy(const Handle* handle) {
  const double busy_s = sim::busy_until_now(handle->number) * 1e-9, s = sim::now() * 1e-9;
  return (ull)(1e3 * (idle_watts(handle) * s + (busy_watts(handle) - idle_watts(handle)) * busy_s));
}
int64_t used(const Handle* handle, int64_t* pids, int64_t* bytes, int most, int* found) {
  int64_t total = board_of(handle).foreign_bytes;
  *found = 0;
  auto add = [&](int64_t pid, int64_t n) {
    if (*found < most) pids[*found] = pid, bytes[*found] = n;
    ++*found;
  };
  if (total) add(board_of(handle).foreign_pid, total);
  if (!sim::board()) return total;
  for (const auto& process : sim::board()->processes) {
    const int64_t n = process.used[handle->number];
    if (!process.pid || !n || kill((pid_t)process.pid, 0)) continue;
    total += n;
    add(process.pid, n);
  }
  return total;
}
int64_t used(const Handle* handle) {
  int found;
  return used(handle, nullptr, nullptr, 0, &found);
}
void write_uuid(int number, char* text, unsigned size) {
  snprintf(text, size, "GPU-5eed0000-0000-4000-8000-0000000001%02x", number);
}
}  // namespace

API int nvmlInit_v2() {
  if (int error = check("nvmlInit", nullptr); error != UNINITIALIZED && error) return error;
  for (int i = 0; i < sim::kDevices; i++) handles[i].number = i;
  opened++;
  return OK;
}
API int nvmlInit() { return nvmlInit_v2(); }
API int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
API int nvmlShutdown() {
  if (!opened) return UNINITIALIZED;
  opened--;
  return OK;
}
API const char* nvmlErrorString(int code) {
  static const char* const texts[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
                                      "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size"};
  return code == 15 ? "GPU is lost" : code >= 0 && code < 8 ? texts[code] : "Unknown Error";
}
API int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  CHECK(nullptr);
  snprintf(text, size, "580.00");
  return OK;
}
API int nvmlSystemGetNVMLVersion(char* text, unsigned size) {
  CHECK(nullptr);
  snprintf(text, size, "13.580.00");
  return OK;
}
API int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  CHECK(nullptr);
  *version = (int)sim::knob("DRIVER", 13000);
  return OK;
}
API int nvmlDeviceGetCount_v2(unsigned* n) {
  CHECK(nullptr);
  *n = (unsigned)count();
  return OK;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle** handle) {
  CHECK(nullptr);
  if (index >= (unsigned)count()) return INVALID;
  *handle = &handles[index];
  return OK;
}
API int nvmlDeviceGetHandleByUUID(const char* uuid, Handle** handle) {
  CHECK(nullptr);
  for (int number = 0; number < count(); number++) {
    char text[64];
    write_uuid(number, text, sizeof text);
    if (strcmp(text, uuid)) continue;
    *handle = &handles[number];
    return OK;
  }
  return NOT_FOUND;
}
struct Pci {  // nvmlPciInfo_t
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};
static void write_pci(int number, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = 0x17 + 0x11 * (unsigned)number;
  pci->id = 0x233010de;
  snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
  snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", pci->bus);
}
API int nvmlDeviceGetPciInfo_v3(Handle* handle, Pci* pci) {
  CHECK(handle);
  write_pci(handle->number, pci);
  return OK;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char* text, Handle** handle) {
  CHECK(nullptr);
  for (int number = 0; number < count(); number++) {
    Pci pci;
    write_pci(number, &pci);
    if (strcasecmp(text, pci.text) && strcasecmp(text, pci.legacy)) continue;
    *handle = &handles[number];
    return OK;
  }
  return NOT_FOUND;
}
API int nvmlDeviceGetIndex(Handle* handle, unsigned* index) {
  CHECK(handle);
  *index = (unsigned)handle->number;
  return OK;
}
API int nvmlDeviceGetMinorNumber(Handle* handle, unsigned* number) { return nvmlDeviceGetIndex(handle, number); }
API int nvmlDeviceGetUUID(Handle* handle, char* text, unsigned size) {
  CHECK(handle);
  write_uuid(handle->number, text, size);
  return OK;
}
API int nvmlDeviceGetName(Handle* handle, char* text, unsigned size) {
  CHECK(handle);
  snprintf(text, size, "%s", sim::device_name());
  return OK;
}
API int nvmlDeviceGetPersistenceMode(Handle* handle, unsigned* mode) {
  CHECK(handle);
  *mode = 1;
  return OK;
}
API int nvmlDeviceGetCudaComputeCapability(Handle* handle, int* major, int* minor) {
  CHECK(handle);
  *major = 9;
  *minor = 0;
  return OK;
}

// ---- readings
struct Memory {
  ull total, free, used;
};
API int nvmlDeviceGetMemoryInfo(Handle* handle, Memory* memory) {
  CHECK(handle);
  memory->total = sim::capacity();
  memory->used = std::min((ull)used(handle), memory->total);
  memory->free = memory->total - memory->used;
  return OK;
}
struct Memory2 {
  unsigned version;
  ull total, reserved, free, used;
};
API int nvmlDeviceGetMemoryInfo_v2(Handle* handle, Memory2* memory) {
  CHECK(handle);
  if (memory->version != (sizeof(Memory2) | 2u << 24)) return VERSION;
  Memory plain;
  nvmlDeviceGetMemoryInfo(handle, &plain);
  memory->total = plain.total;
  memory->reserved = 0;
  memory->free = plain.free;
  memory->used = plain.used;
  return OK;
}
struct Utilization {
  unsigned gpu, memory;
};
API int nvmlDeviceGetUtilizationRates(Handle* handle, Utilization* rates) {
  CHECK(handle);
  rates->gpu = (unsigned)(100 * busy_share(handle) + 0.5);
  rates->memory = rates->gpu * 6 / 10;
  return OK;
}
API int nvmlDeviceGetPowerUsage(Handle* handle, unsigned* milliwatts) {
  CHECK(handle);
  *milliwatts = (unsigned)(1e3 * watts(handle));
  return OK;
}
API int nvmlDeviceGetEnforcedPowerLimit(Handle* handle, unsigned* milliwatts) {
  CHECK(handle);
  *milliwatts = (unsigned)(1e3 * or_else(board_of(handle).limit_w, 700));
  return OK;
}
API int nvmlDeviceGetPowerManagementLimit(Handle* handle, unsigned* limit) {
  return nvmlDeviceGetEnforcedPowerLimit(handle, limit);
}
API int nvmlDeviceGetTotalEnergyConsumption(Handle* handle, ull* millijoules) {
  CHECK(handle);
  *millijoules = energy(handle);
  return OK;
}
API int nvmlDeviceGetTemperature(Handle* handle, int, unsigned* celsius) {
  CHECK(handle);
  *celsius = (unsigned)or_else(board_of(handle).temperature, 40);
  return OK;
}
API int nvmlDeviceGetClockInfo(Handle* handle, int kind, unsigned* mhz) {  // 0 graphics, 1 SM, 2 memory, 3 video
  CHECK(handle);
  if (kind < 0 || kind > 3) return INVALID;
  *mhz = kind == 2 ? 2619 : (unsigned)sim::clock_of(handle->number);
  return OK;
}
API int nvmlDeviceGetMaxClockInfo(Handle* handle, int kind, unsigned* mhz) {
  CHECK(handle);
  *mhz = kind == 2 ? 2619 : 1980;
  return OK;
}
API int nvmlDeviceGetCurrentClocksEventReasons(Handle* handle, ull* reasons) {
  CHECK(handle);
  *reasons = board_of(handle).reasons;
  return OK;
}
API int nvmlDeviceGetCurrentClocksThrottleReasons(Handle* handle, ull* reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}
API int nvmlDeviceGetSupportedClocksEventReasons(Handle* handle, ull* reasons) {
  CHECK(handle);
  *reasons = 0x1ff;
  return OK;
}

// ---- processes
struct Process {  // nvmlProcessInfo_v2_t
  unsigned pid;
  ull bytes;
  unsigned instance, compute_instance;
};
API int nvmlDeviceGetComputeRunningProcesses_v3(Handle* handle, unsigned* n, Process* processes) {
  CHECK(handle);
  int64_t pids[256], bytes[256];
  int found;
  used(handle, pids, bytes, 256, &found);
  const unsigned room = *n;
  *n = (unsigned)std::min(found, 256);
  if (*n > room) return TOO_SMALL;
  for (unsigned i = 0; i < *n; i++) processes[i] = {(unsigned)pids[i], (ull)bytes[i], ~0u, ~0u};
  return OK;
}
API int nvmlDeviceGetComputeRunningProcesses_v2(Handle* handle, unsigned* n, Process* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(handle, n, processes);
}
struct Process1 {  // nvmlProcessInfo_v1_t, which libc10_cuda asks for
  unsigned pid;
  ull bytes;
};
API int nvmlDeviceGetComputeRunningProcesses(Handle* handle, unsigned* n, Process1* processes) {
  Process all[256];
  unsigned found = 256;
  if (int error = nvmlDeviceGetComputeRunningProcesses_v3(handle, &found, all)) return error;
  const unsigned room = *n;
  *n = found;
  if (found > room) return TOO_SMALL;
  for (unsigned i = 0; i < found; i++) processes[i] = {all[i].pid, all[i].bytes};
  return OK;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle* handle, unsigned* n, Process*) {
  CHECK(handle);
  *n = 0;
  return OK;
}
API int nvmlDeviceGetGraphicsRunningProcesses_v2(Handle* handle, unsigned* n, Process* processes) {
  return nvmlDeviceGetGraphicsRunningProcesses_v3(handle, n, processes);
}

// ---- no MIG, no NVLink; libc10_cuda asserts that some of these exist
API int nvmlDeviceGetMaxMigDeviceCount(Handle* handle, unsigned* n) {
  CHECK(handle);
  *n = 0;
  return OK;
}
API int nvmlDeviceGetMigMode(Handle* handle, unsigned*, unsigned*) {
  CHECK(handle);
  return NOT_SUPPORTED;
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(Handle*, unsigned, int*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle*, unsigned, Pci*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkState(Handle*, unsigned, unsigned*) { return NOT_SUPPORTED; }
API int nvmlDeviceGetP2PStatus(Handle*, Handle*, int, int* status) {
  *status = 0;
  return OK;
}
API int nvmlDeviceGetGpuFabricInfoV(Handle*, void*) { return NOT_SUPPORTED; }
API int nvmlSystemGetDriverBranch(void*, unsigned) { return NOT_SUPPORTED; }
