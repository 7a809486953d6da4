#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "nvml/loader.h"
#include "programs/driver.h"
#include "programs/job_kernels.h"
#include "wire/channel.h"

// A GPU program that does what it is told, a line at a time on its standard input, and answers each
// with one line: the driver's result by name, or what was asked for. After `linger` it goes on
// doing so when it has been told to end, at the end of the process.
namespace nvshare::integration {
namespace {

using namespace nvshare::cuda;

class Probe {
 public:
  // False when there is nothing more to do.
  bool obey(const std::string& line);

 private:
  using Words = std::istringstream;

  std::string start();
  std::string retain();
  std::string begin(Words& words);
  std::string total();
  std::string ask_nvml(Words& words);
  std::string allocate(Words& words);
  std::string free_last();
  std::string fill_up(Words& words);
  std::string churn(Words& words);
  std::string write(Words& words);
  std::string read(Words& words);
  std::string info();
  std::string spin(Words& words, bool wait);
  std::string fork_and(Words& words);
  std::string be_called(Words& words);
  std::string aside(Words& words);
  std::string apart(Words& words);
  std::string share();
  std::string open(Words& words);
  std::string close_last();
  std::string paint(Words& words);
  std::string look(Words& words);
  static std::string handle_signal();
  static std::string do_without_threads();
  std::string open_files();
  std::string close_files();
  // The memory that `own` (allocated last) or `other` (opened last) stands for.
  struct Range {
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
  };
  Range range_of(const std::string& whose);

