"""What progress tells about throughput, and what limits promise."""

import bisect
import re
import statistics

MIB = 1 << 20
EVERY = 0.01  # seconds, in which what is done is looked at


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
    """Units per second: the slope of the line that is nearest to what was done by every moment of [begin, end];
    None when work was done at no two of them. What is done between the first and the last will not do: a program
    that waits for its turn at the beginning or at the end would have had that time for nothing, up to a percent of
    ten seconds, and of a few long kernels it would matter where they begin and end."""
    times = [time for time, _ in samples]
    first, last = bisect.bisect_left(times, begin), bisect.bisect_right(times, end)
    if last - first < 2 or times[last - 1] == times[first]:
        return None
    # Between those at which a program tells of it, should it do so just as often.
    moments = [begin + (step + 0.5) * EVERY for step in range(max(round((end - begin) / EVERY), 2))]
    done = [samples[max(bisect.bisect_right(times, moment), 1) - 1][1] for moment in moments]
    return statistics.linear_regression(moments, done).slope


def fair(limits):
    """Percent of a GPU that each gets: what is not used up to a limit is shared equally among the
    others."""
    got = {}
    left = 100.0
    for number, (name, limit) in enumerate(sorted(limits.items(), key=lambda one: one[1])):
        got[name] = min(float(limit), left / (len(limits) - number))
        left -= got[name]
    return got


def mean_of(kind, cells):
    """One cell of those of several processes of a kind, each under the same limit."""
    if len(cells) == 1:
        return cells[0]
    each = {name: value or 0 for cell in cells for name, value in cell["rates"].items()}
    counted = [value for cell in cells for value in cell["counted"].values()]
    clocks = [cell["clock"] for cell in cells]
    return {"limits": {kind: limit for cell in cells for limit in cell["limits"].values()},
            "rates": {kind: statistics.mean(each.values())}, "each": each,
            "clock": None if None in clocks else [round(statistics.mean(values)) for values in zip(*clocks)],
            "taken_away": round(statistics.mean(cell["taken_away"] for cell in cells), 3), "meter": cells[-1]["meter"],
            "counted": {kind: round(statistics.mean(counted), 2)} if counted else {}}


def judged(cell, wanted, points, least_total=None):
    """Each within so many points of what is wanted; together at least so much."""
    cell["wanted"] = {name: round(value, 2) for name, value in wanted.items()}
    cell["errors"] = {name: round(cell["shares"][name] - value, 2) for name, value in wanted.items()}
    cell["total"] = round(sum(cell["shares"].values()), 2)
    cell["ok"] = max(abs(error) for error in cell["errors"].values()) <= points
    if least_total is not None:
        cell["least_total"] = round(least_total, 2)
        cell["ok"] = cell["ok"] and cell["total"] >= least_total
    return cell


def effective_after(share_between, changed, wanted, until, window=0.5, tolerance=5.0, step=0.02):
    """Seconds after `changed` from which on the share over every window is what is wanted, until the next
    change; None: never."""
    after = None
    begin = until - window
    while begin >= changed - 1e-9:
        share = share_between(begin, begin + window)
        if share is None or abs(share - wanted) > tolerance:
            break
        after = round(max(begin - changed, 0.0), 3)
        begin -= step
    return after


def lag_of(samples, changed, before, wanted, over=1.0):
    """For how many seconds after `changed` the rate was as before, had it then been as wanted at once; None
    when there is nothing to tell it from."""
    def units_at(time):
        for (t0, u0), (t1, u1) in zip(samples, samples[1:]):
            if t0 <= time <= t1:
                return u0 + (u1 - u0) * (time - t0) / max(t1 - t0, 1e-9)
        return None

    begin, end = units_at(changed), units_at(changed + over)
    if begin is None or end is None or before == wanted:
        return None
    return round((wanted * over - (end - begin)) / (wanted - before), 3)


def drift_of(shares):
    """Of each name, how far its last three shares are from its second to fourth."""
    return {name: round(statistics.mean(one[name] for one in shares[-3:]) -
                        statistics.mean(one[name] for one in shares[1:4]), 2) for name in shares[0]}


def leaks_of(sizes):
    """What has grown since the second time it was looked at, or is gone: {} when nothing leaks."""
    found = {}
    for name, first in sizes[1].items():
        last = sizes[-1].get(name, {})
        grown = {key: last.get(key, 0) - value for key, value in first.items()}
        if (not last or grown["memory"] > (MIB if name == "scheduler" else 8 * MIB) or grown["files"] > 0 or
                grown.get("gpu", 0) > 0):
            found[name] = grown
    return found
