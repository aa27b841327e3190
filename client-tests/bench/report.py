# SPDX-License-Identifier: BSD-3-Clause
"""From measurements to medians, ratios, a table, JSON and a plot.

A measurement is one dictionary: job, peer, round, what jobs.measure returned, and the server's
cost. `table[job][peer]` holds the medians.
"""

import json
import re
import shutil
import statistics

from device import run

NOT_A_PEER = ("null",)  # stores nothing, so it does not count as the best peer
COST = {  # column: how it follows from the medians of a job and peer
    "CPU us/request": lambda row: row["cpu_seconds"] * 1e6 / max(row["requests"], 1),
    "max RSS MiB": lambda row: row["max_rss"] / (1 << 20),
    "device bytes/byte": lambda row: (row["device_bytes_written"] / row["bytes_written"]
                                      if row["bytes_written"] else None),
    "device flushes/flush": lambda row: (row["device_flushes"] / row["flushes"]
                                         if row["flushes"] else None),
}


DEFAULT_CACHE = "256M"
MEMORY_BESIDES = 64 << 20


def parse_size(text):
    """Bytes of a size such as 512M; ValueError when it is none."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.upper())
    if not match:
        raise ValueError(f"{text}: want a size such as 512M or 4G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[match[2]]


def medians(measurements):
    """table[job][peer]: the median of each figure, the values of all rounds, the costs."""
    table = {}
    for entry in measurements:
        table.setdefault(entry["job"], {}).setdefault(entry["peer"], []).append(entry)
    for peers in table.values():
        for peer, entries in peers.items():
            row = {}
            for key, value in entries[0].items():
                values = [entry[key] for entry in entries if entry[key] is not None]
                if isinstance(value, (int, float)) and key != "round":
                    row[key] = statistics.median(values)
            row["flush_mean_us"] = row.get("flush_mean_us")
            row["values"] = [entry["value"] for entry in entries]
            row["cost"] = {name: rule(row) for name, rule in COST.items()}
            peers[peer] = row
    return table


def memory_verdicts(table, peer_names):
    """[(text, met)]: the peak of our server against its cache and a constant. nbdkit's buffers, one
    for each worker of each connection, are in the peak though the cache does not bound them."""
    found = []
    for ours in filter(is_ours, peer_names):
        peak = max((row["max_rss"] for peers in table.values() for name, row in peers.items()
                    if name == ours), default=0)
        cache = parse_size(ours.partition(":")[2] or DEFAULT_CACHE)
        found.append((f"{ours}: peak RSS {int(peak) >> 20} MiB, "
                      f"wanted {(cache + MEMORY_BESIDES) >> 20} (cache + 64) or less",
                      peak <= cache + MEMORY_BESIDES))
    return found


def is_ours(peer):
    return peer.split(":")[0] == "coppice"


def ratios(job, peers):
    """{our variant: {peer: ours / theirs}}, with "best" for the best peer that stores anything."""
    others = {name: row["value"] for name, row in peers.items() if not is_ours(name)}
    stored = {name: value for name, value in others.items() if name not in NOT_A_PEER}
    if stored:
        others["best"] = max(stored.values())
    return {ours: {name: row["value"] / value for name, value in others.items() if value}
            for ours, row in peers.items() if is_ours(ours)}


def verdicts(job, peers):
    """[(text, met)] for each target of the job that the measured peers allow to judge."""
    found = []
    of_ours = ratios(job, peers)
    if not of_ours:
        return found
    first = next(iter(of_ours))
    largest = list(of_ours)[-1]
    for name, least in job.targets.items():
        variant = largest if "largest cache" in name else first
        if "largest cache" in name and variant == first:
            continue
        ratio = of_ours[variant].get(name.split()[0])
        if ratio is not None:
            found.append((f"{variant} / {name}: {ratio:.2f}, wanted {least}", ratio >= least))
    return found


def number(value, digits=4):
    """Short form: about `digits` digits in all."""
    if value is None:
        return "-"
    decimals = max(0, digits - len(f"{int(abs(value))}") - (1 if value >= 100 else 0))
    return f"{value:.{min(decimals, 2)}f}"


def grid(header, rows):
    """A Markdown table, padded so that it also reads as plain text."""
    cells = [header] + rows
    width = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width[i]) if i == 0 else cell.rjust(width[i])
                               for i, cell in enumerate(row)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":"
                          for i, w in enumerate(width)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def value_cell(row):
    if row is None:
        return ""
    flush = row["flush_mean_us"]
    return number(row["value"]) + (f" ({flush:.0f} us)" if flush and row["flushes"] > 100 else "")


def text(jobs, peer_names, measurements, nr_rounds):
    """The whole report as text."""
    table = medians(measurements)
    jobs = [job for job in jobs if job.name in table]
    compared = [name for name in peer_names if not is_ours(name)]
    parts = [f"Medians of {nr_rounds} round(s), thousand requests a second unless said; in brackets "
             "the mean flush.\n",
             grid(["job", *peer_names],
                  [[job.title + (" (MiB/s)" if job.unit == "MiB/s" else ""),
                    *(value_cell(table[job.name].get(name)) for name in peer_names)]
                   for job in jobs])]
    rows = []
    for job in jobs:
        for ours, ratio in ratios(job, table[job.name]).items():
            rows.append([job.title, ours, *(f"{ratio[name]:.2f}" if name in ratio else ""
                                            for name in [*compared, "best"])])
    if rows and compared:
        parts += ["\nOurs divided by theirs; best is the best peer that stores anything.\n",
                  grid(["job", "ours", *compared, "best"], rows)]
    for name in COST:
        cells = {job.title: [table[job.name].get(peer, {}).get("cost", {}).get(name)
                             for peer in peer_names] for job in jobs}
        parts += [f"\nServer, {name}.\n",
                  grid(["job", *peer_names], [[title, *map(number, row)]
                                              for title, row in cells.items() if any(row)])]
    judged = [(job, verdict) for job in jobs for verdict in verdicts(job, table[job.name])]
    lines = [(f"{job.title}: {words}", met) for job, (words, met) in judged]
    lines += memory_verdicts(table, peer_names)
    if lines:
        parts.append("\nTargets\n")
        parts += [f"  {'met ' if met else 'MISS'}  {words}" for words, met in lines]
    return "\n".join(parts)


def write_json(path, environment, measurements):
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"environment": environment, "medians": medians(measurements),
                   "measurements": measurements}, out, indent=1)
        out.write("\n")


def write_plot(directory, jobs, peer_names, measurements):
    """compare.svg: for each job a cluster of bars, each peer's rate relative to raw's (or to the
    first peer's where raw was not measured). null, far above all that store something, would only
    flatten the rest. Returns the path, or None without gnuplot or anything to draw."""
    table = medians(measurements)
    peer_names = [name for name in peer_names if name not in NOT_A_PEER
                  and any(name in peers for peers in table.values())]
    if not peer_names or not shutil.which("gnuplot"):
        return None
    base = "raw" if "raw" in peer_names else peer_names[0]
    jobs = [job for job in jobs if base in table.get(job.name, {})]
    if not jobs:
        return None
    with open(f"{directory}/compare.dat", "w", encoding="utf-8") as out:
        print("job", *peer_names, sep="\t", file=out)
        for job in jobs:
            unit = table[job.name][base]["value"] or 1
            row = [table[job.name].get(name) for name in peer_names]
            print(job.name, *(f"{entry['value'] / unit:.4f}" if entry else "NaN" for entry in row),
                  sep="\t", file=out)
    with open(f"{directory}/compare.gnuplot", "w", encoding="utf-8") as out:
        out.write(f"""\
set terminal svg size {240 + 100 * len(jobs)},520 font "sans,12" background "white"
set output "{directory}/compare.svg"
set datafile separator tab
set title "Rate relative to {base}, medians"
set style data histogram
set style histogram cluster gap 1
set style fill solid 0.9 noborder
set boxwidth 0.9
set grid ytics
set yrange [0:*]
set xtics rotate by -35 scale 0
set key outside right top
plot for [i=2:{len(peer_names) + 1}] "{directory}/compare.dat" using i:xtic(1) title columnheader(i)
""")
    run("gnuplot", f"{directory}/compare.gnuplot")
    return f"{directory}/compare.svg"
