#include "interposer/gate/records.h"

#include <atomic>
#include <memory>
#include <thread>

#include "interposer/gate/markers.h"
#include "interposer/link/state.h"
#include "interposer/moving/testing/swap_machine.h"

// What is known of streams when the driver has no memory for markers: on the software GPU, with
// this file in the place of the link.
nvshare::interposer::gate::Gate* nvshare::interposer::link::gate_of_current_device() {
  return nullptr;
}

namespace nvshare::interposer::gate {

namespace {

// Keeps streams busy until it is let go.
class Work {
 public:
  void put_into(CUstream stream) {
    ASSERT_OK(
        real<FunctionId::cuLaunchHostFunc>(stream, wait, static_cast<void*>(new Ended(ended_))));
  }
  void end() { *ended_ = true; }
  Work() = default;
  ~Work() { end(); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  using Ended = std::shared_ptr<std::atomic<bool>>;
  static void wait(void* argument) {
    const std::unique_ptr<Ended> ended(static_cast<Ended*>(argument));
    while (!**ended) std::this_thread::yield();
  }
  const Ended ended_ = std::make_shared<std::atomic<bool>>(false);
};

class RecordsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { moving::start_card(); }
  void SetUp() override {
    link.gate.link = &link;
    ASSERT_OK(real<FunctionId::cuCtxCreate_v2>(&context, 0, 0));
    note_context(link.gate, context);
  }
  void TearDown() override {
    broken(false);
    work.end();
    g_captures = 0;
    real<FunctionId::cuCtxSynchronize>();
    EXPECT_OK(real<FunctionId::cuCtxDestroy_v2>(context));
    HoldMarkers().gone(context);
  }

  static void no_memory_for_events(bool none) { moving::refuse(FunctionId::cuEventCreate, none); }
  static void no_memory_to_record(bool none) { moving::refuse(FunctionId::cuEventRecord, none); }

