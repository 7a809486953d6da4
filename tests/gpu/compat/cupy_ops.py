"""CuPy: elementwise kernels, reductions, cuBLAS, cuFFT, sorting, a raw kernel, streams and its pool."""

import cupy

from result import Digest, finish

SCALE = cupy.RawKernel(
    r"""
extern "C" __global__ void scale(float* data, float by, int count) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) data[at] = data[at] * by + at % 7;
}
""",
    "scale",
)


def main():
    digest = Digest()
    generator = cupy.random.RandomState(11)
    a = generator.rand(1024, 1024, dtype=cupy.float32)
    for round_number in range(40):
        b = a @ a.T / 1024
        c = cupy.sin(b) + cupy.sqrt(cupy.abs(a))
        spectrum = cupy.fft.fft2(c.astype(cupy.complex64))
        ordered = cupy.sort(c, axis=1)
        SCALE((4096,), (256,), (c, cupy.float32(1 + round_number / 100), c.size))
        a = c / cupy.max(cupy.abs(c))
        digest.add(cupy.asnumpy(spectrum[::64, ::64]))
        digest.add(cupy.asnumpy(ordered[:, ::128]))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        d = cupy.arange(1 << 20, dtype=cupy.int64)
        e = cupy.cumsum(d * d)
    stream.synchronize()
    digest.add(cupy.asnumpy(e[::4096]))
    digest.add(cupy.asnumpy(a))
    cupy.get_default_memory_pool().free_all_blocks()
    finish(digest, {"cupy": cupy.__version__, "cuda": cupy.cuda.runtime.runtimeGetVersion()})


main()
