"""What compute.py found, for people."""


def text_of(numbers):
    return ", ".join(str(value) if isinstance(value, (list, tuple)) else f"{value:g}"
                     for value in numbers.values())


def clocks_of(entry, cell):
    """MHz in the cell, and of each program alone."""
    alone = [one.get("clock") for one in entry.get("native", {}).values()]
    return ", ".join("?" if clock is None else str(clock[0]) for clock in [cell.get("clock"), *alone])


def plain(text):
    return " ".join(text.split()).replace("|", "/")


def row_of(entry, cell):
    columns = [entry["name"], text_of(cell.get("limits", {})), text_of(cell.get("wanted", {})),
               text_of(cell.get("shares", {})), str(cell.get("total", "")), clocks_of(entry, cell),
               str(cell.get("taken_away", ""))]
    if "effective_after_s" in cell:
        columns[4] = f"after {cell['effective_after_s']} s, lag {cell['lag_s']} s"
    if "parts" in cell:
        columns[4] += f", of alone {text_of(cell['parts'])}"
    if "error" in cell:
        columns[3] = plain(cell["error"])
    return "| " + " | ".join([*columns, "yes" if cell["ok"] else "NO"]) + " |"


def table_of(content):
    lines = [f"{content['machine']['gpu']}, driver {content['machine']['driver']}", "",
             "| what | limits % | wanted % | got % | together | MHz, alone | host % | within limits |",
             "|---|---|---|---|---|---|---|---|"]
    for entry in content["results"]:
        if "cells" not in entry or "error" in entry:
            within = "yes" if entry.get("ok") else "NO"
            lines.append(f"| {entry['name']} | | | {plain(entry.get('error', ''))} | | | | {within} |")
        lines += [row_of(entry, cell) for cell in entry.get("cells", [])]
    return "\n".join(lines) + "\n"


def write_table(content, out):
    (out / "compute.md").write_text(table_of(content))
