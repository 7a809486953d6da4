"""docs_test.py NVSHARE: what the documents say that `nvshare sim my-jobs.toml` prints is what it prints."""

import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples_of(document):
    """(scenario, options, output) of every example: a scenario, and behind it what a command makes of it."""
    scenario = None
    with open(os.path.join(ROOT, document), encoding="utf-8") as file:
        for kind, text in BLOCK.findall(file.read()):
            command = re.match(r"\$ \S*nvshare sim my-jobs.toml(.*)\n", text)
            if kind == "toml":
                scenario = text
            elif command and text.count("\n") > 1 and "\n$ " not in text:
                yield scenario, command.group(1).split(), text[command.end():]


def main(nvshare):
    wrong = 0
    for document in ("README.md", "docs/simulator.md"):
        examples = list(examples_of(document))
        if not examples:
            print(f"{document} has no example of nvshare sim any more")
            wrong += 1
        for scenario, options, said in examples:
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "my-jobs.toml"), "w", encoding="utf-8") as file:
                    file.write(scenario)
                printed = subprocess.run([nvshare, "sim", "my-jobs.toml", *options], cwd=folder, check=True,
                                         capture_output=True, text=True, timeout=60).stdout
            if printed.strip() != said.strip():
                print(f"{document} says\n{said}\nand nvshare\n{printed}")
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
