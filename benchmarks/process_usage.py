"""CPU time, resident memory and open files of a process and its children, read from /proc, so on Linux only.

Each benchmark decides which processes it samples, and when.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage of one process tree. ``cpu_s`` covers the threads that are still alive, to the nanosecond."""

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
    """Current usage of a process and its descendants. A process that ends during the sample counts as zero."""
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
