#pragma once

#include "interposer/catch/driver.h"

// For calls of our own in the middle of the program's.
namespace nvshare::interposer::catching {

// Our own calls must not disturb a capture that the thread, or another, has going on.
class Relaxed {
 public:
  Relaxed() {
    exchanged_ = real<FunctionId::cuThreadExchangeStreamCaptureMode>(&mode_) == CUDA_SUCCESS;
  }
  ~Relaxed() {
    if (exchanged_) real<FunctionId::cuThreadExchangeStreamCaptureMode>(&mode_);
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

// Makes a context current for a moment. A thread that submits to it mostly has it current already.
class Within {
 public:
  explicit Within(CUcontext context) {
    CUcontext current = nullptr;
    real<FunctionId::cuCtxGetCurrent>(&current);
    inside_ = current == context && context != nullptr;
    if (inside_) return;
    result_ = real<FunctionId::cuCtxPushCurrent_v2>(context);
    inside_ = pushed_ = result_ == CUDA_SUCCESS;
  }
  ~Within() {
    CUcontext popped;
    if (pushed_) real<FunctionId::cuCtxPopCurrent_v2>(&popped);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  explicit operator bool() const { return inside_; }
  CUresult result() const { return result_; }

 private:
  CUresult result_ = CUDA_SUCCESS;
  bool inside_ = false;
  bool pushed_ = false;
};

}  // namespace nvshare::interposer::catching
