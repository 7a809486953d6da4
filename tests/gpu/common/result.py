"""What the framework programs have in common: the digest of their results, and the line they print."""

import hashlib
import json
import statistics
import sys
import time


class Digest:
    """Bits of everything that was computed, in the order in which it is given."""

    def __init__(self):
        self._hash = hashlib.sha256()

    def add(self, array):
        """A NumPy array, or anything that NumPy makes one of."""
        import numpy

        array = numpy.ascontiguousarray(array)
        self._hash.update(str(array.dtype).encode())
        self._hash.update(str(array.shape).encode())
        self._hash.update(array.tobytes())

    def text(self):
        return self._hash.hexdigest()[:32]


def finish(digest, versions, **more):
    """Prints the one line that compat.py reads."""
    print("RESULT " + json.dumps({"digest": digest.text(), "versions": versions, **more}))
    sys.stdout.flush()


def median_step(step, wait, warm_up, count):
    """Milliseconds that a step takes, as the median of groups of five that are waited for."""
    for _ in range(warm_up):
        step()
    wait()
    times = []
    for _ in range(max(count // 5, 1)):
        begin = time.perf_counter()
        for _ in range(5):
            step()
        wait()
        times.append((time.perf_counter() - begin) * 200)
    return statistics.median(times)
