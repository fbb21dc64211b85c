"""What a process and its children use of the machine: CPU time, resident memory and open files. From /proc, so only on
Linux; who is watched, and when, is the benchmarks' business.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Of one process tree. ``cpu_s`` is of the threads that still live, to the nanosecond."""

    cpu_s: float
    rss_bytes: int
    files: int

    def __sub__(self, earlier: "Usage") -> "Usage":
        return Usage(
            cpu_s=self.cpu_s - earlier.cpu_s,
            rss_bytes=self.rss_bytes - earlier.rss_bytes,
            files=self.files - earlier.files,
        )


def usage_of(root_pid: int) -> Usage:
    """What a process and all below it use now. One that ends meanwhile counts nothing."""
    cpu_ns, rss_kib, files = 0, 0, 0
    for pid in tree_of(root_pid):
        folder = Path("/proc", str(pid))
        try:
            threads = [thread / "schedstat" for thread in (folder / "task").iterdir()]
            cpu_ns += sum(int(each.read_text().split()[0]) for each in threads)
            rss_kib += _rss_kib(folder)
            files += sum(1 for _ in (folder / "fd").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Usage(cpu_s=cpu_ns / 1e9, rss_bytes=rss_kib * 1024, files=files)


def tree_of(root_pid: int) -> list[int]:
    """A process and its descendants."""
    found = [root_pid]
    for pid in found:
        try:
            for thread in Path("/proc", str(pid), "task").iterdir():
                found += [int(child) for child in (thread / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _rss_kib(folder: Path) -> int:
    for line in (folder / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
