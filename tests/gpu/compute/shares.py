"""What progress tells about throughput, and what limits promise."""

import re
import statistics

FEW = 20  # moments at which work was done


def progress_of(text):
    """[(seconds, units)] of a workload's log; units go on counting over several `go`."""
    samples = []
    before = 0
    last = 0
    for line in text.splitlines():
        if line == "done":
            before += last
            last = 0
        found = re.fullmatch(r"progress at=(\d+) units=(\d+)", line)
        if found:
            last = int(found[2])
            samples.append((int(found[1]) / 1e9, before + last))
    return samples


def ready_of(text):
    """What a workload says of itself when it is ready ({"unit_ms": ...}); {} before."""
    found = re.search(r"^ready unit_ms=(\S+) submit_ms=(\S+)\n", text, re.MULTILINE)
    return {"unit_ms": float(found[1]), "submit_ms": float(found[2])} if found else {}


def rate(samples, begin, end):
    """Units per second between the first and the last time in [begin, end] that work was done. None
    when there are no two. Of a few it matters where they begin and end (long kernels that get done two
    at a time, with seconds in between): then it is the slope of the line that is nearest to all of
    them."""
    inside = [one for one in samples if begin <= one[0] <= end]
    if len(inside) < 2 or inside[-1][0] == inside[0][0]:
        return None
    if len(inside) < FEW:
        times, units = zip(*inside)
        return statistics.linear_regression(times, units).slope
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def fair(limits):
    """Percent of a GPU that each gets: what is not used up to a limit is shared equally among the
    others."""
    got = {}
    left = 100.0
    for number, (name, limit) in enumerate(sorted(limits.items(), key=lambda one: one[1])):
        got[name] = min(float(limit), left / (len(limits) - number))
        left -= got[name]
    return got


def effective_after(share_between, changed, wanted, window=0.5, tolerance=5.0, step=0.02, most=2.0):
    """Seconds after `changed` from which on the share over a window is what is wanted; None: never."""
    after = 0.0
    while after <= most:
        share = share_between(changed + after, changed + after + window)
        if share is not None and abs(share - wanted) <= tolerance:
            return round(after, 3)
        after += step
    return None
