// Processes that share GPU memory through the CUDA runtime's IPC functions. A producer allocates
// one buffer for each consumer. In each round the producer fills the buffers, each consumer changes
// its own one, then that of its neighbour, and the producer looks at all of them. Interprocess
// events say when a buffer is ready; a driver that has none is said so in one line.
//
//   ipc_sample family ROUNDS PAUSE_MS             one producer that starts its consumers
//   ipc_sample producer SOCKET ROUNDS PAUSE_MS    waits for consumers at a socket
//   ipc_sample consumers SOCKET                   starts them; ends with the number that failed
//
// ROUNDS 0: until a consumer is gone. Each process prints RESULT and JSON in its last line.
#include <cuda_runtime.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t error = (call);                                                        \
    if (error != cudaSuccess) {                                                              \
      std::fprintf(stderr, "%s: %s (pid %d)\n", #call, cudaGetErrorString(error), getpid()); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

namespace {

constexpr int kConsumers = 3;
// Words of four bytes: a buffer that shares a chunk with others, one of 5 MiB and one of 256 MiB.
constexpr std::size_t kWords[kConsumers] = {1000, 5 << 18, 256 << 18};
constexpr int kFreshEvery = 4;       // rounds, after which the buffers are new ones
constexpr unsigned kGoneAfter = 80;  // seconds, whatever happens
constexpr std::uint32_t kOwn = 100;  // what a consumer adds to its own buffer
constexpr std::uint32_t kNeighbour = 1000;

// --- on the GPU

__global__ void fill(std::uint32_t* words, std::size_t count, std::uint32_t seed) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    words[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
  }
}

__global__ void add(std::uint32_t* words, std::size_t count, std::uint32_t value) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    words[i] += value;
  }
}

// Counts words that are neither of the pattern `one` nor of the pattern `other`.
__global__ void compare(const std::uint32_t* words, std::size_t count, std::uint32_t one,
                        std::uint32_t other, unsigned long long* wrong) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const std::uint32_t seed = words[i] - static_cast<std::uint32_t>(i) * 2654435761u;
    if (seed != one && seed != other) atomicAdd(wrong, 1ull);
  }
}

template <typename T>
struct Same {
  using Type = T;
};

// The arguments have the kernel's types, whatever they are given as.
template <typename... Parameters>
void launch(void (*kernel)(Parameters...), cudaStream_t stream,
            typename Same<Parameters>::Type... arguments) {
  void* pointers[] = {&arguments...};
  CHECK(cudaLaunchKernel(kernel, dim3(256), dim3(256), pointers, 0, stream));
}

// --- between processes

enum class Step : std::uint32_t { Own, Neighbour, Done, Stop };

struct Message {
  Step step = Step::Done;
  std::uint32_t round = 0;
  std::uint32_t consumer = 0;  // the number of the consumer
  std::uint32_t events = 0;    // whether there are any
  cudaIpcMemHandle_t memory[kConsumers] = {};
  cudaIpcEventHandle_t ready[kConsumers] = {};
};

bool send(int to, const Message& message) {
  return ::send(to, &message, sizeof message, MSG_NOSIGNAL) == ssize_t{sizeof message};
}

