#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""check-style [--format] ROOT: checks that the tree keeps its own rules.

Without --format: includes point one way, licence lines, words that do not belong here, blanks at
line ends, names, docs/locking.md against the source. With --format: clang-format would change
nothing; exits 77 when there is no clang-format. Prints a line for each fault; exits 1 if any.
"""

import os
import re
import shutil
import subprocess
import sys

SOURCE_DIRS = ("core", "server", "client-tests")
BINARY = (".png", ".xz", ".gz", ".zst", ".img", ".bin", ".pdf")
# Spelt apart, so that this file does not contain them.
OUTSIDE = [".." + "/shared", "/wo" + "rk/", ".lib" + "rary"]
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]
SPDX = "SPDX-License-Identifier: BSD-3-Clause"

faults = []


def fault(path, line, text):
    faults.append(f"{path}:{line}: {text}")


def list_files(root):
    """Files that git knows or would add, relative to root; without git, all but build."""
    try:
        out = subprocess.run(
            ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"], cwd=root, capture_output=True, check=True).stdout
        names = [n for n in out.decode().split("\0") if n]
    except (OSError, subprocess.CalledProcessError):
        names = []
        for top, dirs, files in os.walk(root):
            dirs[:] = [d for d in dirs if d not in (".git", "build")]
            names += [os.path.relpath(os.path.join(top, f), root) for f in files]
    return sorted(n for n in set(names) if os.path.isfile(os.path.join(root, n)))


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
        return f.read()


def is_source(name):
    return name.startswith(tuple(d + "/" for d in SOURCE_DIRS)) and name.endswith((".c", ".h"))


def is_test(name):
    return os.path.basename(name).startswith(("test-", "bench-"))


# --- includes -------------------------------------------------------------------------------


def core_order(root):
    """Modules in the order of core/CMakeLists.txt: one may include those before it and itself."""
    match = re.search(r"foreach\(module\s+(.*?)\)", read(root, "core/CMakeLists.txt"), re.S)
    order = match.group(1).split() if match else []
    if len(order) < 5:
        sys.exit("core/CMakeLists.txt: no list of modules found")
    return {module: rank for rank, module in enumerate(order)}


def check_include(root, order, name, line, target):
    parts = name.split("/")
    target_module = target.split("/")[0]
    in_core = os.path.isfile(os.path.join(root, "core", target))

    if target.endswith("-internal.h") and os.path.dirname(target) not in ("", parts[1]) \
            and parts[0] + "/" + os.path.dirname(target) != os.path.dirname(name):
        fault(name, line, f"{target} belongs inside its module")
    if parts[0] != "core":
        return
    if not in_core:
        if not os.path.isfile(os.path.join(root, os.path.dirname(name), target)):
            fault(name, line, f"{target} is not a file of core")
        return
    if target_module not in order:
        fault(name, line, f"{target_module} is not in the list of core/CMakeLists.txt")
    elif order[target_module] > order.get(parts[1], -1) and not is_test(name):
        # a test is a program of its own: it may use the checker or the oracle
        fault(name, line, f"core/{parts[1]} includes {target} from a module above it")


def check_includes(root, order, name, text):
    for line, code in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', code)
        if not match:
            continue
        if match.group(1).endswith(".c"):
            fault(name, line, "includes a .c file")
        check_include(root, order, name, line, match.group(1))


def check_core_module(order, name):
    parts = name.split("/")
    if parts[0] == "core" and (len(parts) != 3 or parts[1] not in order):
        fault(name, 1, "is not in a module of core/CMakeLists.txt")


# --- text -----------------------------------------------------------------------------------


def needs_licence(name, text):
    if name.endswith((".c", ".h", ".py", ".sh", ".cmake", "CMakeLists.txt")):
        return True
    return text.startswith("#!")


def is_man_page(name):
    return re.search(r"\.[1-8]$", name) is not None


def check_text(name, text):
    if needs_licence(name, text) and SPDX not in "\n".join(text.splitlines()[:3]):
        fault(name, 1, "no SPDX line")
    if name.startswith(".git"):
        return
    for line, code in enumerate(text.splitlines(), 1):
        for word in OUTSIDE:
            if word in code:
                fault(name, line, f"mentions {word}")
        for word in UNFINISHED:
            if re.search(rf"\b{word}\b", code):
                fault(name, line, f"{word} left")
        if code != code.rstrip() and not is_man_page(name):  # an empty column ends in a tab
            fault(name, line, "blanks at the end of the line")
    if text and not text.endswith("\n"):
        fault(name, len(text.splitlines()), "no newline at the end")


# --- names ----------------------------------------------------------------------------------


def check_name(name):
    base = os.path.basename(name)
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*(-internal)?\.[ch]", base):
        fault(name, 1, "file names are lower case with hyphens")


def check_guard(name, text):
    if not name.endswith(".h"):
        return
    match = re.search(r"^#ifndef (\w+)\n#define (\w+)$", text, re.M)
    if not match or match.group(1) != match.group(2):
        fault(name, 1, "no include guard")
        return
    stem = os.path.basename(name)[:-2].upper().replace("-", "_")
    prefix = "" if name.startswith("client-tests/") else "CPC_"
    if not match.group(1).startswith(prefix) or not match.group(1).endswith(stem + "_H"):
        fault(name, 1, f"include guard {match.group(1)} does not name the file")


def check_exported(name, text):
    """Functions declared in a header of core or server begin with cpc_."""
    if not name.endswith(".h") or name.startswith("client-tests/") or is_test(name):
        return
    for match in re.finditer(r"^[a-z][\w ]*[ *]+(\w+)\([^;{]*\)[^;{]*;", text, re.M):
        if match.group(0).startswith(("static", "typedef", "return", "extern")):
            continue
        if not match.group(1).startswith("cpc_"):
            fault(name, text[:match.start()].count("\n") + 1,
                  f"{match.group(1)} is exported without cpc_")


# --- docs/locking.md ------------------------------------------------------------------------


def check_locking(root, sources):
    doc = read(root, "docs/locking.md")
    rows = dict((name, int(rank)) for rank, name in
                re.findall(r"^\| (\d+) \| `(CPC_RANK_\w+)` \|", doc, re.M))
    ranks = dict((name, int(rank)) for name, rank in
                 re.findall(r"^\t(CPC_RANK_\w+) = (\d+)", read(root, "core/lib/lock.h"), re.M))
    if not ranks:
        sys.exit("core/lib/lock.h: no ranks found")
    for name in sorted(set(rows) | set(ranks)):
        if rows.get(name) != ranks.get(name):
            fault("docs/locking.md", 1,
                  f"{name} is {rows.get(name)} in the table and {ranks.get(name)} in lock.h")
    for name, text in sources:
        if is_test(name):
            continue
        for lock in re.findall(r'cpc_mutex_init\([^;"]*"([^"]+)"', text):
            if not re.search(rf'[|",] ?{re.escape(lock)}[ ",]', doc):
                fault("docs/locking.md", 1, f'does not name the lock "{lock}" of {name}')


# --- main -----------------------------------------------------------------------------------


def check_style(root):
    order = core_order(root)
    sources = []
    for name in list_files(root):
        if name.endswith(BINARY):
            continue
        text = read(root, name)
        check_text(name, text)
        if not is_source(name):
            continue
        sources.append((name, text))
        check_core_module(order, name)
        check_includes(root, order, name, text)
        check_name(name)
        check_guard(name, text)
        check_exported(name, text)
    if len(sources) < 10:
        sys.exit(f"{root}: only {len(sources)} sources found")
    check_locking(root, sources)


def check_format(root):
    if not shutil.which("clang-format"):
        print("skipped: there is no clang-format")
        sys.exit(77)
    names = [n for n in list_files(root) if is_source(n)]
    for name in names:
        out = subprocess.run(["clang-format", "--dry-run", "-Werror", name], cwd=root,
                             capture_output=True, text=True)
        if out.returncode:
            match = re.search(r":(\d+):\d+: error", out.stderr)
            fault(name, match.group(1) if match else 1, "clang-format would change this")


def main():
    args = sys.argv[1:]
    want_format = "--format" in args
    args = [a for a in args if a != "--format"]
    if len(args) != 1:
        sys.exit(__doc__)
    root = os.path.abspath(args[0])
    if want_format:
        check_format(root)
    else:
        check_style(root)
    for text in faults:
        print(text)
    print(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