  programs::Driver driver_;
  std::unique_ptr<nvml::Loader> nvml_;
  CUcontext context_{};
  CUfunction spin_{};
  std::vector<CUdeviceptr> memory_;
  std::vector<std::size_t> sizes_;  // of each of them
  std::vector<CUdeviceptr> opened_;
  std::vector<int> files_;
};

std::string name_of(CUresult result) {
  const char* name = result_name(result);
  return name == nullptr ? "?" : name;
}

std::string Probe::start() {
  CUmodule module{};
  if (const std::string error = driver_.open(false); !error.empty()) return error;
  CUresult result = driver_.call<FunctionId::cuInit>(0u);
  if (result == CUDA_SUCCESS) {
    result = driver_.call<FunctionId::cuDevicePrimaryCtxRetain>(&context_, 0);
  }
  if (result == CUDA_SUCCESS) result = driver_.call<FunctionId::cuCtxSetCurrent>(context_);
  if (result == CUDA_SUCCESS) {
    result = driver_.call<FunctionId::cuModuleLoadData>(
        &module, static_cast<const void*>(programs::kJobKernels));
  }
  if (result == CUDA_SUCCESS) {
    result = driver_.call<FunctionId::cuModuleGetFunction>(&spin_, module, "spin");
  }
  return name_of(result);
}

// `retain`: has the driver make a context, and nothing before that.
std::string Probe::retain() {
  return name_of(driver_.call<FunctionId::cuDevicePrimaryCtxRetain>(&context_, 0));
}

// Both at once, for a child that does one line.
std::string Probe::begin(Words& words) {
  const std::string started = start();
  return started == "CUDA_SUCCESS" ? allocate(words) : started;
}

// How much the device has, without using it.
std::string Probe::total() {
  if (const std::string error = driver_.open(false); !error.empty()) return error;
  std::size_t bytes = 0;
  CUresult result = driver_.call<FunctionId::cuInit>(0u);
  if (result == CUDA_SUCCESS) {
    result = driver_.call<FunctionId::cuDeviceTotalMem_v2>(&bytes, 0);
  }
  return result == CUDA_SUCCESS ? "total=" + std::to_string(bytes) : name_of(result);
}

// `nvml [TIMES]`: what NVML says of the device's memory, the last time.
std::string Probe::ask_nvml(Words& words) {
  int times = 1;
  words >> times;
  if (!nvml_) {
    auto opened = nvml::Loader::open("libnvidia-ml.so.1");
    if (!opened) return opened.error().message;
    nvml_ = std::move(*opened);
    if (nvml_->nvmlInit_v2() != nvml::NVML_SUCCESS) return "nvmlInit_v2";
  }
  nvml::nvmlDevice_t device{};
  nvml::nvmlMemory_t memory{};
  nvml::nvmlReturn_t result = nvml_->nvmlDeviceGetHandleByIndex_v2(0, &device);
  for (int i = 0; i < std::max(times, 1) && result == nvml::NVML_SUCCESS; ++i) {
    result = nvml_->nvmlDeviceGetMemoryInfo(device, &memory);
  }
  if (result != nvml::NVML_SUCCESS) return nvml::result_name(result);
  return "used=" + std::to_string(memory.used) + " free=" + std::to_string(memory.free) +
         " total=" + std::to_string(memory.total);
}

std::string Probe::allocate(Words& words) {
  std::string size;
  words >> size;
  const auto bytes = parse_bytes(size);
  if (!bytes) return bytes.error().message;
  CUdeviceptr address = 0;
  const CUresult result =
      driver_.call<FunctionId::cuMemAlloc_v2>(&address, static_cast<std::size_t>(bytes->count));
  if (result == CUDA_SUCCESS) {
    memory_.push_back(address);
    sizes_.push_back(static_cast<std::size_t>(bytes->count));
  }
  return name_of(result);
}

std::string Probe::free_last() {
  if (memory_.empty()) return "nothing to free";
  const CUresult result = driver_.call<FunctionId::cuMemFree_v2>(memory_.back());
  memory_.pop_back();
  sizes_.pop_back();
  return name_of(result);
}

// Takes pieces from several threads at once until none is given, and says how many it got.
std::string Probe::fill_up(Words& words) {
  std::string size;
  int threads = 1;
  words >> size >> threads;
  const auto bytes = parse_bytes(size);
  if (!bytes) return bytes.error().message;
  std::vector<std::vector<CUdeviceptr>> got(static_cast<std::size_t>(threads));
  std::vector<std::thread> all;
  for (auto& mine : got) {
    all.emplace_back([&] {
      driver_.call<FunctionId::cuCtxSetCurrent>(context_);
      CUdeviceptr address = 0;
      while (driver_.call<FunctionId::cuMemAlloc_v2>(
                 &address, static_cast<std::size_t>(bytes->count)) == CUDA_SUCCESS) {
        mine.push_back(address);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  std::size_t count = 0;
  for (auto& mine : got) {
    count += mine.size();
    memory_.insert(memory_.end(), mine.begin(), mine.end());
    sizes_.insert(sizes_.end(), mine.size(), static_cast<std::size_t>(bytes->count));
  }
  return std::to_string(count);
}

// `churn SIZE TIMES`: allocates and frees so often.
std::string Probe::churn(Words& words) {
  std::string size;
  int times = 1;
  words >> size >> times;
  for (int i = 0; i < times; ++i) {
    Words one(size);
    if (const std::string answer = allocate(one); answer != "CUDA_SUCCESS") return answer;
    if (const std::string answer = free_last(); answer != "CUDA_SUCCESS") return answer;
  }
  return "CUDA_SUCCESS";
}

// Words that tell where they are, and which time they were written.
std::vector<std::uint32_t> pattern(std::size_t bytes, std::size_t place, std::uint32_t seed) {
  std::vector<std::uint32_t> words(bytes / sizeof(std::uint32_t));
  std::uint32_t value = seed * 2654435761u + static_cast<std::uint32_t>(place);
  for (std::uint32_t& word : words) word = value = value * 1664525u + 1013904223u;
  return words;
}

// `write SEED`: fills all memory with words that follow from the seed.
std::string Probe::write(Words& words) {
  std::uint32_t seed = 0;
  words >> seed;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const auto text = pattern(sizes_[i], i, seed);
    const CUresult result = driver_.call<FunctionId::cuMemcpyHtoD_v2>(
        memory_[i], static_cast<const void*>(text.data()), sizes_[i]);
    if (result != CUDA_SUCCESS) return name_of(result);
  }
  return "written";
}

// `read SEED`: whether all memory is as that wrote it.
std::string Probe::read(Words& words) {
  std::uint32_t seed = 0;
  words >> seed;
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    std::vector<std::uint32_t> got(sizes_[i] / sizeof(std::uint32_t));
    const CUresult result = driver_.call<FunctionId::cuMemcpyDtoH_v2>(
        static_cast<void*>(got.data()), memory_[i], sizes_[i]);
    if (result != CUDA_SUCCESS) return name_of(result);
    if (got != pattern(sizes_[i], i, seed)) return "differs";
  }
  return "same";
}

std::string Probe::info() {
  std::size_t free = 0;
  std::size_t total = 0;
  const CUresult result = driver_.call<FunctionId::cuMemGetInfo_v2>(&free, &total);
  if (result != CUDA_SUCCESS) return name_of(result);
  return "free=" + std::to_string(free) + " total=" + std::to_string(total);
}

std::string Probe::spin(Words& words, bool wait) {
  std::string text;
  words >> text;
  const auto length = parse_duration(text);
  if (!length) return length.error().message;
  auto nanoseconds = static_cast<std::uint64_t>(length->count());
  void* params[] = {&nanoseconds};
  CUresult result = driver_.call<FunctionId::cuLaunchKernel>(
      spin_, 1u, 1u, 1u, 1u, 1u, 1u, 0u, CUstream{}, params, static_cast<void**>(nullptr));
  if (wait && result == CUDA_SUCCESS) result = driver_.call<FunctionId::cuCtxSynchronize>();
  return name_of(result);
}

// `fork LINE`: a child does the line and ends; its answer is the answer.
std::string Probe::fork_and(Words& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    obey(rest);
    std::cout.flush();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? "" : "the child ended badly";
}

// `claim NAME`: says to the scheduler, as `nvshare run` does, that this is the tenant NAME; then
// says hello as a program of its own. Answers what the scheduler says to both.
std::string Probe::be_called(Words& words) {
  std::string name;
  words >> name;
  const char* folder = std::getenv(wire::kRunDirectoryVariable);
  const std::string path =
      std::string(folder == nullptr ? "" : folder) + "/" + wire::kProgramSocket;
  const int socket = wire::connect_to(path.c_str());
  if (socket < 0) return "cannot connect";
  auto begin = wire::make<wire::RunBegin>();
  begin.magic = wire::kMagic;
  begin.major = wire::kMajor;
  begin.minor = wire::kMinor;
  wire::put_text(begin.name, sizeof begin.name, name.c_str());
  begin.core_limit = 100;
  wire::send(socket, &begin.header, true);
  alignas(8) char packet[wire::kMaxMessage];
  const int length = wire::receive(socket, packet, true);
  if (length <= 0) return "closed";
  const wire::Header* header = wire::look_at(packet, static_cast<std::size_t>(length));
  const auto text = [](const char* field, std::size_t size) {
    return std::string(field, wire::text_length(field, size));
  };
  if (const auto* refused = wire::as<wire::Refused>(header)) {
    return "refused: " + text(refused->reason, sizeof refused->reason);
  }
  if (const auto* welcome = wire::as<wire::Welcome>(header)) {
    return "welcome: " + text(welcome->tenant, sizeof welcome->tenant);
  }
  return "something else";
}

// `share`: the IPC handle of what was allocated last.
std::string Probe::share() {
  CUipcMemHandle handle{};
  if (memory_.empty()) return "nothing to share";
  const CUresult result = driver_.call<FunctionId::cuIpcGetMemHandle>(&handle, memory_.back());
  if (result != CUDA_SUCCESS) return name_of(result);
  std::ostringstream text;
  for (const char byte : handle.reserved) {
    text << std::hex << std::setw(2) << std::setfill('0') << (static_cast<unsigned>(byte) & 0xff);
  }
  return text.str();
}

// `open HANDLE`: of another process.
std::string Probe::open(Words& words) {
  std::string text;
  words >> text;
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  CUdeviceptr address = 0;
  const CUresult result = driver_.call<FunctionId::cuIpcOpenMemHandle_v2>(
      &address, handle, unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS});
  if (result == CUDA_SUCCESS) opened_.push_back(address);
  return name_of(result);
}

std::string Probe::close_last() {
  if (opened_.empty()) return "nothing to close";
  const CUresult result = driver_.call<FunctionId::cuIpcCloseMemHandle>(opened_.back());
  opened_.pop_back();
  return name_of(result);
}

Probe::Range Probe::range_of(const std::string& whose) {
  Range range;
  const std::vector<CUdeviceptr>& all = whose == "own" ? memory_ : opened_;
  if (!all.empty()) {
    driver_.call<FunctionId::cuMemGetAddressRange_v2>(&range.base, &range.bytes, all.back());
  }
  return range;
}

// `paint own|other N`: each word of it becomes N.
std::string Probe::paint(Words& words) {
  std::string whose;
  unsigned value = 0;
  words >> whose >> value;
  const Range range = range_of(whose);
  CUresult result =
      driver_.call<FunctionId::cuMemsetD32_v2>(range.base, value, range.bytes / sizeof value);
  if (result == CUDA_SUCCESS) result = driver_.call<FunctionId::cuCtxSynchronize>();
  return name_of(result);
}

// `look own|other`: how many bytes there are, and what all of its words are.
std::string Probe::look(Words& words) {
  std::string whose;
  words >> whose;
  const Range range = range_of(whose);
  std::vector<unsigned> found(range.bytes / sizeof(unsigned));
  const CUresult result = driver_.call<FunctionId::cuMemcpyDtoH_v2>(
      static_cast<void*>(found.data()), range.base, found.size() * sizeof(unsigned));
  if (result != CUDA_SUCCESS) return name_of(result);
  if (found.empty()) return "nothing";
  const bool equal =
      std::all_of(found.begin(), found.end(), [&](unsigned word) { return word == found.front(); });
  return std::to_string(range.bytes) + (equal ? " of " + std::to_string(found.front()) : " mixed");
}

// `aside TIME`: spins in a thread of its own, which nobody waits for and which says nothing.
std::string Probe::aside(Words& words) {
  std::string rest;
  std::getline(words, rest);
  std::thread([this, rest] {
    driver_.call<FunctionId::cuCtxSetCurrent>(context_);
    Words time(rest);
    spin(time, true);
  }).detach();
  return "aside";
}

// `apart LINE`: does the line in a thread of its own, which nobody waits for.
std::string Probe::apart(Words& words) {
  std::string rest;
  std::getline(words >> std::ws, rest);
  std::thread([this, rest] {
    if (context_ != nullptr) driver_.call<FunctionId::cuCtxSetCurrent>(context_);
    obey(rest);
  }).detach();
  return "apart";
}

// `handle`: from now on a SIGTERM only runs a handler.
std::string Probe::handle_signal() {
  ::signal(SIGTERM, [](int) {});
  return "handled";
}

// `threadless`: from now on no thread can be started.
std::string Probe::do_without_threads() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof filter / sizeof *filter, filter};
  const bool done = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  return done ? "threadless" : "cannot filter";
}

// `files`: opens as many as it may.
std::string Probe::open_files() {
  const rlimit limit{256, 256};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  for (int file; (file = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files_.push_back(file);
  return errno == EMFILE ? "full" : "not full";
}

// `nofiles`: closes them.
std::string Probe::close_files() {
  for (const int file : files_) ::close(file);
  files_.clear();
  return "closed";
}

bool Probe::obey(const std::string& line) {
  Words words(line);
  std::string what;
  words >> what;
  std::string answer = "unknown: " + line;
  if (what == "end") return false;
  if (what == "start") answer = start();
  if (what == "retain") answer = retain();
  if (what == "begin") answer = begin(words);
  if (what == "total") answer = total();
  if (what == "nvml") answer = ask_nvml(words);
  if (what == "alloc") answer = allocate(words);
  if (what == "free") answer = free_last();
  if (what == "fill") answer = fill_up(words);
  if (what == "churn") answer = churn(words);
  if (what == "write") answer = write(words);
  if (what == "read") answer = read(words);
  if (what == "info") answer = info();
  if (what == "spin") answer = spin(words, true);
  if (what == "launch") answer = spin(words, false);
  if (what == "claim") answer = be_called(words);
  if (what == "fork") answer = fork_and(words);
  if (what == "aside") answer = aside(words);
  if (what == "apart") answer = apart(words);
  if (what == "share") answer = share();
  if (what == "open") answer = open(words);
  if (what == "close") answer = close_last();
  if (what == "paint") answer = paint(words);
  if (what == "look") answer = look(words);
  if (what == "handle") answer = handle_signal();
  if (what == "threadless") answer = do_without_threads();
  if (what == "files") answer = open_files();
  if (what == "nofiles") answer = close_files();
  if (!answer.empty()) std::cout << answer << std::endl;
  return true;
}

}  // namespace
}  // namespace nvshare::integration

namespace {

void obey_lines() {
  static auto& probe = *new nvshare::integration::Probe;  // there to the very end
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "linger") {
      // What is registered before the driver begins comes behind its end.
      std::cout << (std::atexit(obey_lines) == 0 ? "yes" : "no") << std::endl;
    } else if (!probe.obey(line)) {
      return;
    }
  }
}

}  // namespace

int main() {
  obey_lines();
  return 0;
}