  CUstream new_stream() {
    CUstream stream{};
    EXPECT_OK(real<FunctionId::cuStreamCreate>(&stream, CU_STREAM_NON_BLOCKING));
    note_stream(stream);
    return stream;
  }
  void submit(CUstream stream) {
    StreamRecord* record = record_for(slot, link.gate, {stream, false});
    ASSERT_NE(record, nullptr);
    work.put_into(stream);
    note_submission(*record);
  }
  // As if short kernels had been launched.
  static void grow_window(StreamRecord& record) {
    for (int i = 0; i < 7; ++i) record.window.learn(0, 1, true);
    ASSERT_EQ(Window::stride(room_of(record)), 32u);
  }
  static bool is_marked(const StreamRecord& record) {
    return record.marked.load() == record.submitted.load();
  }
  bool in_flight() {
    Done done;
    return anything_in_flight(link.gate, 0, now_ns(), &done);
  }
  // Looks more than once: what is not known does not become so by looking.
  void expect_busy_until_done() {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(in_flight()) << "work is in the stream";
    work.end();
    expect_done();
  }
  void expect_done() {
    const uint64_t begin = now_ns();
    while (in_flight()) {
      ASSERT_LT(now_ns() - begin, 1'000'000'000u) << "it is never done";
      std::this_thread::yield();
    }
  }
  // As if a kernel had done what it must not: nothing can be learnt in the context any more. (Were
  // it so, the driver would answer like this for as long as the process lives.)
  static void broken(bool is) {
    for (const FunctionId id :
         {FunctionId::cuEventCreate, FunctionId::cuEventRecord, FunctionId::cuEventQuery,
          FunctionId::cuStreamQuery, FunctionId::cuStreamIsCapturing}) {
      moving::refuse(id, is, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
  }
  CUstreamCaptureStatus capture_of(CUstream stream) {
    CUstreamCaptureStatus status{};
    EXPECT_OK(real<FunctionId::cuStreamIsCapturing>(stream, &status));
    return status;
  }
  void begin_capture(CUstream stream) {
    ASSERT_OK(real<FunctionId::cuStreamBeginCapture_v2>(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    g_captures = 1;
  }

  Work work;
  link::Link link;
  Slot slot;
  CUcontext context{};
};

TEST_F(RecordsTest, AnEventIsKeptForEveryStream) {
  const CUstream stream = new_stream();
  no_memory_for_events(true);
  const uint64_t asked = moving::driver_calls(FunctionId::cuStreamQuery);
  submit(stream);
  expect_busy_until_done();
  EXPECT_EQ(moving::driver_calls(FunctionId::cuStreamQuery), asked) << "there was a marker";
}

TEST_F(RecordsTest, OneEventIsEnoughForManySubmissions) {
  const CUstream stream = new_stream();
  no_memory_for_events(true);
  for (unsigned round = 0; round < 2 * Window::kMarkers; ++round) {
    Work one;
    StreamRecord* record = record_for(slot, link.gate, {stream, false});
    for (int i = 0; i < 3; ++i) {
      one.put_into(stream);
      note_submission(*record);
    }
    ASSERT_TRUE(in_flight());
    EXPECT_EQ(record->marked.load(), record->submitted.load());
    EXPECT_EQ(record->outstanding.load(), 1u);
    EXPECT_EQ(room_of(*record), 1u) << "no more in flight than there are markers for";
    one.end();
    expect_done();
  }
}

// Where a program is slower than the GPU, each call has a marker behind it that tells when the GPU
// was done with it, for a while.
TEST_F(RecordsTest, BehindAPauseCallsAreMarkedOneByOne) {
  const CUstream stream = new_stream();
  StreamRecord* record = record_for(slot, link.gate, {stream, false});
  grow_window(*record);
  submit(stream);
  EXPECT_FALSE(is_marked(*record));
  ASSERT_TRUE(in_flight()) << "and now there is a marker";
  note_pause(*record, now_ns());
  submit(stream);
  EXPECT_FALSE(is_marked(*record)) << "the GPU still works";
  work.end();
  expect_done();

  note_pause(*record, now_ns());
  int one_by_one = 0;
  for (int round = 0; round < 5; ++round) {
    Work some;
    for (int i = 0; i < 6; ++i) {
      some.put_into(stream);
      note_submission(*record);
      if (is_marked(*record)) ++one_by_one;
    }
    some.end();
    ASSERT_OK(real<FunctionId::cuStreamSynchronize>(stream));
    // On a busy machine that took long, and was learnt from.
    expect_done();
    record->window = {};
    grow_window(*record);
  }
  EXPECT_EQ(one_by_one, 16);
}

TEST_F(RecordsTest, WhereTheGpuHasEnoughToDoTheyAreNot) {
  const CUstream stream = new_stream();
  StreamRecord* record = record_for(slot, link.gate, {stream, false});
  grow_window(*record);
  for (uint32_t i = 0; i < Window::kMarkers; ++i) submit(stream);
  EXPECT_EQ(record->outstanding.load(), 0u);
  note_pause(*record, now_ns());
  submit(stream);
  EXPECT_FALSE(is_marked(*record));
  EXPECT_EQ(record->one_by_one.load(), 0u) << "and it is not looked into any more";
}

// Every call to the default stream of a thread is marked: by few markers, that stand for about as
// many calls each, so that one knows how far the GPU is.
TEST_F(RecordsTest, MarkersOfAThreadsStreamAreFarApart) {
  StreamRecord* record = record_for(slot, link.gate, {nullptr, true});
  grow_window(*record);
  const uint64_t before = record->submitted.load();
  const uint32_t stride = Window::stride(room_of(*record));
  Work second;
  for (Work* part : {&work, &second}) {
    for (uint32_t i = 0; i < stride + 20; ++i) {
      part->put_into(stream_per_thread());
      note_submission(*record);
      ASSERT_TRUE(is_marked(*record));
    }
  }
  EXPECT_LE(record->outstanding.load(), Window::kMarkers);
  work.end();
  const uint64_t begin = now_ns();
  while (in_flight() && record->done.load() - before < stride) {
    ASSERT_LT(now_ns() - begin, 1'000'000'000u) << record->done.load() - before;
  }
  second.end();
  expect_done();
}

TEST_F(RecordsTest, WithoutAnyEventTheStreamIsAsked) {
  no_memory_for_events(true);
  submit(new_stream());
  expect_busy_until_done();
}

TEST_F(RecordsTest, WithoutMemoryToRecordAnEventTheStreamIsAsked) {
  const CUstream stream = new_stream();
  no_memory_to_record(true);
  submit(stream);
  expect_busy_until_done();
  // The event is still there.
  no_memory_to_record(false);
  no_memory_for_events(true);
  Work more;
  more.put_into(stream);
  StreamRecord* record = record_for(slot, link.gate, {stream, false});
  note_submission(*record);
  EXPECT_EQ(record->outstanding.load(), 1u);
}

TEST_F(RecordsTest, AMarkerThatCannotBeLookedAtIsNotDone) {
  submit(new_stream());
  moving::refuse(FunctionId::cuEventQuery, true);
  EXPECT_TRUE(in_flight());
  moving::refuse(FunctionId::cuEventQuery, false);
  expect_busy_until_done();
}

TEST_F(RecordsTest, AContextThatCannotBeEnteredIsNotDone) {
  no_memory_to_record(true);
  submit(new_stream());
  moving::refuse(FunctionId::cuCtxPushCurrent_v2, true);
  bool busy = false;
  std::thread([&] { busy = in_flight(); }).join();
  moving::refuse(FunctionId::cuCtxPushCurrent_v2, false);
  EXPECT_TRUE(busy);
  expect_busy_until_done();
}

TEST_F(RecordsTest, WhatRanFreeIsBusyWithoutMemoryForMarkers) {
  const CUstream kept = new_stream();
  no_memory_for_events(true);
  const CUstream bare = new_stream();
  work.put_into(kept);
  assume_all_busy(link.gate);
  EXPECT_TRUE(in_flight());
  work.end();
  expect_done();
  Work more;
  more.put_into(bare);
  assume_all_busy(link.gate);
  EXPECT_TRUE(in_flight());
  more.end();
  expect_done();
}

// The legacy stream may say that it is done when the streams that it waits for are not.
TEST_F(RecordsTest, ForTheLegacyStreamOnlyAMarkerSpeaks) {
  no_memory_to_record(true);
  assume_all_busy(link.gate);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(in_flight());
  no_memory_to_record(false);
  expect_done();
}

TEST_F(RecordsTest, AStreamThatCannotBeMarkedIsDestroyedWhenItIsDone) {
  no_memory_for_events(true);
  const CUstream stream = new_stream();
  submit(stream);
  const uint64_t destroyed = moving::driver_calls(FunctionId::cuStreamDestroy_v2);
  EXPECT_FALSE(HoldMarkers().leaving(stream));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(in_flight());
  EXPECT_EQ(moving::driver_calls(FunctionId::cuStreamDestroy_v2), destroyed);
  work.end();
  expect_done();
  EXPECT_EQ(moving::driver_calls(FunctionId::cuStreamDestroy_v2), destroyed + 1);
  EXPECT_EQ(real<FunctionId::cuStreamQuery>(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(RecordsTest, AStreamThatIsDoneIsDestroyedAtOnce) {
  no_memory_for_events(true);
  const CUstream stream = new_stream();
  EXPECT_TRUE(HoldMarkers().leaving(stream));
  EXPECT_OK(real<FunctionId::cuStreamDestroy_v2>(stream));
  EXPECT_FALSE(in_flight());
}

TEST_F(RecordsTest, TheStreamOfAThreadIsToldOfByTheLegacyStream) {
  no_memory_for_events(true);
  std::thread([&] {
    ASSERT_OK(real<FunctionId::cuCtxSetCurrent>(context));
    Slot own;
    StreamRecord* record = record_for(own, link.gate, {nullptr, true});
    ASSERT_NE(record, nullptr);
    work.put_into(stream_per_thread());
    note_submission(*record);
    note_thread_gone(own);
  }).join();
  expect_busy_until_done();
}

TEST_F(RecordsTest, ABrokenContextIsDone) {
  const CUstream marked = new_stream();
  submit(marked);
  no_memory_for_events(true);
  const CUstream bare = new_stream();
  submit(bare);
  EXPECT_TRUE(in_flight());
  broken(true);
  EXPECT_FALSE(in_flight());
  assume_all_busy(link.gate);
  no_memory_for_events(true);
  EXPECT_FALSE(in_flight()) << "that there is no memory as well does not matter";
  assume_all_busy(link.gate);
  EXPECT_TRUE(HoldMarkers().leaving(marked));
  EXPECT_TRUE(HoldMarkers().leaving(bare));
  EXPECT_FALSE(in_flight());
}

TEST_F(RecordsTest, ABrokenContextIsDoneWithACaptureThatNobodyEnded) {
  begin_capture(new_stream());
  broken(true);
  assume_all_busy(link.gate);
  EXPECT_FALSE(in_flight());
}

TEST_F(RecordsTest, ACapturedStreamIsNotAsked) {
  no_memory_for_events(true);
  const CUstream stream = new_stream();
  submit(stream);
  begin_capture(stream);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(in_flight());
  EXPECT_EQ(capture_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph{};
  EXPECT_OK(real<FunctionId::cuStreamEndCapture>(stream, &graph));
  g_captures = 0;
  expect_busy_until_done();
}

TEST_F(RecordsTest, MarkersTellOfAStreamThatIsDestroyedWhileItIsCaptured) {
  const CUstream stream = new_stream();
  submit(stream);
  begin_capture(stream);
  EXPECT_TRUE(HoldMarkers().leaving(stream));
  EXPECT_OK(real<FunctionId::cuStreamDestroy_v2>(stream));
  g_captures = 0;
  expect_busy_until_done();
}

TEST_F(RecordsTest, ACallWithoutARecordIsWaitedFor) {
  const CUstream stream = new_stream();
  work.put_into(stream);
  const uint64_t calls = moving::driver_calls(FunctionId::cuStreamSynchronize);
  moving::refuse(FunctionId::cuStreamSynchronize, true);
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    real<FunctionId::cuCtxSetCurrent>(context);
    wait_for_call({stream, false});
    returned = true;
  });
  while (moving::driver_calls(FunctionId::cuStreamSynchronize) < calls + 2 && !returned) {
    std::this_thread::yield();
  }
  moving::refuse(FunctionId::cuStreamSynchronize, false);
  EXPECT_FALSE(returned);
  work.end();
  caller.join();
  EXPECT_OK(real<FunctionId::cuStreamQuery>(stream));

  begin_capture(stream);
  wait_for_call({stream, false});
  EXPECT_EQ(capture_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE) << "it must not be waited for";
}

}  // namespace
}  // namespace nvshare::interposer::gate
