"""What jobs' own progress tells about turns on a card, and the scheduler's numbers about moves."""

import re
import statistics

STILL = 150e6  # nanoseconds without progress after which a turn is over


def activity(text):
    """When a job got something done: [from, to] in nanoseconds."""
    samples = [(int(a), int(b)) for a, b in re.findall(r"progress at=(\d+) kernels=(\d+)", text)]
    spans = []
    for (_, before), (now, done) in zip(samples, samples[1:]):
        if done == before:
            continue
        if spans and now - spans[-1][1] < STILL:
            spans[-1][1] = now
        else:
            spans.append([now, now])
    return spans


def switches(texts, launch_s):
    """Of jobs that run one at a time: the time between the end of one's turn and the beginning of
    another's. A launch is seen when it is done, so it began `launch_s` before. `exit`: the first of
    the two has no more turns."""
    turns = sorted((begin, end, name) for name, text in texts.items() for begin, end in activity(text))
    found = []
    for i, ((_, end, name), (begin, _, following)) in enumerate(zip(turns, turns[1:])):
        if name != following:
            lost = (begin - end) / 1e9 - launch_s
            left = any(turn[2] == name for turn in turns[i + 1:])
            found.append({"from": name, "to": following, "lost_s": round(lost, 3), "exit": not left})
    return found


def idle_seconds(texts):
    """How long no job got anything done, between the first and the last time that one did."""
    spans = sorted(span for text in texts.values() for span in activity(text))
    idle = 0
    reached = spans[0][1] if spans else 0
    for begin, end in spans:
        idle += max(begin - reached, 0)
        reached = max(reached, end)
    return round(idle / 1e9, 3)


def lost_of(found):
    """Of switches, what is judged: the median and the mean of all but those where a job ended."""
    lost = [one["lost_s"] for one in found if not one["exit"]]
    entry = {"switches": len(found), "lost_s": [one["lost_s"] for one in found],
             "lost_exit_s": [one["lost_s"] for one in found if one["exit"]]}
    if lost:
        entry.update(lost_first_s=lost[0], lost_median_s=round(statistics.median(lost), 3),
                     lost_mean_s=round(statistics.mean(lost), 3))
    return entry


def moved_of_deficit(episodes, begun, deficit):
    """Of moves (Moves.episodes) after all jobs had begun: the most bytes that left, and that came, at once, in
    parts of the deficit. What left before need not have been a switch."""
    found = {}
    for kind in ("out", "in"):
        bytes_of = [one["bytes"] for one in episodes if one["kind"] == kind and one["until"] > begun]
        found[f"{kind}_worst_of_deficit"] = round(max(bytes_of, default=0) / max(deficit, 1), 3)
    found["moved_worst_of_deficit"] = max(found.values())
    return found


class Moves:
    """What the scheduler counts of each tenant's moves, looked at again and again."""

    KEYS = ("out", "in", "copied", "took")

    def __init__(self, begin=0):
        self.begin = begin  # what times are counted from
        self.samples = {}  # name -> [(seconds, out, in, copied, took), ...], each other than the last
        self.status = {}   # the last one in which all that were there still were
        self.most = 0

    def look(self, now, status):
        now = round(now - self.begin, 3)
        tenants = [one for one in status.get("tenants", []) if one.get("processes")]
        if tenants and len(tenants) >= self.most:
            self.most = len(tenants)
            self.status = status
        for one in tenants:
            counts = tuple(one.get("moves", {}).get(key, 0) for key in self.KEYS)
            known = self.samples.setdefault(one["name"], [(now, 0, 0, 0, 0)])
            if known[-1][1:] != counts:
                known.append((now, *counts))

    def gpu(self):
        return (self.status.get("gpus") or [{}])[0]

    def total(self):
        """Of all tenants, what they had last said."""
        last = [known[-1][1:] for known in self.samples.values()]
        return {key: sum(values) for key, values in zip(self.KEYS, zip(*last))}

    def episodes(self, name, apart=0.5):
        """Moves of one tenant, each as one: what came `apart` seconds later is another."""
        found = []
        known = self.samples.get(name, [])
        for before, after in zip(known, known[1:]):
            out, into, copied, took = (b - a for a, b in zip(before[1:], after[1:]))
            kind = "out" if into == 0 else "in" if out == 0 else "both"
            last = found[-1] if found else None
            if last and last["kind"] == kind and after[0] - last["until"] < apart:
                last["bytes"] += out + into
                last["copied"] += copied
                last["took_s"] = round(last["took_s"] + took / 1e9, 4)
                last["until"] = after[0]
            else:
                found.append({"name": name, "kind": kind, "bytes": out + into, "copied": copied,
                              "took_s": round(took / 1e9, 4), "until": after[0]})
        return found

    def outs(self, name):
        return [one for one in self.episodes(name) if one["kind"] != "in" and one["bytes"] > 0]
