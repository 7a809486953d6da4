// Stands in for libnvshare.so, and under another name for a CUDA driver with nothing in it.

extern "C" __attribute__((visibility("default"))) const char* const nvshare_library_version =
    "fake";