// False when the other process is gone.
bool receive(int from, Message& message) {
  return ::recv(from, &message, sizeof message, 0) == ssize_t{sizeof message};
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_un address_of(const char* path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (std::strlen(path) >= sizeof address.sun_path) fail("the socket's path is too long");
  std::strcpy(address.sun_path, path);
  return address;
}

std::vector<int> accept_consumers(const char* path) {
  const sockaddr_un address = address_of(path);
  const int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail("bind");
  if (listen(listener, kConsumers) != 0) fail("listen");
  std::vector<int> consumers;
  while (consumers.size() < kConsumers) {
    const int one = accept(listener, nullptr, nullptr);
    if (one < 0) fail("accept");
    consumers.push_back(one);
  }
  close(listener);
  unlink(path);
  return consumers;
}

int connect_to(const char* path) {
  const sockaddr_un address = address_of(path);
  for (int i = 0; i < 600; ++i) {
    const int one = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(one, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return one;
    close(one);
    usleep(50'000);
  }
  fail("connect");
}

// --- both

std::uint32_t seed_of(std::uint32_t round, int buffer) {
  return round * 16 + static_cast<std::uint32_t>(buffer);
}

class Process {
 public:
  Process() {
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&wrong_, sizeof *wrong_));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    CHECK(cudaFree(wrong_));
    CHECK(cudaStreamDestroy(stream_));
  }

  cudaStream_t stream() const { return stream_; }

  // An event for other processes. False, and a line, where there is none.
  bool make_event(cudaEvent_t& event, cudaIpcEventHandle_t& handle) const {
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    const cudaError_t error = cudaIpcGetEventHandle(&handle, event);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    std::printf("EVENTS cudaIpcGetEventHandle: %s\n", cudaGetErrorName(error));
    return false;
  }

  void expect(const std::uint32_t* words, std::size_t count, std::uint32_t one, std::uint32_t other,
              const char* what) {
    unsigned long long wrong = 0;
    CHECK(cudaMemsetAsync(wrong_, 0, sizeof wrong, stream_));
    launch(compare, stream_, words, count, one, other, wrong_);
    CHECK(cudaMemcpyAsync(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost, stream_));
    CHECK(cudaStreamSynchronize(stream_));
    if (wrong == 0) return;
    std::fprintf(stderr, "%s: %llu of %zu words are not those of %u\n", what, wrong, count, one);
    std::exit(1);
  }

 private:
  cudaStream_t stream_ = nullptr;
  unsigned long long* wrong_ = nullptr;
};

// --- the producer

class Producer {
 public:
  explicit Producer(std::vector<int> consumers) : consumers_(std::move(consumers)) {
    message_.events = 1;
    for (int i = 0; i < kConsumers; ++i) {
      if (!own_.make_event(filled_[i], filled_handles_[i])) message_.events = 0;
    }
  }
  ~Producer() {
    free_buffers();
    for (const cudaEvent_t event : filled_) CHECK(cudaEventDestroy(event));
  }

  void run(std::uint32_t rounds, unsigned pause_ms) {
    std::uint32_t done = 0;
    for (; gone_ == 0 && (rounds == 0 || done < rounds); ++done) round(done, pause_ms);
    tell(Step::Stop);
    wait_for_the_end();
    if (gone_ > 0) still_there(done);
    std::printf("RESULT {\"role\": \"producer\", \"rounds\": %u, \"events\": %s, \"gone\": %d}\n",
                done, message_.events != 0 ? "true" : "false", gone_);
  }

 private:
  void round(std::uint32_t number, unsigned pause_ms) {
    message_.round = number;
    if (number % kFreshEvery == 0) new_buffers();
    for (int i = 0; i < kConsumers; ++i) {
      launch(fill, own_.stream(), buffers_[i], kWords[i], seed_of(number, i));
      CHECK(cudaEventRecord(filled_[i], own_.stream()));
      message_.ready[i] = filled_handles_[i];
    }
    if (message_.events == 0) CHECK(cudaStreamSynchronize(own_.stream()));
    tell(Step::Own);
    collect();
    std::printf("ROUND %u\n", number);
    std::fflush(stdout);
    usleep(pause_ms * 1000);
    look_for_gone();
    if (gone_ > 0) return;
    tell(Step::Neighbour);
    collect();
    if (gone_ > 0) return;
    for (int i = 0; i < kConsumers; ++i) {
      const std::uint32_t seed = seed_of(number, i) + kOwn + kNeighbour;
      own_.expect(buffers_[i], kWords[i], seed, seed, "changed by the consumers");
    }
  }

  void tell(Step step) {
    message_.step = step;
    for (int i = 0; i < kConsumers; ++i) {
      message_.consumer = static_cast<std::uint32_t>(i);
      if (consumers_[i] >= 0 && !send(consumers_[i], message_)) lose(i);
    }
  }

  // An answer of each consumer that is there, with the event of what it has done.
  void collect() {
    for (int i = 0; i < kConsumers; ++i) {
      Message answer;
      if (consumers_[i] < 0) continue;
      if (!receive(consumers_[i], answer)) {
        lose(i);
      } else {
        message_.ready[i] = answer.ready[i];
      }
    }
  }

  // An event ends with its process, so nobody is sent to the event of a consumer that is gone.
  void look_for_gone() {
    for (int i = 0; i < kConsumers; ++i) {
      char byte = 0;
      if (consumers_[i] >= 0 && recv(consumers_[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
        lose(i);
      }
    }
  }

  // Nobody has a buffer open that is freed.
  void wait_for_the_end() const {
    Message last;
    for (const int one : consumers_) {
      while (one >= 0 && receive(one, last)) {
      }
    }
  }

  void lose(int consumer) {
    close(consumers_[consumer]);
    consumers_[consumer] = -1;
    ++gone_;
  }

  // The buffers are the producer's own, whatever became of a consumer that had them open.
  void still_there(std::uint32_t number) {
    for (int i = 0; i < kConsumers; ++i) {
      launch(fill, own_.stream(), buffers_[i], kWords[i], seed_of(number, i));
      own_.expect(buffers_[i], kWords[i], seed_of(number, i), seed_of(number, i),
                  "after a consumer was gone");
    }
  }

  void new_buffers() {
    free_buffers();
    for (int i = 0; i < kConsumers; ++i) {
      CHECK(cudaMalloc(&buffers_[i], kWords[i] * sizeof(std::uint32_t)));
      CHECK(cudaIpcGetMemHandle(&message_.memory[i], buffers_[i]));
    }
  }

  void free_buffers() {
    for (std::uint32_t*& buffer : buffers_) {
      CHECK(cudaFree(buffer));
      buffer = nullptr;
    }
  }

  Process own_;
  std::vector<int> consumers_;  // connections; -1: gone
  int gone_ = 0;
  std::uint32_t* buffers_[kConsumers] = {};
  cudaEvent_t filled_[kConsumers] = {};
  cudaIpcEventHandle_t filled_handles_[kConsumers] = {};
  Message message_;  // the last one, with the handles of now
};

// --- a consumer

// Memory of the producer, open as long as this is there.
class Opened {
 public:
  explicit Opened(const cudaIpcMemHandle_t& handle) {
    CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&words_), handle,
                               cudaIpcMemLazyEnablePeerAccess));
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() { CHECK(cudaIpcCloseMemHandle(words_)); }
  std::uint32_t* words() const { return words_; }

 private:
  std::uint32_t* words_ = nullptr;
};

class Consumer {
 public:
  explicit Consumer(int connection) : connection_(connection) {
    has_event_ = own_.make_event(changed_, changed_handle_);
  }
  ~Consumer() { CHECK(cudaEventDestroy(changed_)); }

  void run() {
    std::uint32_t rounds = 0;
    Message message;
    while (receive(connection_, message) && message.step == Step::Own) {
      const Opened opened(message.memory[message.consumer]);
      if (!take_own(message, opened.words())) return finish(rounds, true);
      if (!receive(connection_, message)) {
        still_there(message, opened.words());
        return finish(rounds, true);
      }
      if (message.step != Step::Neighbour) break;
      if (!take_neighbour(message)) return finish(rounds, true);
      ++rounds;
    }
    finish(rounds, message.step != Step::Stop);
  }

 private:
  void finish(std::uint32_t rounds, bool producer_gone) const {
    std::printf(
        "RESULT {\"role\": \"consumer\", \"rounds\": %u, \"events\": %s, \"producer_gone\": %s}\n",
        rounds, has_event_ ? "true" : "false", producer_gone ? "true" : "false");
  }

  // The stream goes on when what the other process has recorded is done.
  void wait_for(const Message& message, int buffer) const {
    if (message.events == 0) return;
    cudaEvent_t ready = nullptr;
    CHECK(cudaIpcOpenEventHandle(&ready, message.ready[buffer]));
    CHECK(cudaStreamWaitEvent(own_.stream(), ready, 0));
    CHECK(cudaStreamSynchronize(own_.stream()));
    CHECK(cudaEventDestroy(ready));
  }

  bool take_own(const Message& message, std::uint32_t* words) {
    const int own = static_cast<int>(message.consumer);
    const std::uint32_t seed = seed_of(message.round, own);
    wait_for(message, own);
    own_.expect(words, kWords[own], seed, seed, "given by the producer");
    launch(add, own_.stream(), words, kWords[own], kOwn);
    CHECK(cudaEventRecord(changed_, own_.stream()));
    if (message.events == 0 || !has_event_) CHECK(cudaStreamSynchronize(own_.stream()));
    Message answer = message;
    answer.step = Step::Done;
    answer.ready[own] = changed_handle_;
    return send(connection_, answer);
  }

  bool take_neighbour(const Message& message) {
    const int next = (static_cast<int>(message.consumer) + 1) % kConsumers;
    const std::uint32_t seed = seed_of(message.round, next) + kOwn;
    {
      const Opened opened(message.memory[next]);
      wait_for(message, next);
      own_.expect(opened.words(), kWords[next], seed, seed, "changed by the neighbour");
      launch(add, own_.stream(), opened.words(), kWords[next], kNeighbour);
      CHECK(cudaStreamSynchronize(own_.stream()));
    }
    Message answer = message;
    answer.step = Step::Done;
    return send(connection_, answer);
  }

  // Memory that is open stays, also when its owner is gone. The neighbour may be changing it.
  void still_there(const Message& message, const std::uint32_t* words) {
    const int own = static_cast<int>(message.consumer);
    const std::uint32_t seed = seed_of(message.round, own) + kOwn;
    CHECK(cudaStreamSynchronize(own_.stream()));
    own_.expect(words, kWords[own], seed, seed + kNeighbour, "after the producer was gone");
  }

  Process own_;
  int connection_;
  bool has_event_ = false;
  cudaEvent_t changed_ = nullptr;
  cudaIpcEventHandle_t changed_handle_ = {};
};

// --- processes

// Another program, not only a fork: CUDA does not survive one.
pid_t start_consumer(int connection) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const std::string number = std::to_string(connection);
  execl("/proc/self/exe", "ipc_sample", "consumer", number.c_str(), nullptr);
  fail("exec");
}

