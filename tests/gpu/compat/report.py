"""What compat.py found, for people and for programs."""

import json


def verdict(entry):
    if "skipped" in entry:
        return "skipped: " + entry["skipped"]
    if entry["ok"]:
        return "equal"
    if not entry["managed"]:
        return "NOT MANAGED"
    failed = [one for one in [entry["alone"], entry["shared"], *entry["pair"]] if one["code"] != 0]
    if failed:
        return "FAILED: " + failed[0].get("error", "").strip().split("\n")[-1][:80]
    return "DIFFERS"


def line_of(entry):
    return f"{entry['name']}: {verdict(entry)}"


def versions_of(entry):
    return ", ".join(f"{name} {value}" for name, value in entry.get("versions", {}).items()
                     if name != "device")


def table(results):
    machine_line = f"{results['machine']['gpu']}, driver {results['machine']['driver']}"
    lines = [machine_line, "", "| program | versions | unshared s | shared s | two at a time s | results |",
             "|---|---|---|---|---|---|"]
    for entry in results["programs"]:
        if "skipped" in entry:
            lines.append(f"| {entry['name']} | | | | | {verdict(entry)} |")
            continue
        pair = max(one["seconds"] for one in entry["pair"])
        lines.append(f"| {entry['name']} | {versions_of(entry)} | {entry['alone']['seconds']} | "
                     f"{entry['shared']['seconds']} | {pair} | {verdict(entry)} |")
    if results["views"]:
        lines += ["", "| memory under a limit, as seen by | limit MiB | says |", "|---|---|---|"]
    for entry in results["views"]:
        said = "skipped: " + entry["skipped"] if "skipped" in entry else entry["said"]
        mark = "" if entry.get("ok", True) else " WRONG"
        lines.append(f"| {entry['name']} | {entry.get('limit', '')} | {said}{mark} |")
    if results["overheads"]:
        lines += ["", "| overhead | limit | measured |", "|---|---|---|"]
    for entry in results["overheads"]:
        measured = f"{entry['percent']:+.2f} %" if "percent" in entry else "not measured"
        mark = "" if entry["ok"] else " MISSED"
        lines.append(f"| {entry['name']} | {entry['limit_percent']} % | {measured}{mark} |")
    return "\n".join(lines) + "\n"


def write(results, out):
    (out / "compat.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "compat.md").write_text(table(results))
