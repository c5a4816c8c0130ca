"""The memory of a process, as Linux reports it."""

from pathlib import Path


def read_peak_mb(pid: int) -> float:
    """The largest resident size that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