// How many did not end well.
int wait_for_all(const std::vector<pid_t>& consumers) {
  int failed = 0;
  for (const pid_t pid : consumers) {
    int ending = 0;
    if (waitpid(pid, &ending, 0) != pid || ending != 0) ++failed;
  }
  return failed;
}

int run_family(std::uint32_t rounds, unsigned pause_ms) {
  std::vector<int> connections;
  std::vector<pid_t> started;
  for (int i = 0; i < kConsumers; ++i) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail("socketpair");
    const int theirs = dup(pair[1]);  // goes through exec
    started.push_back(start_consumer(theirs));
    close(theirs);
    close(pair[1]);
    connections.push_back(pair[0]);
  }
  Producer(std::move(connections)).run(rounds, pause_ms);
  return wait_for_all(started);
}

int run_consumers(const char* path) {
  std::vector<pid_t> started;
  for (int i = 0; i < kConsumers; ++i) {
    const int connection = connect_to(path);
    started.push_back(start_consumer(connection));
    close(connection);
  }
  return wait_for_all(started);
}

}  // namespace

int main(int count, char** words) {
  alarm(kGoneAfter);
  std::setvbuf(stdout, nullptr, _IOLBF, 1024);
  const std::string role = count > 1 ? words[1] : "";
  const auto number = [&](int at) { return static_cast<unsigned>(std::atoi(words[at])); };
  if (role == "family" && count == 4) return run_family(number(2), number(3));
  if (role == "consumers" && count == 3) return run_consumers(words[2]);
  if (role == "producer" && count == 5) {
    Producer(accept_consumers(words[2])).run(number(3), number(4));
    return 0;
  }
  if (role == "consumer" && count == 3) {
    Consumer(static_cast<int>(number(2))).run();
    return 0;
  }
  std::fprintf(stderr,
               "usage: ipc_sample family ROUNDS PAUSE_MS | producer SOCKET ROUNDS PAUSE_MS | "
               "consumers SOCKET\n");
  return 2;
}
